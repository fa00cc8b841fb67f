#include "crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace linn::detail {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78;  // 0x1edc6f41, reflected.

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

/// Table k has the CRC of a byte that is followed by k zero bytes, so that eight bytes are looked up at once.
constexpr Table make_table() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    table[0][byte] = crc;
  }
  for (std::size_t k = 1; k < table.size(); ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xff];
  return table;
}

constexpr Table table = make_table();

std::uint64_t load_word(const char* at) noexcept {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_by_instruction(std::string_view bytes,
                                                                      std::uint32_t earlier) noexcept {
  std::uint64_t crc = ~earlier;
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) crc = _mm_crc32_u64(crc, load_word(at));
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; left > 0; ++at, --left) narrow = _mm_crc32_u8(narrow, static_cast<unsigned char>(*at));
  return ~narrow;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::string_view bytes, std::uint32_t earlier) noexcept {
  std::uint32_t crc = ~earlier;
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    const std::uint64_t word = load_word(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= table[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; left > 0; ++at, --left) crc = (crc >> 8) ^ table[0][(crc ^ static_cast<unsigned char>(*at)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(std::string_view bytes, std::uint32_t earlier) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_by_instruction(bytes, earlier);
#endif
  return crc32c_by_table(bytes, earlier);
}

}  // namespace linn::detail
