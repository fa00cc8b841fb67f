// Cutting a stream into messages.
#include <string>
#include <vector>

#include "bytes.h"
#include "check.h"
#include "frame_reader.h"

using linn::detail::append;
using linn::detail::FrameReader;

namespace {

/// A message with segments of so many words.
std::string message_of(const std::vector<std::uint32_t>& segments) {
  std::string message;
  append(message, static_cast<std::uint32_t>(segments.size() - 1));
  std::size_t words = 0;
  for (const std::uint32_t size : segments) {
    append(message, size);
    words += size;
  }
  if (segments.size() % 2 == 0) append(message, std::uint32_t{0});
  message.append(words * 8, static_cast<char>('a' + segments.size()));
  return message;
}

void any_chunking_gives_the_same_messages() {
  const std::vector<std::string> sent{message_of({1}), message_of({2, 3}), message_of({0, 1, 0}), message_of({5'000}),
                                      message_of({1})};
  std::string stream;
  for (const std::string& message : sent) stream += message;
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{3}, std::size_t{8}, std::size_t{1'000}, stream.size()}) {
    FrameReader reader(1 << 20);
    std::vector<std::string> received;
    for (std::size_t place = 0; place < stream.size(); place += chunk) {
      reader.feed(std::string_view(stream).substr(place, chunk));
      while (auto message = reader.next()) received.push_back(*message);
    }
    CHECK(received == sent);
  }
}

void a_size_is_refused_before_its_bytes_come() {
  FrameReader reader(64 << 10);
  std::string head;
  append(head, std::uint32_t{0});
  append(head, std::uint32_t{0xffffffff});
  CHECK(code_of([&] { reader.feed(head); }) == "protocol.frame_too_large");
  FrameReader exact(24);
  exact.feed(message_of({2}));
  CHECK(exact.next().has_value());
  CHECK(code_of([&] { exact.feed(message_of({3})); }) == "protocol.frame_too_large");
}

void sizes_that_no_message_has_are_refused() {
  std::string many;
  append(many, std::uint32_t{64});
  append(many, std::uint32_t{1});
  CHECK(code_of([&] { FrameReader(1 << 20).feed(many); }) == "protocol.malformed");
  CHECK(code_of([&] { FrameReader(1 << 20).feed(std::string(8, '\xff')); }) == "protocol.malformed");
  CHECK(code_of([&] { FrameReader(1 << 20).feed(std::string(8, '\0')); }) == "protocol.malformed");
}

}  // namespace

int main() {
  return run({{"any chunking gives the same messages", any_chunking_gives_the_same_messages},
              {"a size is refused before its bytes come", a_size_is_refused_before_its_bytes_come},
              {"sizes that no message has are refused", sizes_that_no_message_has_are_refused}});
}
