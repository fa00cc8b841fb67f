// CRC-32C, murmur2, UTF-8 and UUIDs: against published values, and against one another.
#include <string>

#include <linn/batch.h>
#include <linn/uuid.h>

#include "check.h"
#include "crc32c.h"
#include "partitioner.h"
#include "utf8.h"

using linn::detail::crc32c;
using linn::detail::crc32c_by_table;
using linn::detail::is_utf8;
using linn::detail::murmur2;

namespace {

void crc_has_the_published_value() {
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c_by_table("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);  // RFC 3720, B.4.
}

void crc_is_the_same_by_table_in_parts_and_at_any_alignment() {
  std::string bytes;
  for (unsigned place = 0; place < 300; ++place) bytes += static_cast<char>(place * 131 + 7);
  for (std::size_t start = 0; start < 9; ++start) {
    for (std::size_t size = 0; start + size <= bytes.size(); size += 13) {
      const auto part = std::string_view(bytes).substr(start, size);
      CHECK(crc32c(part) == crc32c_by_table(part));
      CHECK(crc32c(part.substr(size / 3), crc32c(part.substr(0, size / 3))) == crc32c(part));
    }
  }
}

void murmur2_is_kafkas() {
  // From UtilsTest of Apache Kafka.
  CHECK(static_cast<std::int32_t>(murmur2("21")) == -973932308);
  CHECK(static_cast<std::int32_t>(murmur2("foobar")) == -790332482);
  CHECK(static_cast<std::int32_t>(murmur2("a-little-bit-long-string")) == -985981536);
  CHECK(static_cast<std::int32_t>(murmur2("a-little-bit-longer-string")) == -1486304829);
  CHECK(static_cast<std::int32_t>(murmur2("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8")) == -58897971);
  CHECK(static_cast<std::int32_t>(murmur2("abc")) == 479470107);
  CHECK(linn::partition_of("21", 7) ==
        static_cast<std::int32_t>((static_cast<std::uint32_t>(-973932308) & 0x7fffffff) % 7));
}

void utf8_takes_text_and_nothing_else() {
  for (const char* text :
       {"", "plain", "sp\xc3\xa4ter", "\xe2\x82\xac", "\xf0\x9f\x90\x9f", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"})
    CHECK(is_utf8(text));
  CHECK(is_utf8(std::string_view("a\0b", 3)));
  for (const char* bytes : {"\xff", "\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                            "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xe2\x28\xa1", "\xc3("})
    CHECK(!is_utf8(bytes));
}

void any_bytes_become_text_of_a_length() {
  using linn::detail::utf8_of;
  CHECK(utf8_of("plain \xe2\x82\xac", 255) == "plain \xe2\x82\xac");
  CHECK(utf8_of("sp\xe4ter", 255) == "sp?ter");
  CHECK(utf8_of("\xf0\x9f\x90", 255) == "???");
  CHECK(utf8_of("a\xe2\x82\xac", 3) == "a");
  CHECK(utf8_of(std::string(1000, 'x'), 255) == std::string(255, 'x'));
  CHECK(utf8_of("", 255).empty());
}

void uuids_keep_their_bytes_and_count_over_the_end() {
  const auto id = linn::Uuid::parse("018BCFE5-6800-7abc-8def-000000000000");
  CHECK(id.high == 0x018bcfe568007abc && id.low == 0x8def000000000000);
  CHECK(id.to_string() == "018bcfe5-6800-7abc-8def-000000000000");
  CHECK(linn::Uuid::from_bytes(id.to_bytes().data()) == id);
  CHECK((linn::Uuid{~0ULL, ~0ULL}.plus(2) == linn::Uuid{0, 1}));
  for (const char* text : {"", "018bcfe5-6800-7abc-8def-00000000000", "018bcfe5-6800-7abc-8def-00000000000g",
                           "018bcfe5x6800-7abc-8def-000000000000"})
    CHECK(code_of([&] { linn::Uuid::parse(text); }) == "message.invalid");
}

}  // namespace

int main() {
  return run({{"a CRC has the published value", crc_has_the_published_value},
              {"a CRC is the same by table, in parts, and at any alignment",
               crc_is_the_same_by_table_in_parts_and_at_any_alignment},
              {"murmur2 is Kafka's", murmur2_is_kafkas},
              {"UTF-8 takes text and nothing else", utf8_takes_text_and_nothing_else},
              {"any bytes become text of a length", any_bytes_become_text_of_a_length},
              {"UUIDs keep their bytes, and count over the end", uuids_keep_their_bytes_and_count_over_the_end}});
}
