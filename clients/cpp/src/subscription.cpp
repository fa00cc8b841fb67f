#include "subscription.h"

#include <algorithm>
#include <utility>

#include "bytes.h"

namespace linn::detail {
namespace {

/// Looks at a lease before it ends.
constexpr int looks_per_lease = 4;
constexpr std::size_t base_offset_at = 16, count_at = 52, span_at = 120, counted_bytes = 124;

std::uint32_t count_of(const std::string& batch) noexcept {
  return batch.size() < counted_bytes ? 0 : load<std::uint32_t>(batch.data() + count_at);
}

std::int64_t base_offset_of(const std::string& batch) noexcept {
  return batch.size() < counted_bytes ? 0 : load<std::int64_t>(batch.data() + base_offset_at);
}

std::int64_t end_offset_of(const std::string& batch) noexcept {
  return batch.size() < counted_bytes ? 0 : offset_behind(base_offset_of(batch), load<std::uint32_t>(batch.data() + span_at));
}

}  // namespace

void Subscription::opened(const Subscribed& subscribed) {
  const std::lock_guard lock(mutex_);
  said_ = subscribed;
  if (limits_.adapts && said_.kind == SubscriptionKind::shared) {
    adaptive_.emplace(std::chrono::milliseconds(said_.lease_ms), Clock::now());
    return;
  }
  // A stream's consumer has all from the start.
  owed_ = static_cast<std::int64_t>(limits_.prefetch) - credit_;
  credit_ = limits_.prefetch;
}

void Subscription::arrived(const Deliver& head, std::vector<std::string> batches) {
  const std::lock_guard lock(mutex_);
  std::uint64_t records = 0;
  for (const std::string& batch : batches) records += count_of(batch);
  if (head.passed_to > 0 && said_.kind == SubscriptionKind::reader) ends_[head.partition] = head.passed_to;
  Arrival arrival{head, std::move(batches), static_cast<std::uint32_t>(records)};
  const bool unwanted = arrival.batches.empty() || abandoned_ || is_stale(arrival);
  if (!is_leased()) {
    const auto count = static_cast<std::int64_t>(records);
    if (count > at_broker_) throw Error("protocol.malformed", "the broker sent more records than it has credit for");
    at_broker_ -= count;
    (unwanted ? owed_ : held_) += count;
  }
  if (unwanted) return;
  if (is_leased()) {
    const Clock::time_point now = Clock::now();
    const auto time = std::chrono::milliseconds(said_.lease_ms);
    const auto [lease, is_new] = leases_.try_emplace({head.partition, head.delivery_id});
    if (is_new) lease->second = {now, now + time, 0, {}, {}};
    lease->second.held += records;
    leased_ += records;
    if (next_look_ == Clock::time_point::max()) next_look_ = now + time / looks_per_lease;
  }
  queued_ += records;
  queue_.push_back(std::move(arrival));
  changed_.notify_one();
}

/// Whether a member must not see it: the partition is another's by now, or it was sent before reading was set back.
bool Subscription::is_stale(const Arrival& arrival) {
  if (said_.kind == SubscriptionKind::shared) return false;
  const std::int32_t partition = arrival.head.partition;
  const std::int64_t first = base_offset_of(arrival.batches.front());
  const std::int64_t end = end_offset_of(arrival.batches.back());
  if (said_.kind == SubscriptionKind::reader) {
    ends_[partition] = end;
    return false;
  }
  if (std::ranges::find(owned_, partition) == owned_.end()) return true;
  ends_[partition] = end;
  const auto stale = stale_.find(partition);
  if (stale == stale_.end()) return false;
  // What was under way goes on where the last delivery ended; what begins elsewhere was read after the setting back.
  if (stale->second == first) {
    stale->second = end;
    return true;
  }
  stale_.erase(stale);
  return false;
}

void Subscription::assigned(const Assigned& assigned) {
  const std::lock_guard lock(mutex_);
  if (said_.kind == SubscriptionKind::shared) return;  // What a queue's consumer has stays its own.
  const auto lost = [&](std::int32_t partition) {
    return std::ranges::find(assigned.partitions, partition) == assigned.partitions.end();
  };
  for (const std::int32_t partition : std::exchange(owned_, assigned.partitions)) {
    if (!lost(partition)) continue;
    drop(partition);
    ends_.erase(partition);
    stale_.erase(partition);
  }
}

/// Hand out nothing more of a partition: neither what waits, nor the rest of what was taken.
void Subscription::drop(std::int32_t partition) {
  if (taken_.partition == partition) taken_is_over_ = true;
  std::erase_if(queue_, [&](const Arrival& arrival) {
    if (arrival.head.partition != partition) return false;
    held_ -= arrival.records;
    owed_ += arrival.records;
    queued_ -= arrival.records;
    return true;
  });
}

void Subscription::lease_ended(const LeaseEnded& lease) {
  const std::lock_guard lock(mutex_);
  const auto is_of_lease = [&](const Deliver& head) {
    return head.partition == lease.partition && head.delivery_id == lease.delivery_id;
  };
  std::erase_if(queue_, [&](const Arrival& arrival) {
    if (!is_of_lease(arrival.head)) return false;
    queued_ -= arrival.records;
    return true;
  });
  if (is_of_lease(taken_)) taken_is_over_ = true;
  forget_lease({lease.partition, lease.delivery_id});
}

void Subscription::has_gaps(const Deliver& head, std::vector<std::int64_t> offsets) {
  const std::lock_guard lock(mutex_);
  const auto found = leases_.find({head.partition, head.delivery_id});
  if (found != leases_.end()) found->second.offsets = std::move(offsets);
}

std::uint64_t Subscription::Lease::count(std::int64_t first, std::int64_t end) const noexcept {
  if (end == whole_lease) return held;
  const auto before = [&](std::int64_t offset) { return std::ranges::lower_bound(offsets, offset) - offsets.begin(); };
  const std::int64_t named = offsets.empty() ? end - first : before(end) - before(first);
  return std::min(held, static_cast<std::uint64_t>(std::max<std::int64_t>(0, named)));
}

void Subscription::forget_lease(const LeaseKey& key) {
  const auto found = leases_.find(key);
  if (found == leases_.end()) return;
  leased_ -= found->second.held;
  leases_.erase(found);
}

bool Subscription::is_over(const Deliver& head, Clock::time_point now) const {
  if (!is_leased()) return false;
  const auto found = leases_.find({head.partition, head.delivery_id});
  return found != leases_.end() && now >= found->second.until;
}

void Subscription::ended(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!end_) end_ = reason;
  changed_.notify_all();
}

void Subscription::lost(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!end_) {
    end_ = reason;
    lost_ = true;
  }
  if (is_leased() || said_.kind == SubscriptionKind::group) {
    queue_.clear();
    queued_ = 0;
    leases_.clear();
    leased_ = 0;
    taken_is_over_ = true;
  }
  changed_.notify_all();
}

bool Subscription::is_lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

std::map<std::int32_t, std::int64_t> Subscription::ends() const {
  const std::lock_guard lock(mutex_);
  return said_.kind == SubscriptionKind::reader ? ends_ : std::map<std::int32_t, std::int64_t>();
}

Subscribed Subscription::said() const {
  const std::lock_guard lock(mutex_);
  return said_;
}

std::vector<std::int32_t> Subscription::partitions() const {
  const std::lock_guard lock(mutex_);
  return owned_;
}

bool Subscription::leased() const {
  const std::lock_guard lock(mutex_);
  return is_leased();
}

bool Subscription::is_leased() const noexcept { return said_.kind == SubscriptionKind::shared && said_.lease_ms > 0; }

// --- leases ---

Clock::time_point Subscription::next_look() const {
  const std::lock_guard lock(mutex_);
  return next_look_;
}

std::vector<Settlement> Subscription::look(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (now < next_look_ || end_) return {};
  const auto time = std::chrono::milliseconds(said_.lease_ms);
  std::vector<LeaseKey> due;
  for (const auto& [key, lease] : leases_)
    if (lease.until < now + time / 2) due.push_back(key);
  std::vector<Settlement> entries = release_unread(&due);
  for (const LeaseKey& key : due) {
    const auto found = leases_.find(key);
    if (found == leases_.end()) continue;
    Lease& lease = found->second;
    const auto left = std::min<Clock::duration>(time, lease.since + limits_.renewal_max - now);
    if (now >= lease.until)
      forget_lease(key);
    else if (lease.held > 0 && !lease.origin.expired() && lease.until < now + left) {
      const auto left_ms = std::chrono::round<std::chrono::milliseconds>(left);
      lease.until = now + left_ms;
      const auto ms = static_cast<std::uint32_t>(left_ms.count());
      entries.push_back({key.first, key.second, whole_lease, whole_lease, Verdict::extend, ms});
    }
  }
  next_look_ = leases_.empty() ? Clock::time_point::max() : now + time / looks_per_lease;
  return entries;
}

/// Take back what was not handed out, of these leases or of all. Under `mutex_`.
std::vector<Settlement> Subscription::release_unread(const std::vector<LeaseKey>* due) {
  std::vector<Settlement> entries;
  if (!is_leased()) return entries;
  const Clock::time_point now = Clock::now();
  const auto give_back = [&](const Deliver& head, std::int64_t first, std::int64_t end) {
    const LeaseKey key{head.partition, head.delivery_id};
    const auto found = leases_.find(key);
    if (found == leases_.end() || now >= found->second.until) return;
    entries.push_back({head.partition, head.delivery_id, first, end, Verdict::release, 0});
    const std::uint64_t records = found->second.count(first, end);
    found->second.held -= records;
    leased_ -= records;
    if (found->second.held == 0) leases_.erase(found);
  };
  const auto is_due = [&](const Deliver& head) {
    return due == nullptr || std::ranges::find(*due, LeaseKey{head.partition, head.delivery_id}) != due->end();
  };
  if (!taken_is_over_ && handed_out_ < taken_end_ && is_due(taken_)) {
    give_back(taken_, handed_out_, taken_end_);
    taken_is_over_ = true;
  }
  std::erase_if(queue_, [&](const Arrival& arrival) {
    if (!is_due(arrival.head)) return false;
    give_back(arrival.head, base_offset_of(arrival.batches.front()), end_offset_of(arrival.batches.back()));
    queued_ -= arrival.records;
    return true;
  });
  return entries;
}

void Subscription::settled(const std::vector<Settlement>& entries) {
  const std::lock_guard lock(mutex_);
  for (const Settlement& entry : entries) {
    const auto found = leases_.find({entry.partition, entry.delivery_id});
    if (found == leases_.end()) continue;
    Lease& lease = found->second;
    const Clock::time_point now = Clock::now();
    if (entry.verdict == Verdict::extend) {
      if (now < lease.until) lease.until = now + std::chrono::milliseconds(entry.ms);
      continue;
    }
    const std::uint64_t records = lease.count(entry.first, entry.end);
    lease.held -= records;
    leased_ -= records;
    if (adaptive_ && entry.verdict != Verdict::release) adaptive_->settled(records);
    if (lease.held == 0) leases_.erase(found);
  }
}

// --- taking ---

void Subscription::wants(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (!adaptive_ || (!queue_.empty() && !adaptive_->is_due())) return;
  if (adaptive_->adapt(now, leased_ > queued_ ? leased_ - queued_ : 0)) window_changed();
}

bool Subscription::may_starve() const {
  const std::lock_guard lock(mutex_);
  return adaptive_ && queue_.empty() && leased_ >= adaptive_->window() && adaptive_->window() < prefetch_max;
}

void Subscription::starved() {
  const std::lock_guard lock(mutex_);
  if (adaptive_ && queue_.empty() && leased_ >= adaptive_->window() && adaptive_->starved()) window_changed();
}

void Subscription::window_changed() {
  const auto window = static_cast<std::int64_t>(adaptive_->window());
  owed_ += window - credit_;
  credit_ = window;
  credit_is_news_ = true;
}

std::optional<Arrival> Subscription::take(Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto changed = [&] { return !queue_.empty() || end_; };
    const bool waits = !changed();
    if (!changed_.wait_until(lock, deadline, changed)) return std::nullopt;
    if (queue_.empty()) throw Error(*end_);
    const Clock::time_point now = Clock::now();
    if (waits && adaptive_) adaptive_->resumed(now);
    Arrival arrival = std::move(queue_.front());
    queue_.pop_front();
    queued_ -= arrival.records;
    if (is_over(arrival.head, now)) continue;  // It waited here for too long.
    if (adaptive_) adaptive_->handed(arrival.records);
    if (adaptive_ && !is_leased()) adaptive_->settled(arrival.records);
    const auto lease = leases_.find({arrival.head.partition, arrival.head.delivery_id});
    if (lease != leases_.end()) arrival.origin = lease->second.origin.lock();
    if (!arrival.origin) arrival.origin = std::make_shared<const Origin>(Origin{weak_from_this()});
    if (lease != leases_.end()) lease->second.origin = arrival.origin;
    taken_ = arrival.head;
    taken_is_over_ = false;
    taken_end_ = end_offset_of(arrival.batches.back());
    handed_out_ = taken_end_;
    return arrival;
  }
}

bool Subscription::hand_out(std::int64_t end) {
  const std::lock_guard lock(mutex_);
  if (taken_is_over_ || is_over(taken_, Clock::now())) return false;
  handed_out_ = end;
  return true;
}

bool Subscription::empty() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

void Subscription::release(std::uint64_t records) {
  const std::lock_guard lock(mutex_);
  const std::int64_t released = std::min(static_cast<std::int64_t>(records), held_);
  held_ -= released;
  owed_ += released;
}

std::uint32_t Subscription::grant(bool idle) {
  const std::lock_guard lock(mutex_);
  if (end_ || abandoned_) return 0;
  if (is_leased()) return std::exchange(credit_is_news_, false) ? static_cast<std::uint32_t>(credit_) : 0;
  if (owed_ <= 0 || (!idle && owed_ < credit_ / 2)) return 0;
  at_broker_ += owed_;
  return static_cast<std::uint32_t>(std::exchange(owed_, 0));
}

void Subscription::set_back(std::int32_t partition) {
  const std::lock_guard lock(mutex_);
  drop(partition);
  const auto end = ends_.find(partition);
  if (end != ends_.end()) stale_[partition] = end->second;
}

std::vector<Settlement> Subscription::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  std::vector<Settlement> unread = end_ ? std::vector<Settlement>() : release_unread(nullptr);
  queue_.clear();
  return unread;
}

bool Subscription::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

}  // namespace linn::detail
