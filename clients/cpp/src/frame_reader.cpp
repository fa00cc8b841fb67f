#include "frame_reader.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <linn/error.h>

#include "bytes.h"

namespace linn::detail {
namespace {

constexpr std::uint32_t segments_max = 64;
constexpr std::size_t reserved_bytes_max = 1 << 20;  // What the head of a message alone can ask for.

}  // namespace

void FrameReader::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (size_ == 0) {
      bytes = take_head(bytes);
      if (size_ == 0) continue;
    }
    const std::size_t missing = std::min(size_ - current_.size(), bytes.size());
    current_.append(bytes.substr(0, missing));
    bytes.remove_prefix(missing);
    if (current_.size() < size_) continue;
    ready_.push_back(std::exchange(current_, {}));
    size_ = 0;
  }
}

/// Take bytes up to the end of the segment table; what is left.
std::string_view FrameReader::take_head(std::string_view bytes) {
  const auto fill_to = [&](std::size_t size) {
    const std::size_t count = std::min(size - std::min(size, current_.size()), bytes.size());
    current_.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    return current_.size() >= size;
  };
  if (!fill_to(8)) return bytes;
  const auto more = load<std::uint32_t>(current_.data());
  if (more >= segments_max) throw Error("protocol.malformed", "a message has more than 64 segments");
  const std::size_t head_bytes = (8 + 4 * std::size_t{more} + 7) / 8 * 8;
  if (!fill_to(head_bytes)) return bytes;
  std::uint64_t words = 0;
  for (std::size_t segment = 0; segment <= more; ++segment)
    words += load<std::uint32_t>(current_.data() + 4 + 4 * segment);
  if (words == 0) throw Error("protocol.malformed", "a message has no words");
  begin(head_bytes + words * 8);
  return bytes;
}

void FrameReader::begin(std::size_t size) {
  if (size > message_bytes_max_)
    throw Error("protocol.frame_too_large",
                "a message of " + std::to_string(size) + " bytes, more than " + std::to_string(message_bytes_max_));
  size_ = size;
  current_.reserve(std::min(size, reserved_bytes_max));
}

std::optional<std::string> FrameReader::next() {
  if (ready_.empty()) return std::nullopt;
  std::string message = std::move(ready_.front());
  ready_.pop_front();
  return message;
}

}  // namespace linn::detail
