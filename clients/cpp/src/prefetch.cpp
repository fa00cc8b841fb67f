#include "prefetch.h"

#include <algorithm>
#include <bit>

namespace linn::detail {
namespace {

/// Work that waits in the client: far more than a round trip, and too little to leave other consumers without any.
constexpr double buffered_s = 0.1;
constexpr double lease_part = 10;

}  // namespace

AdaptivePrefetch::AdaptivePrefetch(std::chrono::milliseconds lease, Clock::time_point now) noexcept
    : buffered_s_(lease.count() > 0 ? std::min(buffered_s, std::chrono::duration<double>(lease).count() / lease_part)
                                    : buffered_s),
      busy_since_(now) {}

bool AdaptivePrefetch::adapt(Clock::time_point now, std::uint64_t with_application) noexcept {
  if (handed_ > 0) {
    const double busy_s = std::max(0.0, std::chrono::duration<double>(now - busy_since_).count());
    const double cost_s = busy_s / static_cast<double>(handed_);
    cost_s_ = cost_s_ ? (*cost_s_ + cost_s) / 2 : cost_s;
    handed_ = 0;
  }
  busy_since_ = now;
  if (!cost_s_) return false;
  const double buffered = *cost_s_ * prefetch_max > buffered_s_ ? buffered_s_ / *cost_s_ : prefetch_max;
  const std::uint64_t target = with_application + 1 + static_cast<std::uint64_t>(buffered);
  if (target > window_) return 2 * settled_ >= window_ && grow();
  if (2 * target > window_) return false;
  window_ = static_cast<std::uint32_t>(std::bit_ceil(target));
  settled_ = 0;
  return true;
}

bool AdaptivePrefetch::grow() noexcept {
  const std::uint32_t before = window_;
  window_ = std::min(2 * window_, prefetch_max);
  settled_ = 0;
  return window_ > before;
}

}  // namespace linn::detail
