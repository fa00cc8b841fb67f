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

}  // namespace

bool is_utf8(std::string_view bytes) noexcept {
  const auto at = [&](std::size_t place) { return static_cast<unsigned char>(bytes[place]); };
  for (std::size_t place = 0; place < bytes.size();) {
    const std::size_t length = length_of(at(place));
    if (length == 0 || length > bytes.size() - place) return false;
    if (length > 1 && !may_follow(at(place), at(place + 1))) return false;
    for (std::size_t next = 2; next < length; ++next)
      if ((at(place + next) & 0xc0) != 0x80) return false;
    place += length;
  }
  return true;
}

}  // namespace linn::detail
