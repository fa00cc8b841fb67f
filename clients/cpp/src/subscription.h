// Subscription: one of a consumer's, on one connection: what it has been sent and not handed out, its account of
// credit, and its leases. No I/O.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <linn/error.h>

#include "messages.h"
#include "prefetch.h"
#include "socket.h"

namespace linn::detail {

class Subscription;

/// The subscription that records came by.
struct Origin {
  std::weak_ptr<const Subscription> subscription;
};

/// One delivery as it came, not checked yet.
struct Arrival {
  Deliver head;
  std::vector<std::string> batches;
  /// As the batches say it.
  std::uint32_t records = 0;
  std::shared_ptr<const Origin> origin = {};
};

/// The limits of one subscription.
struct Limits {
  /// Records that may be on their way or waiting.
  std::uint32_t prefetch = prefetch_max;
  /// Whether a queue's follows the application, from `prefetch_first` on; `prefetch` is for streams then.
  bool adapts = false;
  /// The time from its delivery for which a lease is renewed; 0: none.
  std::chrono::milliseconds renewal_max{0};

  /// The credit to subscribe with, when it is not known yet whether it is a queue.
  std::uint32_t first_credit() const noexcept { return adapts ? std::min(prefetch, prefetch_first) : prefetch; }
};

/// Laws: where there are no leases, credit at the broker + records that are held + records owed = the credit; a record
/// is held from its arrival until it is handed out. Of records with leases the broker counts what is held. When half of
/// a lease has passed, what the application has not looked at is released for others to have, and what it has a copy of
/// the `Origin` of is renewed.
class Subscription : public std::enable_shared_from_this<Subscription> {
 public:
  explicit Subscription(const Limits& limits) noexcept
      : limits_(limits), credit_(limits.first_credit()), at_broker_(credit_) {}

  // --- by the thread that reads ---

  void opened(const Subscribed& subscribed);
  /// Throws Error protocol.malformed where the broker sends more than it has credit for.
  void arrived(const Deliver& head, std::vector<std::string> batches);
  void assigned(const Assigned& assigned);
  /// What waits of a lease that is over is dropped: the broker gives it to whoever is next.
  void lease_ended(const LeaseEnded& lease);
  /// Nothing comes any more; the first reason stays.
  void ended(const Error& reason);
  /// Nothing comes any more, because the connection is over; what was leased is worth nothing.
  void lost(const Error& reason);
  /// Settlements that are due now: of leases half of which has passed.
  std::vector<Settlement> look(Clock::time_point now);
  Clock::time_point next_look() const;

  // --- by the application ---

  Subscribed said() const;
  std::vector<std::int32_t> partitions() const;
  /// Whether records have leases, so that they are to be settled.
  bool leased() const;
  /// The application is about to take more.
  void wants(Clock::time_point now);
  /// Whether it has all there may be, so that it would wait for ever if it settled nothing.
  bool may_starve() const;
  void starved();
  /// The next delivery; std::nullopt in time. Throws the reason of the end, once all that arrived was taken.
  std::optional<Arrival> take(Deadline deadline);
  bool empty() const;
  void release(std::uint64_t records);
  /// Credit to tell the broker of now; half of it at a time, or all where `idle`; 0 for none.
  std::uint32_t grant(bool idle);
  /// The records of a delivery that was taken have these offsets, with gaps between them.
  void has_gaps(const Deliver& head, std::vector<std::int64_t> offsets);
  /// Some records are settled.
  void settled(const std::vector<Settlement>& entries);
  /// A member of a group reads again from an earlier place: what is on its way of this partition is dropped until it
  /// comes from there.
  void set_back(std::int32_t partition);
  /// The records up to this offset of the delivery that was taken last are handed out; false where nothing of it may be
  /// handed out any more: its lease is over, or it was released, or its partition was lost or set back.
  bool hand_out(std::int64_t end);
  /// Whether the connection is over, rather than the subscription.
  bool is_lost() const;
  /// The next offset of a reader, by partition.
  std::map<std::int32_t, std::int64_t> ends() const;
  /// Nobody takes anything any more; what is to be given back of what nobody has looked at.
  std::vector<Settlement> abandon();
  bool abandoned() const;

 private:
  using LeaseKey = std::pair<std::int32_t, std::uint64_t>;
  struct Lease {
    Clock::time_point since;
    /// When it is over at the latest: later than the broker has it, whose clock began before.
    Clock::time_point until;
    /// Records that were delivered under it, and neither settled nor lost.
    std::uint64_t held = 0;
    std::weak_ptr<const Origin> origin;
    /// Of its records, ascending, where a queue with an order has delivered scattered ones, and they were taken.
    std::vector<std::int64_t> offsets = {};

    /// Records from an offset up to another that are still held, at most.
    std::uint64_t count(std::int64_t first, std::int64_t end) const noexcept;
  };

  bool is_leased() const noexcept;
  bool is_stale(const Arrival& arrival);
  bool is_over(const Deliver& head, Clock::time_point now) const;
  void drop(std::int32_t partition);
  void forget_lease(const LeaseKey& key);
  void window_changed();
  std::vector<Settlement> release_unread(const std::vector<LeaseKey>* due);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  const Limits limits_;
  std::optional<AdaptivePrefetch> adaptive_;
  std::int64_t credit_;
  std::int64_t at_broker_;
  std::int64_t held_ = 0;
  std::int64_t owed_ = 0;
  /// Whether the broker has to hear of `credit_`, with leases.
  bool credit_is_news_ = false;
  Subscribed said_;
  std::deque<Arrival> queue_;
  /// Records in it.
  std::uint64_t queued_ = 0;
  std::map<LeaseKey, Lease> leases_;
  /// Records that are held under them.
  std::uint64_t leased_ = 0;
  Clock::time_point next_look_ = Clock::time_point::max();
  /// The delivery that was taken last, and up to where it was handed out.
  Deliver taken_;
  std::int64_t handed_out_ = 0;
  std::int64_t taken_end_ = 0;
  bool taken_is_over_ = false;
  std::vector<std::int32_t> owned_;
  /// Behind the last record that arrived of each partition of a stream.
  std::map<std::int32_t, std::int64_t> ends_;
  /// Partitions that were set back: where the next stale delivery begins.
  std::map<std::int32_t, std::int64_t> stale_;
  std::optional<Error> end_;
  bool lost_ = false;
  bool abandoned_ = false;
};

}  // namespace linn::detail
