#include <linn/uuid.h>

#include <cstddef>

#include <linn/error.h>

namespace linn {
namespace {

constexpr std::string_view digits = "0123456789abcdef";

int digit_of(char character) noexcept {
  if (character >= '0' && character <= '9') return character - '0';
  if (character >= 'a' && character <= 'f') return character - 'a' + 10;
  if (character >= 'A' && character <= 'F') return character - 'A' + 10;
  return -1;
}

bool is_dash(std::size_t place) noexcept { return place == 8 || place == 13 || place == 18 || place == 23; }

}  // namespace

Uuid Uuid::parse(std::string_view text) {
  Uuid id;
  bool valid = text.size() == 36;
  for (std::size_t place = 0; valid && place < text.size(); ++place) {
    if (is_dash(place)) {
      valid = text[place] == '-';
      continue;
    }
    const int digit = digit_of(text[place]);
    valid = digit >= 0;
    id.high = id.high << 4 | id.low >> 60;
    id.low = id.low << 4 | static_cast<std::uint64_t>(digit & 0xf);
  }
  if (!valid) throw Error("message.invalid", "an id is a UUID of 36 characters");
  return id;
}

Uuid Uuid::from_bytes(const char* bytes) noexcept {
  Uuid id;
  for (std::size_t place = 0; place < 16; ++place) {
    id.high = id.high << 8 | id.low >> 56;
    id.low = id.low << 8 | static_cast<unsigned char>(bytes[place]);
  }
  return id;
}

std::string Uuid::to_bytes() const {
  std::string bytes(16, '\0');
  for (unsigned place = 0; place < 8; ++place) {
    bytes[place] = static_cast<char>(high >> (56 - 8 * place));
    bytes[8 + place] = static_cast<char>(low >> (56 - 8 * place));
  }
  return bytes;
}

std::string Uuid::to_string() const {
  std::string text;
  for (const char byte : to_bytes()) {
    if (is_dash(text.size())) text += '-';
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 0xf];
  }
  return text;
}

Uuid Uuid::plus(std::uint64_t count) const noexcept {
  const std::uint64_t sum = low + count;
  return {high + (sum < low ? 1 : 0), sum};
}

}  // namespace linn
