#include "utf8.h"

#include <cstddef>

namespace linn::detail {
namespace {

/// Bytes of the character that begins with `first`; 0 where none does.
std::size_t length_of(unsigned char first) noexcept {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  if (first >= 0xf0 && first <= 0xf4) return 4;
  return 0;
}

/// Whether `second` may follow `first`: this is where overlong forms, surrogates and too large numbers differ.
bool may_follow(unsigned char first, unsigned char second) noexcept {
  switch (first) {
    case 0xe0: return second >= 0xa0 && second <= 0xbf;
    case 0xed: return second >= 0x80 && second <= 0x9f;
    case 0xf0: return second >= 0x90 && second <= 0xbf;
    case 0xf4: return second >= 0x80 && second <= 0x8f;
    default: return second >= 0x80 && second <= 0xbf;
  }
}

/// Bytes of the character that `bytes` begin with; 0 where they begin with none.
std::size_t first_of(std::string_view bytes) noexcept {
  const auto at = [&](std::size_t place) { return static_cast<unsigned char>(bytes[place]); };
  const std::size_t length = length_of(at(0));
  if (length > bytes.size() || (length > 1 && !may_follow(at(0), at(1)))) return 0;
  for (std::size_t next = 2; next < length; ++next)
    if ((at(next) & 0xc0) != 0x80) return 0;
  return length;
}

}  // namespace

bool is_utf8(std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const std::size_t length = first_of(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

std::string utf8_of(std::string_view bytes, std::size_t bytes_max) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t length = first_of(bytes);
    const std::string_view next = length == 0 ? "?" : bytes.substr(0, length);
    if (text.size() + next.size() > bytes_max) break;
    text += next;
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return text;
}

}  // namespace linn::detail
