// Session: a client's connection to the broker at hand, which comes back for as long as the client is open, and those to
// the brokers that lead the topics of its producers.
//
// Laws: there is one connection to the broker at hand. A thread makes another one when it is lost, with growing waits.
// Where it gives up (after `retries_max` attempts, or where the broker can't be talked to) whatever waits is failed, and
// it tries again only when somebody wants a connection. A second thread asks who leads topics, and connects to leaders,
// one after the other: a connection counts only if it has reached the broker that was named, of the same cluster. A
// third one sends what was not sent by who published it: again, or over another connection. Clients, producers and
// consumers own the session, its own threads never do: it ends with the last of them, and in a thread that can wait for
// the others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "alarm.h"
#include "connection.h"
#include "leaders.h"
#include "outage.h"
#include "producer_ids.h"

namespace linn::detail {

class Outbox;

class Session {
 public:
  /// Connect, once. Throws as `Client::connect`.
  static std::shared_ptr<Session> open(std::string_view url, ClientOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const ClientOptions& options() const noexcept { return options_; }
  /// The welcome of the first connection.
  const BrokerInfo& broker() const noexcept { return broker_; }
  /// Who the client is to the broker, on the last connection.
  std::string user() const;
  std::shared_ptr<const Outage> outage() const noexcept { return outage_; }
  /// Ring it when a connection is lost, when `leaders` have changed, or to have `send_all` of each outbox called.
  std::shared_ptr<Alarm> alarm() const noexcept { return alarm_; }
  std::shared_ptr<Leaders> leaders() const noexcept { return leaders_; }
  std::shared_ptr<ProducerIds> producer_ids() const noexcept { return producer_ids_; }

  /// A connection that takes requests; nullptr where there is none in time. Throws Error client.closed, or the error
  /// that the session gave up with.
  std::shared_ptr<Connection> wait_for_connection(Deadline deadline);
  /// The same without waiting: nullptr where there is none now. Has the session try again where it gave up.
  std::shared_ptr<Connection> connection();
  /// The one to the leader of a topic, if there is one, else the one to the broker at hand, without waiting.
  std::shared_ptr<Connection> connection_for(const std::string& topic);
  /// Wait for an attempt to connect to the leader of a topic that is watched, for a limited time.
  void wait_for_leader_of(const std::string& topic);
  /// Have an outbox send again after an outage.
  void add(const std::shared_ptr<Outbox>& outbox);

  /// Whether so many attempts are more than there may be.
  bool is_used_up(std::uint64_t attempts) const noexcept;
  /// The wait after so many attempts before this one: doubling, less up to half of it at random.
  std::chrono::milliseconds backoff_after(std::uint64_t attempts);
  /// Wait until then, or until the client is closed.
  void sleep_until(Deadline deadline);

  /// Send a request and wait for its answer, which must be a T, with all waits for a connection; where `repeats`, again
  /// after its connection was lost. `longer` is on top of the request timeout. Throws Error.
  template <typename T, typename Request>
  std::pair<T, std::vector<std::string>> request(const Request& request, bool repeats = true,
                                                 std::chrono::milliseconds longer = std::chrono::milliseconds(0)) {
    Deadline deadline = deadline_in(options_.request_timeout);
    if (deadline != Deadline::max()) deadline += longer;
    for (std::uint64_t attempts = 1;; ++attempts) {
      const auto used = wait_for_connection(deadline);
      if (!used) throw no_connection_in_time();
      try {
        auto reply = used->request(request);
        return Connection::expect<T>(Connection::wait(reply, deadline));
      } catch (const Error&) {
        if (!repeats || is_used_up(attempts) || !used->failure()) throw;
      }
    }
  }

  Error no_connection_in_time() const;

  /// Take no requests any more, wait for the answers to those that were sent, up to the request timeout, and end the
  /// connection. Idempotent. Never throws. The destructor does not wait for answers.
  void close() noexcept;

 private:
  Session(std::string_view url, ClientOptions options);

  std::vector<std::shared_ptr<Connection>> refuse_requests();
  void end() noexcept;
  std::shared_ptr<Connection> usable() const;
  std::chrono::milliseconds keepalive_max() const noexcept;
  std::vector<std::shared_ptr<Outbox>> outboxes();

  // --- by the thread that connects ---

  void keep_connected();
  Error wait_until_lost(const Connection& connection);
  std::shared_ptr<Connection> connect_again();
  std::shared_ptr<Connection> try_to_connect();
  std::shared_ptr<Connection> open_any(const std::function<std::shared_ptr<Connection>(const std::string&)>& open);
  std::shared_ptr<Connection> open_with_ids(const std::string& url);
  bool give_up();
  bool is_closed() const;

  // --- by the thread that goes to leaders ---

  void go_to_leaders();
  std::vector<std::shared_ptr<Connection>> take_lost();
  void describe(Connection& connection, const std::vector<std::string>& topics) const;
  void reach(const Leaders::Target& target, const BrokerInfo& at_hand);

  // --- by the thread that sends ---

  void keep_sending();

  const std::string url_;
  /// A URL for each of its addresses.
  const std::vector<std::string> urls_;
  /// The index of the one that is connected, or was tried last.
  std::size_t at_ = 0;
  const ClientOptions options_;
  const std::shared_ptr<Outage> outage_;
  const std::shared_ptr<Alarm> alarm_ = std::make_shared<Alarm>();
  const std::shared_ptr<Leaders> leaders_ = std::make_shared<Leaders>();
  BrokerInfo broker_;
  std::shared_ptr<ProducerIds> producer_ids_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Connection> connection_;
  /// Connections to leaders, by node.
  std::map<std::uint32_t, std::shared_ptr<Connection>> leading_;
  std::vector<std::weak_ptr<Outbox>> outboxes_;
  /// Why the session gave up, the last time.
  std::optional<Error> gave_up_;
  std::uint64_t gave_up_count_ = 0;
  /// While nobody tries to connect.
  bool rests_ = false;
  bool closed_ = false;
  std::mt19937_64 random_{std::random_device{}()};

  std::mutex end_mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace linn::detail
