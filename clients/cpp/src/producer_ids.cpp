#include "producer_ids.h"

#include <string>

#include <linn/error.h>

namespace linn::detail {

ProducerClaim ProducerIds::claim() const {
  const std::lock_guard lock(mutex_);
  return claim_;
}

void ProducerIds::replace(ProducerClaim claim) {
  const std::lock_guard lock(mutex_);
  claim_ = claim;
  next_ = claim.producer_id;
  returned_.clear();
}

bool ProducerIds::has(std::int64_t producer_id) const {
  const std::lock_guard lock(mutex_);
  return has_locked(producer_id);
}

bool ProducerIds::has_locked(std::int64_t producer_id) const noexcept {
  return producer_id >= claim_.producer_id && producer_id - claim_.producer_id < ids_per_client;
}

Identity ProducerIds::take() {
  const std::lock_guard lock(mutex_);
  if (has_locked(next_)) return {next_++, 0};
  if (returned_.empty())
    throw Error("limit.exceeded", "a client has at most " + std::to_string(ids_per_client) +
                                      " idempotent producers at a time: destroy one, or make this one with"
                                      " idempotent = false");
  const Identity taken = returned_.front();
  returned_.pop_front();
  return taken;
}

void ProducerIds::give_back(Identity used) {
  if (used.epoch == epoch_max) return;
  const std::lock_guard lock(mutex_);
  if (!has_locked(used.producer_id)) return;
  returned_.push_back({used.producer_id, static_cast<std::uint16_t>(used.epoch + 1)});
}

}  // namespace linn::detail
