// Outbox: a producer's batches, from when they are sent until it is known what became of them.
//
// Laws: batches go out in the order of the calls. After the connection was lost, all that were not answered are sent
// again in that order (the broker may have stored some already: then they are there twice). What is not confirmed when
// the request timeout is over fails and is not sent any more. Each batch is confirmed or fails once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "connection.h"
#include "outage.h"

namespace linn::detail {

/// One batch. Guarded by the outbox's mutex.
struct Shipment {
  /// Shared with whoever is sending it; nullptr once it is known what became of it.
  std::shared_ptr<const std::string> batch;
  Deadline deadline;
  /// Times that it was sent.
  std::uint64_t attempts = 0;
  /// Whether it was sent and an answer may come.
  bool is_in_flight = false;
  std::optional<Placement> placement;
  std::optional<Error> error;
  /// Whether the application has heard of the error.
  bool is_told = false;

  bool is_done() const noexcept { return placement || error; }
};

class Outbox : public std::enable_shared_from_this<Outbox> {
 public:
  Outbox(Publish publish, const ClientOptions& options, std::shared_ptr<const Outage> outage);

  // --- by the application ---

  /// Take a batch, to be sent by the next `send_all`. Throws Error client.closed.
  std::shared_ptr<Shipment> put(std::string batch);
  /// Wait for the end of a shipment. Throws the error that it failed with.
  Placement wait(Shipment& shipment);
  /// Wait for its end; the error that it failed with, unless somebody was told of it.
  std::optional<Error> wait_for_untold(Shipment& shipment);
  bool is_done(const Shipment& shipment) const;

  // --- by any thread ---

  /// Send all that is not in flight, in order.
  void send_all(const std::shared_ptr<Connection>& connection);
  /// Fail what is not in flight: there is no connection, and nobody looks for one.
  void fail_waiting(const Error& error);
  /// The same, and nothing is taken any more.
  void close(const Error& error);

 private:
  std::pair<std::shared_ptr<Shipment>, std::shared_ptr<const std::string>> next_to_send();
  void put_back(Shipment& shipment);
  void answered(Shipment& shipment, Outcome outcome, bool is_lost);
  void wait_until_done(Shipment& shipment, std::unique_lock<std::mutex>& lock);
  void fail(Shipment& shipment, const Error& error);
  void fail_overdue();
  Error overdue(const Shipment& shipment) const;

  const Publish publish_;
  const std::chrono::milliseconds request_timeout_;
  const std::optional<std::uint32_t> retries_max_;
  const std::shared_ptr<const Outage> outage_;
  /// Held while batches are sent, so that they go in order.
  std::mutex sending_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<Shipment>> open_;
  std::optional<Error> closed_;
};

}  // namespace linn::detail
