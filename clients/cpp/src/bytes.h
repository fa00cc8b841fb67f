// Little-endian numbers at places in bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace linn::detail {

static_assert(std::endian::native == std::endian::little, "columns are little-endian and read in place");

/// The number at `at`, which need not be aligned. The caller has checked that it lies inside.
template <typename Number>
Number load(const char* at) noexcept {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

template <typename Number>
void store(char* at, Number number) noexcept {
  std::memcpy(at, &number, sizeof number);
}

template <typename Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// The offset `count` records on. A hostile offset wraps around instead of being undefined.
inline std::int64_t offset_behind(std::int64_t offset, std::size_t count) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(offset) + count);
}

}  // namespace linn::detail
