#include "partitioner.h"

#include <linn/batch.h>

#include "bytes.h"

namespace linn {
namespace detail {
namespace {

constexpr std::uint32_t seed = 0x9747b28c;
constexpr std::uint32_t multiplier = 0x5bd1e995;

}  // namespace

std::uint32_t murmur2(std::string_view bytes) noexcept {
  std::uint32_t hash = seed ^ static_cast<std::uint32_t>(bytes.size());
  std::size_t place = 0;
  for (; bytes.size() - place >= 4; place += 4) {
    std::uint32_t k = load<std::uint32_t>(bytes.data() + place) * multiplier;
    k = (k ^ (k >> 24)) * multiplier;
    hash = (hash * multiplier) ^ k;
  }
  if (place < bytes.size()) {
    std::uint32_t rest = 0;
    for (std::size_t last = bytes.size(); last > place; --last)
      rest = rest << 8 | static_cast<unsigned char>(bytes[last - 1]);
    hash = (hash ^ rest) * multiplier;
  }
  hash = (hash ^ (hash >> 13)) * multiplier;
  return hash ^ (hash >> 15);
}

std::uint32_t key_hash(std::optional<std::string_view> key) noexcept { return key ? murmur2(*key) & 0x7fffffff : 0; }

}  // namespace detail

std::int32_t partition_of(std::string_view key, std::int32_t partitions) noexcept {
  return static_cast<std::int32_t>(detail::key_hash(key) % static_cast<std::uint32_t>(partitions));
}

}  // namespace linn
