// Base64 with padding.
#pragma once

#include <string>
#include <string_view>

std::string base64_encode(std::string_view bytes);

/// Throws std::runtime_error where the text is not base64.
std::string base64_decode(std::string_view text);
