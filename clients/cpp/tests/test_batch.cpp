// Record batches: round trips, the bytes of docs/reference/batch-format.md, and what hostile ones do.
#include <algorithm>
#include <string>
#include <vector>

#include <linn/batch.h>

#include "bytes.h"
#include "check.h"
#include "crc32c.h"

using namespace linn;
using detail::load;
using detail::store;

namespace {

constexpr std::size_t crc_at = 48;
const Uuid base_id = Uuid::parse("018bcfe5-6800-7abc-8def-000000000000");

std::string sealed(std::string message) {
  const std::string_view bytes = message;
  store(message.data() + crc_at, detail::crc32c(bytes.substr(52), detail::crc32c(bytes.substr(0, 16))));
  return message;
}

std::string stamped(std::string message, std::int64_t base_offset) {
  store(message.data() + 16, base_offset);
  store(message.data() + 44, detail::crc32c(std::string_view(message).substr(16, 28)));
  return message;
}

std::vector<Record> records_of_the_page() {
  return {{.value = "hello",
           .key = "k",
           .routing_key = "a.b",
           .labels = {{"late", true}},
           .headers = {{"h", "1"}},
           .timestamp_ms = 1'700'000'000'000},
          {.value = std::nullopt,
           .key = "k",
           .routing_key = "a.b",
           .labels = {{"late", true}},
           .timestamp_ms = 1'700'000'000'001}};
}

/// Everything that a batch may have.
std::vector<Record> rich_records() {
  std::vector<Record> records = records_of_the_page();
  records.push_back({});
  records.push_back(
      {.value = "z", .key = "", .labels = {{"z", "text"}, {"a", std::int64_t{-5}}, {"m", 1.0}}, .priority = 9});
  records.push_back({.value = "z",
                     .labels = {{"m", std::int64_t{1}}},
                     .headers = {{"x", std::nullopt}, {"x", ""}},
                     .id = Uuid{1, 2}});
  records.push_back({.value = std::string(300, 'v'), .delay_ms = 7, .ttl_ms = 8});
  return records;
}

std::string built(const std::vector<Record>& records, BatchBuilder::Options options = {.base_id = base_id}) {
  BatchBuilder builder(options);
  for (const Record& record : records) builder.add(record);
  return builder.seal();
}

void the_pages_example_has_its_size_and_crc() {
  const std::string message = built(records_of_the_page());
  CHECK(message.size() == 480);
  CHECK(load<std::uint32_t>(message.data() + crc_at) == 0x6910588f);
}

void what_was_added_is_read() {
  const std::vector<Record> records = rich_records();
  const Batch batch = Batch::decode(built(records, {.base_id = base_id, .timestamp_ms = 55, .key_hashes = true}));
  CHECK(batch.size() == records.size() && !batch.stamped());
  std::size_t index = 0;
  for (const RecordView read : batch) {
    const Record& record = records[index];
    std::vector<Label> labels = record.labels;
    std::ranges::sort(labels, {}, &Label::name);
    const Record copy = read.copy();
    CHECK(copy.value == record.value && copy.key == record.key && copy.routing_key == record.routing_key);
    CHECK(copy.labels == labels && copy.headers == record.headers);
    CHECK(copy.id == record.id.value_or(base_id.plus(index)));
    CHECK(copy.timestamp_ms == record.timestamp_ms.value_or(55));
    CHECK(copy.priority == record.priority && copy.delay_ms == record.delay_ms && copy.ttl_ms == record.ttl_ms);
    ++index;
  }
  CHECK(batch.header().pair_count == 4 && batch.header().max_timestamp_ms == 1'700'000'000'001);
}

void the_fast_way_gives_the_same_bytes() {
  BatchBuilder builder({.base_id = base_id, .timestamp_ms = 3});
  builder.add("a");
  builder.add("b", "key");
  builder.add(Record{.value = "c", .headers = {{"h", "1"}}, .priority = 3});
  builder.add("d");
  const std::vector<Record> same{{.value = "a"},
                                 {.value = "b", .key = "key"},
                                 {.value = "c", .headers = {{"h", "1"}}, .priority = 3},
                                 {.value = "d"}};
  CHECK(builder.seal() == built(same, {.base_id = base_id, .timestamp_ms = 3}));
  CHECK(builder.empty());
}

void columns_of_defaults_are_absent() {
  const std::string plain =
      built({{.value = "x", .timestamp_ms = 5}, {.value = "x", .timestamp_ms = 5}}, {.base_id = base_id});
  BatchBuilder builder({.base_id = base_id, .timestamp_ms = 5});
  builder.add("x");
  builder.add("x");
  CHECK(plain == builder.seal());
}

void copies_of_a_batch_keep_its_bytes() {
  std::optional<std::string_view> value;
  std::optional<Batch> copy;
  {
    const Batch batch = Batch::decode(built(rich_records()));
    copy = batch;
    value = batch[5].value();
  }
  CHECK(*value == std::string(300, 'v') && (*copy)[5].value() == value);
}

void a_stamp_gives_offsets_and_is_checked() {
  const std::string message = stamped(built(rich_records()), 41);
  const Batch batch = Batch::decode(message);
  CHECK(batch.stamped() && batch.first_offset() == 41 && batch.end_offset() == 47 && batch[2].offset() == 43);
  std::string damaged = message;
  damaged[20] ^= 1;
  CHECK(code_of([&] { Batch::decode(damaged); }) == "batch.corrupt");
  CHECK(Batch::decode(stamped(built({{}}), INT64_MAX))[0].offset() == INT64_MAX);
}

void every_changed_bit_under_the_seal_is_found() {
  const std::string message = built(records_of_the_page());
  for (std::size_t bit = 0; bit < message.size() * 8; ++bit) {
    if (bit / 8 >= 16 && bit / 8 < 48) continue;
    std::string damaged = message;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    const std::string code = code_of([&] { Batch::decode(damaged); });
    CHECK(code == "batch.corrupt" || code == "batch.malformed" || code == "batch.too_large");
  }
}

/// What a hostile client does: damage with a valid seal. Whatever is taken can be read to its end.
void every_changed_byte_with_a_valid_seal_is_read_or_refused() {
  std::size_t taken = 0;
  for (const std::string& message :
       {built(records_of_the_page()), built(rich_records(), {.base_id = base_id, .key_hashes = true})}) {
    for (std::size_t place = 0; place < message.size(); ++place) {
      for (const int value : {0, 1, 0x7f, 0x80, 0xff, 8}) {
        std::string damaged = message;
        damaged[place] = static_cast<char>(value);
        const std::string code = code_of([&] {
          const Batch batch = Batch::decode(sealed(damaged));
          for (const RecordView record : batch) record.copy();
          ++taken;
        });
        CHECK(code.empty() || code == "batch.malformed" || code == "batch.too_large" || code == "batch.corrupt" ||
              code == "message.unsupported");
      }
    }
  }
  CHECK(taken > 1'000);  // Most bytes are content.
}

void every_cut_is_refused() {
  const std::string message = built(rich_records());
  for (std::size_t size = 0; size < message.size(); ++size)
    CHECK(code_of([&] { Batch::decode(message.substr(0, size)); }) == "batch.malformed");
  CHECK(code_of([&] { Batch::decode(message + std::string(8, '\0')); }) == "batch.malformed");
}

void limits_are_held() {
  const std::string message = built(rich_records());
  CHECK(code_of([&] { Batch::decode(message, message.size() - 1); }) == "batch.too_large");
  const auto invalid = [](const Record& record) {
    return code_of([&] { BatchBuilder().add(record); }) == "message.invalid";
  };
  CHECK(invalid({.routing_key = std::string(4'097, 'x')}) && invalid({.routing_key = "\xff"}));
  CHECK(invalid({.labels = {{"a", true}, {"a", false}}}) && invalid({.labels = std::vector<Label>(257)}));
  CHECK(invalid({.headers = {{"\xff", "x"}}}));
  CHECK(!invalid({.routing_key = std::string(4'096, 'x')}));
}

void a_refused_record_leaves_the_batch_as_it_was() {
  BatchBuilder builder({.base_id = base_id});
  builder.add("a");
  CHECK(code_of([&] { builder.add(Record{.key = "k", .labels = {{"\xff", true}}, .headers = {{"h", ""}}}); }) ==
        "message.invalid");
  builder.add("b");
  CHECK(builder.seal() == built({{.value = "a"}, {.value = "b"}}));
}

void zstd_is_read_back_or_said_to_be_missing() {
  std::vector<Record> records(1'000, Record{.value = std::string(100, 'x')});
  const BatchBuilder::Options options{.base_id = base_id, .codec = Codec::zstd};
  if (!zstd_available()) {
    CHECK(code_of([&] { built(records, options); }) == "message.unsupported");
    return;
  }
  const std::string message = built(records, options);
  CHECK(message.size() < 10'000);
  CHECK(Batch::decode(message)[999].value() == std::string(100, 'x'));
  for (std::size_t place = 184; place < message.size(); ++place) {
    std::string damaged = message;
    damaged[place] ^= 0x55;
    const std::string code = code_of([&] { Batch::decode(sealed(damaged)); });
    CHECK(code.empty() || code == "batch.malformed");
  }
}

}  // namespace

int main() {
  return run({{"the page's example has its size and CRC", the_pages_example_has_its_size_and_crc},
              {"what was added is read", what_was_added_is_read},
              {"the fast way gives the same bytes", the_fast_way_gives_the_same_bytes},
              {"columns of defaults are absent", columns_of_defaults_are_absent},
              {"copies of a batch keep its bytes", copies_of_a_batch_keep_its_bytes},
              {"a stamp gives offsets, and is checked", a_stamp_gives_offsets_and_is_checked},
              {"every changed bit under the seal is found", every_changed_bit_under_the_seal_is_found},
              {"every changed byte with a valid seal is read or refused",
               every_changed_byte_with_a_valid_seal_is_read_or_refused},
              {"every cut is refused", every_cut_is_refused},
              {"limits are held", limits_are_held},
              {"a refused record leaves the batch as it was", a_refused_record_leaves_the_batch_as_it_was},
              {"zstd is read back, or said to be missing", zstd_is_read_back_or_said_to_be_missing}});
}
