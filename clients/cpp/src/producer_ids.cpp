#include "producer_ids.h"

#include <string>

#include <linn/error.h>

namespace linn::detail {

Identity ProducerIds::take() {
  const std::lock_guard lock(mutex_);
  if (next_ < end_) return {next_++, 0};
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
  returned_.push_back({used.producer_id, static_cast<std::uint16_t>(used.epoch + 1)});
}

}  // namespace linn::detail
