// ProducerIds: the producer ids of a client, which no other client is given.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

namespace linn::detail {

/// Ids that a broker gives to a connection.
inline constexpr std::int64_t ids_per_client = 256;
inline constexpr std::uint16_t epoch_max = 0xffff;

/// A producer id, and an epoch in which it is used.
struct Identity {
  std::int64_t producer_id = 0;
  std::uint16_t epoch = 0;
};

/// Safe to use from many threads.
class ProducerIds {
 public:
  /// `first` comes from the welcome of the client's first connection.
  explicit ProducerIds(std::int64_t first) noexcept : next_(first), end_(first + ids_per_client) {}

  /// Take an id, with the first epoch in which it may be used. Throws Error limit.exceeded if none is left.
  Identity take();
  /// Return an id that was used up to this epoch.
  void give_back(Identity used);

 private:
  std::mutex mutex_;
  std::int64_t next_;
  const std::int64_t end_;
  std::deque<Identity> returned_;
};

}  // namespace linn::detail
