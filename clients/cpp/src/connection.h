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

#include "codec.h"
#include "frame_reader.h"
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

class Connection {
 public:
  /// Throws as `Client::connect`.
  static std::shared_ptr<Connection> open(std::string_view url, ClientOptions options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const BrokerInfo& broker() const noexcept { return broker_; }
  const ClientOptions& options() const noexcept { return options_; }

  /// Send a request; its answer is to come, or an Error. Throws Error connection.lost, request.timeout.
  ///
  /// `opens` is what a `subscribe` is for: it is known to the thread that reads before the first delivery.
  template <typename Request>
  PendingReply request(const Request& request, std::shared_ptr<Subscription> opens = nullptr) {
    return send([&](std::uint64_t correlation) { return encode(correlation, request); }, {}, std::move(opens));
  }

  PendingReply publish(const Publish& publish, std::string_view batch) {
    return send([&](std::uint64_t correlation) { return encode(correlation, publish, 1); }, batch, nullptr);
  }

  /// Send what wants no answer. Throws Error connection.lost, request.timeout.
  template <typename Request>
  void post(const Request& request) {
    write(encode(0, request), {});
  }

  /// End a subscription without waiting. Never throws.
  void unsubscribe(const std::shared_ptr<Subscription>& subscription) noexcept;

  /// Drop what comes of a subscription from now on; whether it was there.
  bool forget(const Subscription& subscription) noexcept;

  /// Wait for all answers, up to the request timeout, and end the connection. Idempotent. Never throws.
  void close() noexcept;

  /// The answer, which must be a T. Throws Error: what the request failed with, request.timeout, protocol.malformed.
  template <typename T>
  T wait_for(PendingReply& reply) const {
    return expect<T>(wait(reply)).first;
  }

  template <typename T>
  static std::pair<T, std::vector<std::string>> expect(Reply reply) {
    T* message = std::get_if<T>(&reply.message);
    if (message == nullptr)
      throw Error("protocol.malformed", "the broker answered with another message than was asked for");
    return {std::move(*message), std::move(reply.batches)};
  }

  /// As `wait_for`, for an answer of any kind; `longer` is what the request itself asked to wait.
  Reply wait(PendingReply& reply, std::chrono::milliseconds longer = std::chrono::milliseconds(0)) const;

 private:
  struct Waiting {
    std::promise<Outcome> promise;
    std::shared_ptr<Subscription> opens;
  };

  Connection(Socket socket, ClientOptions options);

  template <typename Encode>
  PendingReply send(const Encode& encode, std::string_view batch, std::shared_ptr<Subscription> opens) {
    auto [correlation, reply] = expect_answer(std::move(opens));
    try {
      write(encode(correlation), batch);
    } catch (...) {
      forget(correlation);
      throw;
    }
    return std::move(reply);
  }

  std::pair<std::uint64_t, PendingReply> expect_answer(std::shared_ptr<Subscription> opens);
  void forget(std::uint64_t correlation) noexcept;
  void write(std::string_view frame, std::string_view batch);

  // --- by the thread that reads ---

  void welcome(Deadline deadline);
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
  std::uint64_t next_correlation();
  void post_soon(const std::string& frame);
  void send_soon();
  void fail(const Error& error) noexcept;
  [[noreturn]] void throw_failure(const Error& error);
  void end() noexcept;

  Socket socket_;
  Socket wake_;
  const ClientOptions options_;
  BrokerInfo broker_;
  std::chrono::milliseconds keepalive_{0};

  std::mutex write_mutex_;
  /// Small frames of the thread that reads, which go ahead of the next write. Guarded by `soon_mutex_`.
  std::string soon_;
  std::mutex soon_mutex_;
  std::atomic<Clock::rep> last_sent_{0};

  std::mutex mutex_;
  std::condition_variable answered_;
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
  Clock::time_point last_heard_;
  Clock::time_point last_pinged_;
  std::thread reader_;
  std::mutex end_mutex_;
};

}  // namespace linn::detail
