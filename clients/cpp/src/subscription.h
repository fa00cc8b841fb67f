// Subscription: what one subscription has been sent and not handed out, and its account of credit. No I/O.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <linn/error.h>

#include "messages.h"
#include "socket.h"

namespace linn::detail {

/// One delivery as it came, not checked yet.
struct Arrival {
  Deliver head;
  std::vector<std::string> batches;
  /// As the batches say it.
  std::uint32_t records = 0;
  /// `Subscription::reading` of its partition when it was taken.
  std::uint64_t reading = 0;
};

/// Law: credit at the broker + records that are held + records owed = the credit of the start. A record is held from
/// its arrival until it is handed out. Of records with leases the broker counts what is held, and nobody here does.
class Subscription {
 public:
  explicit Subscription(std::uint32_t credit) noexcept : credit_(credit), at_broker_(credit) {}

  // --- by the thread that reads ---

  void opened(const Subscribed& subscribed);
  /// Throws Error protocol.malformed where the broker sends more than it has credit for.
  void arrived(const Deliver& head, std::vector<std::string> batches);
  void assigned(const Assigned& assigned);
  /// What waits of a lease that is over is dropped: the broker gives it to whoever is next.
  void lease_ended(const LeaseEnded& lease);
  /// Nothing comes any more; the first reason stays.
  void ended(const Error& reason);

  // --- by the application ---

  Subscribed said() const;
  std::vector<std::int32_t> partitions() const;
  /// Whether records have leases, so that they are to be settled.
  bool leased() const;
  /// The next delivery; std::nullopt in time. Throws the reason of the end, once all that arrived was taken.
  std::optional<Arrival> take(Deadline deadline);
  bool empty() const;
  void release(std::uint64_t records);
  /// Records to give the broker credit for now, half of the credit at a time, or all where `idle`; 0 for none.
  std::uint32_t grant(bool idle);
  /// A member of a group reads again from an earlier place: what is on its way of this partition is dropped until it
  /// comes from there.
  void set_back(std::int32_t partition);
  /// Which reading of a partition this is: another number when it was lost or set back since, so that what was taken
  /// and not handed out is not to be handed out any more.
  std::uint64_t reading(std::int32_t partition) const;
  /// Whether the lease of the delivery that was taken last is known to be over.
  bool lease_is_over() const;
  /// Nobody takes anything any more.
  void abandon();
  bool abandoned() const;

 private:
  bool is_leased() const noexcept;
  bool is_stale(const Arrival& arrival);
  void drop(std::int32_t partition);
  std::uint64_t reading_of(std::int32_t partition) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  const std::uint32_t credit_;
  std::uint64_t at_broker_;
  std::uint64_t held_ = 0;
  std::uint64_t owed_ = 0;
  Subscribed said_;
  std::deque<Arrival> queue_;
  /// What was taken last.
  Deliver taken_;
  bool taken_is_over_ = false;
  std::vector<std::int32_t> owned_;
  /// Behind the last record that arrived of each partition of a group.
  std::map<std::int32_t, std::int64_t> ends_;
  std::map<std::int32_t, std::uint64_t> readings_;
  /// Partitions that were set back: where the next stale delivery begins.
  std::map<std::int32_t, std::int64_t> stale_;
  std::optional<Error> end_;
  bool abandoned_ = false;
};

}  // namespace linn::detail
