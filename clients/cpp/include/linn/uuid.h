// Uuid: the id of a record.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace linn {

/// 128 bits. Text is in the form of RFC 9562, lower case: 018bcfe5-6800-7abc-8def-000000000000.
struct Uuid {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  /// Throws Error message.invalid where the text is no UUID.
  static Uuid parse(std::string_view text);
  /// From 16 bytes, big-endian.
  static Uuid from_bytes(const char* bytes) noexcept;

  std::string to_string() const;
  /// 16 bytes, big-endian.
  std::string to_bytes() const;
  /// The id that is `count` further, modulo 2^128.
  Uuid plus(std::uint64_t count) const noexcept;

  auto operator<=>(const Uuid&) const = default;
};

}  // namespace linn
