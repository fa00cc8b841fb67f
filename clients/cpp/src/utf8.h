// UTF-8: whether bytes are text, and text of any bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace linn::detail {

/// Whether `bytes` are UTF-8: shortest forms only, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view bytes) noexcept;

/// At most `bytes_max` bytes of UTF-8: what `bytes` begin with, and "?" for each byte that is not text.
std::string utf8_of(std::string_view bytes, std::size_t bytes_max);

}  // namespace linn::detail
