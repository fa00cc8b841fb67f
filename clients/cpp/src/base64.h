// Base64 (RFC 4648).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace linn::detail {

std::string base64_encode(std::string_view bytes);

/// std::nullopt where the text is not the one spelling of some bytes: with padding, and nothing else in it.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace linn::detail
