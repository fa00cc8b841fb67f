#include "base64.h"

#include <cstddef>
#include <cstdint>

namespace linn::detail {
namespace {

constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string text;
  for (std::size_t place = 0; place < bytes.size(); place += 3) {
    std::uint32_t group = 0;
    for (std::size_t next = 0; next < 3; ++next)
      group = group << 8 | (place + next < bytes.size() ? static_cast<unsigned char>(bytes[place + next]) : 0u);
    for (int digit = 3; digit >= 0; --digit) text += alphabet[group >> (6 * digit) & 0x3f];
  }
  const std::size_t spare = (3 - bytes.size() % 3) % 3;
  text.replace(text.size() - spare, spare, spare, '=');
  return text;
}

std::optional<std::string> base64_decode(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  std::uint32_t bits = 0;
  for (std::size_t place = 0; place < text.size(); ++place) {
    const bool padded = place >= text.size() - padding;
    const std::size_t digit = padded ? 0 : alphabet.find(text[place]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if (place % 4 != 3) continue;
    for (int byte = 2; byte >= 0; --byte) bytes += static_cast<char>(bits >> (8 * byte));
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  if (base64_encode(bytes) != text) return std::nullopt;  // Bits of the last digit that no byte has.
  return bytes;
}

}  // namespace linn::detail
