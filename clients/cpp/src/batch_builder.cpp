#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include <linn/batch.h>
#include <linn/error.h>

#include "bytes.h"
#include "flat_message.h"
#include "partitioner.h"
#include "routes.h"
#include "seal.h"
#include "utf8.h"
#include "zstd_codec.h"

namespace linn {

using detail::append;
using detail::Field;

namespace {

constexpr std::size_t body_fields = 13, batch_fields = 9;
/// Offsets are Int32, and a field of Cap'n Proto has less than 2^29 bytes.
constexpr std::size_t column_bytes_max = (std::size_t{1} << 29) - 1;

/// Items of variable size while they come, in Arrow's layout.
class GrowingColumn {
 public:
  GrowingColumn() { append(offsets_, std::int32_t{0}); }

  void add(std::optional<std::string_view> item) {
    if (item) bytes_ += *item;
    append(offsets_, static_cast<std::int32_t>(bytes_.size()));
    nulls_ = nulls_ || !item;
    if (count_ % 8 == 0) validity_ += '\0';
    if (item) validity_.back() = static_cast<char>(validity_.back() | 1 << count_ % 8);
    ++count_;
  }

  void add_nulls(std::size_t count) {
    for (; count > 0; --count) add(std::nullopt);
  }

  std::size_t bytes() const noexcept { return bytes_.size(); }
  Field offsets() const noexcept { return offsets_; }
  Field data() const noexcept { return bytes_; }
  Field validity() const noexcept { return nulls_ ? Field(validity_) : std::nullopt; }

 private:
  std::string offsets_;
  std::string bytes_;
  std::string validity_;
  std::size_t count_ = 0;
  bool nulls_ = false;
};

struct GrowingHeaders {
  std::string offsets;
  std::size_t entries = 0;
  GrowingColumn names;
  GrowingColumn values;

  explicit GrowingHeaders(std::size_t records_without) {
    append(offsets, std::int32_t{0});
    end_records(records_without);
  }

  void add(const std::vector<Header>& headers) {
    for (const Header& header : headers) {
      names.add(header.name);
      values.add(header.value);
    }
    entries += headers.size();
    end_records(1);
  }

  void end_records(std::size_t count) {
    for (; count > 0; --count) append(offsets, static_cast<std::int32_t>(entries));
  }

  std::size_t bytes() const noexcept { return offsets.size() + names.bytes() + values.bytes() + 8 * entries; }
};

/// The field of a column of numbers: absent where all are 0.
template <typename Number>
Field unless_zero(const std::vector<Number>& numbers) {
  const bool zero = std::ranges::all_of(numbers, [](Number number) { return number == 0; });
  if (zero) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
}

template <typename Number>
Field all_of(const std::vector<Number>& numbers) {
  return std::string_view(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
}

void check_record(const Record& record) {
  for (const Header& header : record.headers)
    if (!detail::is_utf8(header.name)) throw Error("message.invalid", "the name of a header is not UTF-8");
}

}  // namespace

/// Columns other than values begin with the first record that needs them; the records before it have the default.
struct BatchBuilder::Columns {
  Options options;
  std::size_t count = 0;
  GrowingColumn values;
  std::optional<GrowingColumn> keys;
  std::optional<GrowingHeaders> headers;
  std::vector<detail::Pair> pairs;
  std::unordered_map<std::string, std::uint16_t> pair_places;
  std::vector<std::uint16_t> route_index;
  std::vector<std::uint32_t> key_hashes, delays_ms, ttls_ms;
  std::vector<std::uint8_t> priorities;
  std::vector<std::optional<std::int64_t>> timestamps_ms;
  std::vector<std::optional<Uuid>> ids;

  explicit Columns(Options chosen) : options(chosen) {}

  void check_room(std::size_t more) const {
    if (count == records_max) throw Error("message.invalid", "a batch has at most 1,048,576 records");
    if (bytes() + more > column_bytes_max) throw Error("batch.too_large", "a batch has less than 2^29 bytes");
  }

  std::size_t bytes() const noexcept {
    return values.bytes() + 8 * count + (keys ? keys->bytes() : 0) + (headers ? headers->bytes() : 0) + 312;
  }

  void add_value(std::optional<std::string_view> value) { values.add(value); }

  void add_key(std::optional<std::string_view> key) {
    if (key && !keys) {
      keys.emplace().add_nulls(count);
      key_hashes.assign(count, 0);
    }
    if (!keys) return;
    keys->add(key);
    key_hashes.push_back(detail::key_hash(key));
  }

  void add_headers(const std::vector<Header>& more) {
    if (!more.empty() && !headers) headers.emplace(count);
    if (headers) headers->add(more);
  }

  /// The place of a record's pair. Pairs are kept from the first record on that has a routing key or labels.
  std::uint16_t place_of(std::string_view routing_key, const std::vector<Label>& labels) {
    const bool plain = routing_key.empty() && labels.empty();
    if (plain && pairs.empty()) return 0;
    detail::Pair pair = detail::make_pair_of(routing_key, labels);
    if (pairs.empty() && count > 0) put_pair(detail::Pair{});
    std::string identity = detail::identity_of(pair);
    const auto found = pair_places.find(identity);
    if (found != pair_places.end()) return found->second;
    if (pairs.size() == detail::pairs_max)
      throw Error("message.invalid", "a batch has at most 65,535 distinct routing keys and labels");
    return put_pair(std::move(pair));
  }

  std::uint16_t put_pair(detail::Pair pair) {
    const auto place = static_cast<std::uint16_t>(pairs.size());
    pair_places.emplace(detail::identity_of(pair), place);
    pairs.push_back(std::move(pair));
    return place;
  }

  /// Of a record without any property: only columns that have begun grow.
  void add_plain() {
    if (headers) headers->end_records(1);
    if (!route_index.empty() || !pairs.empty()) add_pair_place(place_of({}, {}));
    if (!timestamps_ms.empty()) timestamps_ms.emplace_back();
    if (!ids.empty()) ids.emplace_back();
    if (!priorities.empty()) priorities.push_back(0);
    if (!delays_ms.empty()) delays_ms.push_back(0);
    if (!ttls_ms.empty()) ttls_ms.push_back(0);
  }

  void add_pair_place(std::uint16_t place) {
    route_index.resize(count, 0);
    route_index.push_back(place);
  }

  template <typename Item, typename Given>
  void add_to(std::vector<Item>& column, const Given& item, bool is_default) {
    if (is_default && column.empty()) return;
    column.resize(count);
    column.push_back(item);
  }

  std::string encode_body(const std::vector<std::int64_t>& times) const {
    std::array<Field, body_fields> fields;
    const bool one_time = std::ranges::adjacent_find(times, std::ranges::not_equal_to{}) == times.end();
    fields[0] = values.offsets();
    fields[1] = values.data();
    if (!one_time) fields[2] = all_of(times);
    if (keys) {
      fields[3] = keys->offsets();
      fields[4] = keys->data();
      fields[5] = keys->validity();
    }
    fields[6] = values.validity();
    if (headers) {
      fields[7] = headers->offsets;
      fields[8] = headers->names.offsets();
      fields[9] = headers->names.data();
      fields[10] = headers->values.offsets();
      fields[11] = headers->values.data();
      fields[12] = headers->values.validity();
    }
    return detail::encode_flat({}, fields);
  }

  std::vector<std::int64_t> times() const {
    std::vector<std::int64_t> times;
    if (timestamps_ms.empty()) return {options.timestamp_ms};
    times.reserve(timestamps_ms.size());
    for (const auto& time : timestamps_ms) times.push_back(time.value_or(options.timestamp_ms));
    return times;
  }

  std::string encode_ids() const {
    std::string bytes;
    for (std::size_t index = 0; index < ids.size(); ++index)
      bytes += ids[index].value_or(options.base_id.plus(index)).to_bytes();
    return bytes;
  }

  std::string numbers(const std::vector<std::int64_t>& times, std::size_t body_bytes) const {
    std::string numbers(36, '\0');  // The stamp, and the crc that is written last.
    append(numbers, static_cast<std::uint32_t>(count));
    append(numbers, times.front());
    append(numbers, *std::ranges::max_element(times));
    append(numbers, std::int64_t{0});   // producerId
    append(numbers, std::uint32_t{0});  // firstSequence
    append(numbers, std::uint32_t{0});  // producerEpoch, attributes
    append(numbers, static_cast<std::uint8_t>(options.codec));
    append(numbers, std::uint8_t{0});  // format
    append(numbers, static_cast<std::uint16_t>(pairs.size()));
    append(numbers, static_cast<std::uint32_t>(body_bytes));
    append(numbers, options.base_id.high);
    append(numbers, options.base_id.low);
    append(numbers, std::uint64_t{0});  // transaction
    append(numbers, static_cast<std::uint32_t>(count));  // offsetSpan
    append(numbers, std::uint32_t{0});
    return numbers;
  }

  std::string encode() const {
    const std::vector<std::int64_t> record_times = times();
    std::string body = encode_body(record_times);
    const std::size_t body_bytes = body.size();
    if (options.codec == Codec::zstd) body = detail::zstd_compress(body);
    const std::string routes = pairs.empty() ? std::string() : detail::encode_routes(pairs);
    const std::string id_bytes = encode_ids();
    std::array<Field, batch_fields> fields;
    fields[0] = body;
    if (!pairs.empty()) fields[1] = routes;
    if (pairs.size() > 1) fields[2] = all_of(route_index);
    if (options.key_hashes && keys) fields[3] = all_of(key_hashes);
    fields[4] = unless_zero(priorities);
    fields[5] = unless_zero(delays_ms);
    fields[6] = unless_zero(ttls_ms);
    if (!ids.empty()) fields[7] = id_bytes;
    return detail::encode_flat(numbers(record_times, body_bytes), fields);
  }
};

BatchBuilder::BatchBuilder(Options options) : columns_(std::make_unique<Columns>(options)) {}
BatchBuilder::BatchBuilder() : BatchBuilder(Options{}) {}
BatchBuilder::~BatchBuilder() = default;
BatchBuilder::BatchBuilder(BatchBuilder&&) noexcept = default;
BatchBuilder& BatchBuilder::operator=(BatchBuilder&&) noexcept = default;

void BatchBuilder::add(const Record& record) {
  Columns& columns = *columns_;
  check_record(record);
  std::size_t bytes = (record.value ? record.value->size() : 0) + (record.key ? record.key->size() : 0);
  for (const Header& header : record.headers)
    bytes += header.name.size() + (header.value ? header.value->size() : 0) + 8;
  columns.check_room(bytes);
  const std::uint16_t place = columns.place_of(record.routing_key, record.labels);
  if (!columns.pairs.empty()) columns.add_pair_place(place);
  columns.add_value(record.value);
  columns.add_key(record.key);
  columns.add_headers(record.headers);
  columns.add_to(columns.timestamps_ms, record.timestamp_ms, !record.timestamp_ms);
  columns.add_to(columns.ids, record.id, !record.id);
  columns.add_to(columns.priorities, record.priority, record.priority == 0);
  columns.add_to(columns.delays_ms, record.delay_ms, record.delay_ms == 0);
  columns.add_to(columns.ttls_ms, record.ttl_ms, record.ttl_ms == 0);
  ++columns.count;
}

void BatchBuilder::add(std::string_view value, std::optional<std::string_view> key) {
  Columns& columns = *columns_;
  columns.check_room(value.size() + (key ? key->size() : 0));
  columns.add_plain();
  columns.add_value(value);
  columns.add_key(key);
  ++columns.count;
}

std::size_t BatchBuilder::size() const noexcept { return columns_->count; }
std::size_t BatchBuilder::bytes() const noexcept { return columns_->bytes(); }

std::string BatchBuilder::build(Options options) {
  if (empty()) throw std::logic_error("a batch holds at least one record");
  const std::unique_ptr<Columns> sealed = std::exchange(columns_, std::make_unique<Columns>(options));
  sealed->options = options;
  return sealed->encode();
}

std::string BatchBuilder::seal(Options options) {
  std::string batch = build(options);
  detail::seal(batch);
  return batch;
}

std::string BatchBuilder::seal() { return seal(columns_->options); }

}  // namespace linn
