#include "lane.h"

#include <utility>

namespace linn::detail {
namespace {

constexpr std::uint64_t sequence_end = std::uint64_t{1} << 32;

}  // namespace

Lane::Lane(std::shared_ptr<ProducerIds> ids, bool is_scattered)
    : ids_(std::move(ids)),
      attributes_(is_scattered ? scattered_attribute : std::uint16_t{0}),
      identity_(ids_->take()) {}

Lane::~Lane() { ids_->give_back(identity_); }

bool Lane::has_to_begin(std::uint32_t records) const {
  return is_over_ || next_sequence_ + records > sequence_end || !ids_->has(identity_.producer_id);
}

void Lane::begin() {
  if (identity_.epoch == epoch_max || !ids_->has(identity_.producer_id))
    identity_ = ids_->take();
  else
    ++identity_.epoch;
  next_sequence_ = 0;
  is_over_ = false;
}

ProducerNumbers Lane::number(std::uint32_t records) noexcept {
  const auto first_sequence = static_cast<std::uint32_t>(next_sequence_);
  next_sequence_ += records;
  return {identity_.producer_id, first_sequence, identity_.epoch, attributes_};
}

}  // namespace linn::detail
