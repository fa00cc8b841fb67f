#include "subscription.h"

#include <algorithm>
#include <utility>

#include "bytes.h"

namespace linn::detail {
namespace {

constexpr std::size_t base_offset_at = 16, count_at = 52, counted_bytes = 56;

std::uint32_t count_of(const std::string& batch) noexcept {
  return batch.size() < counted_bytes ? 0 : load<std::uint32_t>(batch.data() + count_at);
}

std::int64_t base_offset_of(const std::string& batch) noexcept {
  return batch.size() < counted_bytes ? 0 : load<std::int64_t>(batch.data() + base_offset_at);
}

}  // namespace

void Subscription::opened(const Subscribed& subscribed) {
  const std::lock_guard lock(mutex_);
  said_ = subscribed;
}

void Subscription::arrived(const Deliver& head, std::vector<std::string> batches) {
  const std::lock_guard lock(mutex_);
  std::uint64_t records = 0;
  for (const std::string& batch : batches) records += count_of(batch);
  Arrival arrival{head, std::move(batches), static_cast<std::uint32_t>(records), 0};
  const bool unwanted = arrival.batches.empty() || abandoned_ || is_stale(arrival);
  if (!is_leased()) {
    if (records > at_broker_) throw Error("protocol.malformed", "the broker sent more records than it has credit for");
    at_broker_ -= records;
    (unwanted ? owed_ : held_) += records;
  }
  if (unwanted) return;
  queue_.push_back(std::move(arrival));
  changed_.notify_one();
}

/// Whether a member must not see it: the partition is another's by now, or it was sent before reading was set back.
bool Subscription::is_stale(const Arrival& arrival) {
  if (said_.kind != SubscriptionKind::group) return false;
  const std::int32_t partition = arrival.head.partition;
  if (std::ranges::find(owned_, partition) == owned_.end()) return true;
  const std::int64_t first = base_offset_of(arrival.batches.front());
  const std::int64_t end = offset_behind(base_offset_of(arrival.batches.back()), count_of(arrival.batches.back()));
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
  const auto lost = [&](std::int32_t partition) {
    return std::ranges::find(assigned.partitions, partition) == assigned.partitions.end();
  };
  for (const std::int32_t partition : std::exchange(owned_, assigned.partitions)) {
    if (!lost(partition)) continue;
    drop(partition);
    ++readings_[partition];
    ends_.erase(partition);
    stale_.erase(partition);
  }
}

void Subscription::drop(std::int32_t partition) {
  std::erase_if(queue_, [&](const Arrival& arrival) {
    if (arrival.head.partition != partition) return false;
    held_ -= arrival.records;
    owed_ += arrival.records;
    return true;
  });
}

void Subscription::lease_ended(const LeaseEnded& lease) {
  const std::lock_guard lock(mutex_);
  const auto is_of_lease = [&](const Deliver& head) {
    return head.partition == lease.partition && head.delivery_id == lease.delivery_id;
  };
  std::erase_if(queue_, [&](const Arrival& arrival) { return is_of_lease(arrival.head); });
  if (is_of_lease(taken_)) taken_is_over_ = true;
}

bool Subscription::lease_is_over() const {
  const std::lock_guard lock(mutex_);
  return taken_is_over_;
}

void Subscription::ended(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!end_) end_ = reason;
  changed_.notify_all();
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

bool Subscription::is_leased() const noexcept {
  return said_.kind == SubscriptionKind::shared && said_.lease_ms > 0;
}

std::optional<Arrival> Subscription::take(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto changed = [&] { return !queue_.empty() || end_; };
  if (deadline == Deadline::max())
    changed_.wait(lock, changed);
  else if (!changed_.wait_until(lock, deadline, changed))
    return std::nullopt;
  if (queue_.empty()) throw *end_;
  Arrival arrival = std::move(queue_.front());
  queue_.pop_front();
  arrival.reading = reading_of(arrival.head.partition);
  taken_ = arrival.head;
  taken_is_over_ = false;
  return arrival;
}

bool Subscription::empty() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

void Subscription::release(std::uint64_t records) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t released = std::min(records, held_);
  held_ -= released;
  owed_ += released;
}

std::uint32_t Subscription::grant(bool idle) {
  const std::lock_guard lock(mutex_);
  if (end_ || abandoned_ || owed_ == 0 || (!idle && owed_ < credit_ / 2)) return 0;
  at_broker_ += owed_;
  return static_cast<std::uint32_t>(std::exchange(owed_, 0));
}

void Subscription::set_back(std::int32_t partition) {
  const std::lock_guard lock(mutex_);
  drop(partition);
  ++readings_[partition];
  const auto end = ends_.find(partition);
  if (end != ends_.end()) stale_[partition] = end->second;
}

std::uint64_t Subscription::reading(std::int32_t partition) const {
  const std::lock_guard lock(mutex_);
  return reading_of(partition);
}

std::uint64_t Subscription::reading_of(std::int32_t partition) const {
  const auto found = readings_.find(partition);
  return found == readings_.end() ? 0 : found->second;
}

void Subscription::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  queue_.clear();
}

bool Subscription::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

}  // namespace linn::detail
