// ControlMessage: a Frame that somebody sent, held and checked as far as a library for Cap'n Proto does it lazily.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <capnp/any.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <linn/error.h>

#include "protocol.capnp.h"
#include "utf8.h"

namespace linn::detail {

inline constexpr unsigned list_entries_max = 65'536;

[[noreturn]] inline void malformed_frame(std::string_view text) { throw Error("protocol.malformed", text); }

/// Holds one message; `root` is its Frame. What reading it throws besides Error is a kj::Exception.
class ControlMessage {
 public:
  /// Throws Error protocol.malformed where the bytes are not one message with a root struct.
  explicit ControlMessage(std::string_view bytes) try
      : words_(words_of(bytes)), reader_(words_, options_for(words_.size())) {
    if (reader_.getEnd() != words_.end()) malformed_frame("a message does not have the size that its head says");
    if (reader_.getRoot<capnp::AnyPointer>().isNull()) malformed_frame("a message has no root");
  } catch (const kj::Exception&) {
    malformed_frame("a control message can't be read");
  }

  wire::Frame::Reader root() { return reader_.getRoot<wire::Frame>(); }

 private:
  static kj::Array<capnp::word> words_of(std::string_view bytes) {
    if (bytes.size() < 16 || bytes.size() % sizeof(capnp::word) != 0) malformed_frame("a message is cut short");
    auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
    std::memcpy(words.begin(), bytes.data(), bytes.size());
    return words;
  }

  /// Room to read each word about twice: a message that points at the same bytes again and again is refused.
  static capnp::ReaderOptions options_for(std::size_t words) {
    return {.traversalLimitInWords = 2 * words + 64, .nestingLimit = 16};
  }

  kj::Array<capnp::word> words_;
  capnp::FlatArrayMessageReader reader_;
};

/// Throws Error protocol.malformed where it is not UTF-8.
inline std::string read_text(capnp::Text::Reader text) {
  const std::string_view bytes(text.begin(), text.size());
  if (!is_utf8(bytes)) malformed_frame("a text is not UTF-8");
  return std::string(bytes);
}

template <typename List>
List checked_list(List list) {
  if (list.size() > list_entries_max) malformed_frame("a list has more than 65,536 entries");
  return list;
}

}  // namespace linn::detail
