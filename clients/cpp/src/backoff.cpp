#include "backoff.h"

#include <algorithm>
#include <cmath>

namespace linn::detail {

std::chrono::milliseconds backoff_after(std::uint64_t attempts, const ClientOptions& options, std::mt19937_64& random) {
  const double doubled =
      static_cast<double>(options.backoff.count()) * std::exp2(std::min<std::uint64_t>(attempts, 30));
  const double longest = std::min(static_cast<double>(options.backoff_max.count()), doubled);
  return std::chrono::milliseconds(std::llround(longest * (1 - std::uniform_real_distribution<>(0, 0.5)(random))));
}

}  // namespace linn::detail
