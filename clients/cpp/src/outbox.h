// Outbox: a producer's batches, from when they are sent until it is known what became of them.
//
// Laws:
// - All batches in flight are on one connection: to the leader of the topic, or to the broker at hand. Later ones go to
//   another one when all are answered, or their connection is lost.
// - Batches go out in the order of the calls. After the connection was lost, all that were not answered are sent again
//   in that order.
// - If the broker refuses a batch for now, nothing more is sent until those behind it have been answered; then it is
//   sent again, and they after it.
// - With a lane, batches are numbered when they are first sent, and keep their numbers, so that the broker stores each
//   once and in order. They get new numbers only when it is known that they are not stored.
// - A batch that is not confirmed when the request timeout is over fails, and is not sent any more. Each batch is
//   confirmed or fails once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "alarm.h"
#include "connection.h"
#include "lane.h"
#include "leaders.h"
#include "outage.h"

namespace linn::detail {

class Session;

/// One batch. Guarded by the outbox's mutex.
struct Shipment {
  /// Shared with whoever is sending it; nullptr once it is known what became of it.
  std::shared_ptr<std::string> batch;
  Deadline deadline;
  /// Times that it was sent, without those after which a batch before it was found missing.
  std::uint64_t attempts = 0;
  /// Times that it was sent without an answer, so that it may be stored.
  std::uint64_t unanswered = 0;
  /// Whether it has the numbers that it keeps.
  bool is_numbered = false;
  /// Whether it was sent and an answer may come.
  bool is_in_flight = false;
  /// Why the broker refused it when it was last sent.
  std::optional<Error> refusal;
  std::optional<Placement> placement;
  std::optional<Error> error;
  /// Whether the application has heard of the error.
  bool is_told = false;

  bool is_done() const noexcept { return placement || error; }
};

class Outbox : public std::enable_shared_from_this<Outbox> {
 public:
  /// `alarm` rings when `send_all` is to be called; without a `lane`, batches have no numbers. Its topic is watched by
  /// `leaders`, for as long as it lives.
  Outbox(Publish publish, const ClientOptions& options, std::shared_ptr<const Outage> outage,
         std::shared_ptr<Alarm> alarm, std::shared_ptr<Leaders> leaders, std::unique_ptr<Lane> lane);
  ~Outbox();

  // --- by the application ---

  /// Take a batch, to be numbered, sealed and sent by the next `send_all`. Throws Error client.closed.
  std::shared_ptr<Shipment> put(std::string batch);
  /// Wait for the end of a shipment. Throws the error that it failed with, RecordsRefused if some records were refused.
  Placement wait(Shipment& shipment);
  /// Wait for its end; the error that it failed with, unless somebody was told of it.
  std::optional<Error> wait_for_untold(Shipment& shipment);
  bool is_done(const Shipment& shipment) const;

  // --- by any thread ---

  /// Send all that is not in flight, in order, unless a refusal has them wait, or batches are in flight on another
  /// connection than the one that the session has for the topic now.
  void send_all(Session& session);
  /// Fail what is not in flight: there is no connection, and nobody looks for one.
  void fail_waiting(const Error& error);
  /// The same, and nothing is taken any more.
  void close(const Error& error);

 private:
  struct Next {
    std::shared_ptr<Shipment> shipment;
    std::shared_ptr<std::string> batch;
    /// The numbers to write into the batch, unless it has them already.
    std::optional<ProducerNumbers> numbers;
  };

  bool turn_to(const Connection& connection);
  Next next_to_send();
  void put_back(Shipment& shipment);
  void answered(Shipment& shipment, Outcome outcome, bool is_lost);
  void refused(Shipment& shipment, const Error& error, bool is_lost);
  static std::optional<RecordsRefused> refusal_in(const Shipment& shipment);
  void wait_until_done(Shipment& shipment, std::unique_lock<std::mutex>& lock);
  void fail(Shipment& shipment, const Error& error);
  void look_at_time();
  Error overdue(const Shipment& shipment) const;

  // --- holding: under `mutex_` ---

  void hold();
  void go_on();
  void release();
  Shipment* first_waiting() const;
  Shipment* first_in_flight() const;

  const Publish publish_;
  const ClientOptions options_;
  const std::shared_ptr<const Outage> outage_;
  const std::shared_ptr<Alarm> alarm_;
  const std::shared_ptr<Leaders> leaders_;
  /// Held while batches are sent, so that they go in order.
  std::mutex sending_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<Shipment>> open_;
  const std::unique_ptr<Lane> lane_;
  /// The connection of those in flight; it is only compared, since it may be gone when there are none.
  const Connection* at_ = nullptr;
  /// Whether batches wait for another connection, until those in flight are answered.
  bool turns_ = false;
  /// When batches may be sent again; `max()`: not before those in flight have been answered.
  Clock::time_point held_until_ = not_held;
  std::mt19937_64 random_{std::random_device{}()};
  std::optional<Error> closed_;

  static constexpr Clock::time_point not_held = Clock::time_point::min();
};

}  // namespace linn::detail
