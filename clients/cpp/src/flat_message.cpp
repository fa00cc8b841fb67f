#include "flat_message.h"

#include <cstdint>

#include <linn/error.h>

#include "bytes.h"

namespace linn::detail {
namespace {

constexpr std::size_t word = 8;
constexpr std::size_t field_bytes_max = (std::size_t{1} << 29) - 1;

std::size_t words_of(std::size_t bytes) noexcept { return (bytes + word - 1) / word; }

}  // namespace

std::string encode_flat(std::string_view numbers, std::span<const Field> fields) {
  while (!fields.empty() && !fields.back()) fields = fields.first(fields.size() - 1);
  const std::size_t number_words = numbers.size() / word;
  std::size_t words = 1 + number_words + fields.size();
  for (const Field& field : fields) {
    if (field && field->size() > field_bytes_max)
      throw Error("batch.too_large", "a field of a batch has 2^29 bytes or more");
    if (field) words += words_of(field->size());
  }
  std::string message;
  message.reserve(word + words * word);
  append(message, std::uint32_t{0});
  append(message, static_cast<std::uint32_t>(words));
  append(message, std::uint32_t{0});
  append(message, static_cast<std::uint16_t>(number_words));
  append(message, static_cast<std::uint16_t>(fields.size()));
  message.append(numbers);
  std::uint64_t words_before = 0;
  for (std::size_t index = 0; index < fields.size(); ++index) {
    const Field& field = fields[index];
    const std::uint64_t distance = fields.size() - index - 1 + words_before;
    append(message, field ? 1 | distance << 2 | std::uint64_t{2} << 32 | std::uint64_t{field->size()} << 35 : 0);
    if (field) words_before += words_of(field->size());
  }
  for (const Field& field : fields) {
    if (!field) continue;
    message.append(*field);
    message.append(words_of(field->size()) * word - field->size(), '\0');
  }
  return message;
}

void check_flat_head(std::string_view message, std::size_t number_bytes) {
  if (message.size() < numbers_at) throw Error("batch.malformed", "the message is too short for a root struct");
  const std::size_t words = load<std::uint32_t>(message.data() + 4);
  if (load<std::uint32_t>(message.data()) != 0 || word + words * word != message.size())
    throw Error("batch.malformed", "the message is not one segment that fills its frame");
  if (load<std::uint32_t>(message.data() + 8) != 0)
    throw Error("batch.malformed", "the root struct is not first in its segment");
  const std::size_t number_words = load<std::uint16_t>(message.data() + 12);
  const std::size_t pointers = load<std::uint16_t>(message.data() + 14);
  if (number_words * word < number_bytes) throw Error("batch.malformed", "the root struct has too few numbers");
  if (numbers_at + (number_words + pointers) * word > message.size())
    throw Error("batch.malformed", "the root struct is cut short");
}

void decode_flat(std::string_view message, std::size_t number_bytes, std::span<Field> fields) {
  check_flat_head(message, number_bytes);
  const std::size_t number_words = load<std::uint16_t>(message.data() + 12);
  const std::size_t pointer_count = load<std::uint16_t>(message.data() + 14);
  const std::size_t pointers_at = numbers_at + number_words * word;
  std::size_t bytes_left = message.size() - pointers_at - pointer_count * word;
  for (std::size_t index = 0; index < fields.size(); ++index) {
    fields[index] = std::nullopt;
    if (index >= pointer_count) continue;
    const auto pointer = load<std::uint64_t>(message.data() + pointers_at + index * word);
    if (pointer == 0) continue;
    if ((pointer & 3) != 1 || (pointer >> 32 & 7) != 2)
      throw Error("batch.malformed", "field " + std::to_string(index) + " is not a list of bytes");
    // A distance is signed; a negative one, read as unsigned, leads past any message here, and is refused as such.
    const std::size_t start = pointers_at + (index + 1 + ((pointer & 0xffffffff) >> 2)) * word;
    const std::size_t size = pointer >> 35;
    if (size > bytes_left || start > message.size() || size > message.size() - start)
      throw Error("batch.malformed", "field " + std::to_string(index) + " leads out of the message");
    bytes_left -= size;
    fields[index] = message.substr(start, size);
  }
}

}  // namespace linn::detail
