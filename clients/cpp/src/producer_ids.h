// ProducerIds: the producer ids of a client, which no other client is given, and the key that proves it.
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

/// The ids of a client as its hello shows them: the first, and a secret. 0: none.
struct ProducerClaim {
  std::int64_t producer_id = 0;
  std::uint64_t key = 0;
};

/// Safe to use from many threads.
class ProducerIds {
 public:
  /// `claim` comes from the welcome of the client's first connection.
  explicit ProducerIds(ProducerClaim claim) noexcept : claim_(claim), next_(claim.producer_id) {}

  /// What later connections show.
  ProducerClaim claim() const;
  /// Give up the ids, which the broker does not know, for those of another welcome.
  void replace(ProducerClaim claim);
  /// Whether an id is one of them: not one that was given up.
  bool has(std::int64_t producer_id) const;

  /// Take an id, with the first epoch in which it may be used. Throws Error limit.exceeded if none is left.
  Identity take();
  /// Return an id that was used up to this epoch.
  void give_back(Identity used);

 private:
  bool has_locked(std::int64_t producer_id) const noexcept;

  mutable std::mutex mutex_;
  ProducerClaim claim_;
  std::int64_t next_;
  std::deque<Identity> returned_;
};

}  // namespace linn::detail
