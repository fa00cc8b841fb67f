// UTF-8: whether bytes are text.
#pragma once

#include <string_view>

namespace linn::detail {

/// Whether `bytes` are UTF-8: shortest forms only, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view bytes) noexcept;

}  // namespace linn::detail
