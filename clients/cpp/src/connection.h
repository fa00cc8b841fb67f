// Connection: one socket, the thread that reads it, and the requests that wait for an answer.
//
// Laws: whoever calls sends in its own thread; the thread that reads never waits for one that sends, so that a broker
// which stops reading until its answers are read is always read. Every request ends: with its answer, or with the
// failure of the connection.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "alarm.h"
#include "codec.h"
#include "frame_reader.h"
#include "login.h"
#include "messages.h"
#include "socket.h"
#include "subscription.h"

namespace linn::detail {

struct Reply {
  Incoming message;
  std::vector<std::string> batches;
};

/// How a request ends. An error is thrown by who waits, in a thread of its own.
using Outcome = std::variant<Reply, Error>;
using PendingReply = std::future<Outcome>;
/// Told how a request ends, by the thread that reads or by the one that finds the connection lost: it must not wait,
/// nor use or own the connection. `is_lost`: by the end of the connection.
using OnOutcome = std::function<void(Outcome outcome, bool is_lost)>;

class Connection {
 public:
  /// `alarm` rings when the connection is lost. `keepalive_max`: the longest interval of signs of life, whatever the
  /// broker says. Throws as `Client::connect`.
  static std::shared_ptr<Connection> open(std::string_view url, ClientOptions options,
                                          std::shared_ptr<Alarm> alarm = std::make_shared<Alarm>(),
                                          ProducerClaim ids = {},
                                          std::chrono::milliseconds keepalive_max = std::chrono::milliseconds::max());
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const BrokerInfo& broker() const noexcept { return broker_; }
  /// Who the client is to the broker.
  const std::string& user() const noexcept { return user_; }
  const ClientOptions& options() const noexcept { return options_; }

  /// Send a request; its answer is to come, or an Error. Throws Error connection.lost, request.timeout.
  ///
  /// `opens` is what a `subscribe` is for: it is known to the thread that reads before the first delivery.
  template <typename Request>
  PendingReply request(const Request& request, std::shared_ptr<Subscription> opens = nullptr) {
    auto promise = std::make_shared<std::promise<Outcome>>();
    const auto told = [promise](Outcome outcome, bool) { promise->set_value(std::move(outcome)); };
    send([&](std::uint64_t correlation) { return encode(correlation, request); }, {}, told, std::move(opens));
    return promise->get_future();
  }

  /// Send a request. Throws Error connection.lost, request.timeout; then `told` may have been called or not.
  template <typename Request>
  void ask(const Request& request, OnOutcome told) {
    send([&](std::uint64_t correlation) { return encode(correlation, request); }, {}, std::move(told), nullptr);
  }

  /// Send a batch. Throws Error connection.lost, request.timeout; then `told` may have been called or not.
  void publish(const Publish& publish, std::string_view batch, OnOutcome told) {
    send([&](std::uint64_t correlation) { return encode(correlation, publish, 1); }, batch, std::move(told), nullptr);
  }

  /// Why the connection is over; std::nullopt while it is not.
  std::optional<Error> failure() const;
  /// Whether the broker takes no new requests here: it is stopping.
  bool drains() const noexcept { return drains_; }

  /// Send what wants no answer. Throws Error connection.lost, request.timeout.
  template <typename Request>
  void post(const Request& request) {
    write(encode(0, request), {});
  }

  /// Settle without waiting, and without hearing of refusals.
  void settle_quietly(std::uint32_t subscription, const std::vector<Settlement>& entries);

  /// Release what a subscription that ends has not read.
  void give_back(std::uint32_t subscription, const std::vector<Settlement>& unread);

  /// End a subscription without waiting: what was not handed out goes back, and the attempt does not count. Never
  /// throws.
  void unsubscribe(const std::shared_ptr<Subscription>& subscription) noexcept;

  /// Drop what comes of a subscription from now on; whether it was there.
  bool forget(const Subscription& subscription) noexcept;

  /// Wait for all answers, up to the request timeout.
  void wait_for_answers() const;
  /// Let the broker read what was sent, and end the connection. Idempotent. Never throws.
  void end() noexcept;

  /// The answer, which must be a T. Throws Error: what the request failed with, request.timeout, protocol.malformed.
  template <typename T>
  T wait_for(PendingReply& reply) const {
    return expect<T>(wait(reply, deadline_in(options_.request_timeout))).first;
  }

  template <typename T>
  static std::pair<T, std::vector<std::string>> expect(Reply reply) {
    T* message = std::get_if<T>(&reply.message);
    if (message == nullptr)
      throw Error("protocol.malformed", "the broker answered with a message of the wrong type");
    return {std::move(*message), std::move(reply.batches)};
  }

  /// The answer, of any kind. Throws as `wait_for`.
  static Reply wait(PendingReply& reply, Deadline deadline);

 private:
  struct Waiting {
    OnOutcome told;
    std::shared_ptr<Subscription> opens;
  };

  Connection(Socket socket, ClientOptions options, std::shared_ptr<Alarm> alarm);

  template <typename Encode>
  void send(const Encode& encode, std::string_view batch, OnOutcome told, std::shared_ptr<Subscription> opens) {
    const std::uint64_t correlation = expect_answer(std::move(told), std::move(opens));
    try {
      write(encode(correlation), batch);
    } catch (...) {
      forget(correlation);
      throw;
    }
  }

  std::uint64_t expect_answer(OnOutcome told, std::shared_ptr<Subscription> opens);
  void forget(std::uint64_t correlation) noexcept;
  void write(std::string_view frame, std::string_view batch);

  // --- before there are threads ---

  /// `is_private`: nobody in between can read what is sent.
  void welcome(Deadline deadline, ProducerClaim ids, bool is_private);
  Incoming log_in(const Offer& offer, Deadline deadline);
  template <typename Message>
  Incoming asked(const Message& message, Deadline deadline);

  // --- by the thread that reads ---

  void run() noexcept;
  bool wait_for_events();
  void receive();
  void take_all();
  void take(std::string message);
  void dispatch();
  void answer(std::uint64_t correlation, Reply reply);
  void push(Incoming message, std::vector<std::string> batches);
  std::shared_ptr<Subscription> subscription_of(std::uint32_t number);
  void keep_alive();
  void look_at_leases();
  std::uint64_t next_correlation();
  void post_soon(const std::string& frame);
  void send_soon();
  void fail(const Error& error) noexcept;
  [[noreturn]] void throw_failure(const Error& error);

  Socket socket_;
  Socket wake_;
  const ClientOptions options_;
  const std::shared_ptr<Alarm> alarm_;
  BrokerInfo broker_;
  std::string user_;
  std::chrono::milliseconds keepalive_{0};
  std::atomic<bool> drains_{false};

  std::mutex write_mutex_;
  /// Small frames of the thread that reads, which go ahead of the next write. Guarded by `soon_mutex_`.
  std::string soon_;
  std::mutex soon_mutex_;
  std::atomic<Clock::rep> last_sent_{0};

  mutable std::mutex mutex_;
  mutable std::condition_variable answered_;
  std::map<std::uint64_t, Waiting> waiting_;
  std::map<std::uint32_t, std::shared_ptr<Subscription>> subscriptions_;
  std::uint64_t last_correlation_ = 0;
  std::optional<Error> failure_;
  std::atomic<bool> closing_{false};
  std::atomic<Clock::rep> closing_until_{0};

  FrameReader frames_;
  std::vector<char> buffer_;
  std::optional<IncomingFrame> frame_;
  std::vector<std::string> batches_;
  std::size_t batch_bytes_ = 0;
  Clock::time_point next_look_ = Clock::time_point::max();
  Clock::time_point last_heard_;
  Clock::time_point last_pinged_;
  std::thread reader_;
  std::mutex end_mutex_;
};

}  // namespace linn::detail
