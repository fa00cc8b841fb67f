#include "leaders.h"

#include <algorithm>

namespace linn::detail {

// --- by producers ---

void Leaders::watch(const std::string& topic, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Topic& watched = topics_[topic];
  if (watched.watchers++ == 0) watched.describe_at = now;
}

void Leaders::unwatch(const std::string& topic) {
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  if (found != topics_.end() && --found->second.watchers == 0) topics_.erase(found);
}

bool Leaders::confirmed(const std::string& topic, const Uuid& topic_id, std::int32_t epoch, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  if (epoch == 0 || found == topics_.end()) return false;
  Topic& known = found->second;
  if (known.id == topic_id && epoch <= std::max(known.epoch, known.confirmed_epoch)) return false;
  if (known.id == topic_id) known.confirmed_epoch = epoch;
  return describe_soon(topic, now);
}

bool Leaders::not_led(const std::string& topic, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  return describe_soon(topic, now);
}

bool Leaders::describe_soon(const std::string& topic, Clock::time_point now) {
  const auto found = topics_.find(topic);
  if (at_hand_ == 0 || found == topics_.end()) return false;
  found->second.describe_at = std::min(found->second.describe_at, now);
  return true;
}

// --- by the session ---

void Leaders::at_hand(std::uint32_t node, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  at_hand_ = node;
  for (auto& [name, topic] : topics_) topic.describe_at = now;
}

void Leaders::told(const Description& description, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, node] : nodes_) node.address.clear();
  for (const NodeInfo& node : description.nodes) nodes_[node.number].address = node.address;
  for (const TopicInfo& info : description.topics) {
    const auto found = topics_.find(info.name);
    if (found == topics_.end()) continue;
    Topic& topic = found->second;
    const PartitionInfo first = info.partitions.empty() ? PartitionInfo{} : info.partitions.front();
    if (topic.id != info.id) topic.confirmed_epoch = topic.epoch = 0;
    if (first.leader_epoch >= topic.epoch) {
      topic.id = info.id;
      topic.epoch = first.leader_epoch;
      topic.node = first.leader;
    }
    topic.is_told = true;
    const bool is_old = topic.epoch < topic.confirmed_epoch;
    topic.describe_at = now + (is_old ? Clock::duration(old_news_age_max) : description_age_max);
  }
}

std::vector<std::string> Leaders::to_describe(Clock::time_point now) {
  constexpr std::size_t names_max = 1'024;
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  if (at_hand_ == 0) return names;
  for (auto& [name, topic] : topics_) {
    if (topic.describe_at > now || names.size() == names_max) continue;
    topic.describe_at = now + description_age_max;
    names.push_back(name);
  }
  return names;
}

std::optional<Leaders::Target> Leaders::to_reach(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, topic] : topics_) {
    if (!has_to_be_reached(topic.node) || nodes_.at(topic.node).rests_until > now) continue;
    Node& node = nodes_.at(topic.node);
    node.is_taken = true;
    return Target{topic.node, node.address};
  }
  return std::nullopt;
}

/// Whether there should be a connection to it, none is there and none is being made. Under `mutex_`.
bool Leaders::has_to_be_reached(std::uint32_t number) const {
  if (at_hand_ == 0 || number == 0 || number == at_hand_) return false;
  const auto found = nodes_.find(number);
  return found != nodes_.end() && !found->second.is_taken && !found->second.address.empty();
}

void Leaders::reached(std::uint32_t node) {
  const std::lock_guard lock(mutex_);
  nodes_[node].rest = Clock::duration(0);
  nodes_[node].is_connected = true;
}

bool Leaders::failed(std::uint32_t node, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Node& rests = nodes_[node];
  const bool is_first = rests.rest == Clock::duration(0);
  rests.rest = std::clamp<Clock::duration>(2 * rests.rest, rest_min, rest_max);
  rests.rests_until = now + rests.rest;
  rests.is_taken = false;
  return is_first;
}

void Leaders::lost(std::uint32_t node, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  nodes_[node].is_taken = nodes_[node].is_connected = false;
  nodes_[node].rests_until = now + rest_after_loss;
  for (auto& [name, topic] : topics_)
    if (topic.node == node) topic.describe_at = now;
}

std::uint32_t Leaders::leader_of(const std::string& topic) const {
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  return found == topics_.end() ? 0 : found->second.node;
}

bool Leaders::is_settled(const std::string& topic, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  if (at_hand_ == 0 || found == topics_.end()) return true;
  if (!found->second.is_told) return false;
  const auto node = nodes_.find(found->second.node);
  if (node == nodes_.end() || node->second.is_connected) return true;
  return !node->second.is_taken && (!has_to_be_reached(node->first) || node->second.rests_until > now);
}

Clock::time_point Leaders::next_time() const {
  const std::lock_guard lock(mutex_);
  Clock::time_point next = Clock::time_point::max();
  if (at_hand_ == 0) return next;
  for (const auto& [name, topic] : topics_) {
    next = std::min(next, topic.describe_at);
    if (has_to_be_reached(topic.node)) next = std::min(next, nodes_.at(topic.node).rests_until);
  }
  return next;
}

}  // namespace linn::detail
