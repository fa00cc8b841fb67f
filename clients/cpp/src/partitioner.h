// Which partition a key belongs to: murmur2 with Kafka's seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace linn::detail {

/// The 32-bit hash, as Kafka's `Utils.murmur2` has it.
std::uint32_t murmur2(std::string_view bytes) noexcept;

/// What a batch's `keyHashes` hold: murmur2 without the sign bit, 0 for a record without a key.
std::uint32_t key_hash(std::optional<std::string_view> key) noexcept;

}  // namespace linn::detail
