// FrameReader: cuts a byte stream into Cap'n Proto messages. No I/O.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace linn::detail {

/// Any chunking of the bytes gives the same messages. A message's size is checked before memory is taken for it, and a
/// large one gets its memory as its bytes come.
class FrameReader {
 public:
  explicit FrameReader(std::size_t message_bytes_max) noexcept : message_bytes_max_(message_bytes_max) {}

  /// Throws Error protocol.malformed, protocol.frame_too_large; nothing can be read behind that.
  void feed(std::string_view bytes);

  /// The next whole message, segment table included.
  std::optional<std::string> next();

 private:
  void begin(std::size_t size);
  std::string_view take_head(std::string_view bytes);

  const std::size_t message_bytes_max_;
  std::string current_;
  /// Of `current_`, once its segment table is there; 0 before.
  std::size_t size_ = 0;
  std::deque<std::string> ready_;
};

}  // namespace linn::detail
