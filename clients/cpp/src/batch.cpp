#include <linn/batch.h>

#include <array>
#include <span>

#include <linn/error.h>

#include "columns.h"
#include "crc32c.h"
#include "utf8.h"
#include "zstd_codec.h"

namespace linn {

using detail::BinaryColumn;
using detail::Field;
using detail::HeaderColumn;
using detail::load;

namespace {

constexpr std::size_t number_bytes = 14 * 8;
constexpr std::uint32_t offset_span_max = (std::uint32_t{1} << 31) - 1;
/// The places of a batch's fields, and of its body's.
enum : std::size_t { body_at, routes_at, route_index_at, key_hashes_at, priorities_at, delays_at, ttls_at, ids_at };
constexpr std::size_t deltas_at = 8, field_count = 9, body_field_count = 13;
constexpr std::size_t stamp_at = 16, stamp_crc_at = 44, crc_at = 48, count_at = 52;

const detail::Pair no_pair{};

[[noreturn]] void malformed(std::string_view text) { throw Error("batch.malformed", text); }

BatchHeader read_numbers(const char* at) noexcept {
  BatchHeader header;
  header.base_offset = load<std::int64_t>(at + 16);
  header.append_time_ms = load<std::int64_t>(at + 24);
  header.durable_offset = load<std::int64_t>(at + 32);
  header.leader_epoch = load<std::int32_t>(at + 40);
  header.stamp_crc = load<std::uint32_t>(at + 44);
  header.crc = load<std::uint32_t>(at + 48);
  header.count = load<std::uint32_t>(at + 52);
  header.first_timestamp_ms = load<std::int64_t>(at + 56);
  header.max_timestamp_ms = load<std::int64_t>(at + 64);
  header.producer_id = load<std::int64_t>(at + 72);
  header.first_sequence = load<std::uint32_t>(at + 80);
  header.producer_epoch = load<std::uint16_t>(at + 84);
  header.attributes = load<std::uint16_t>(at + 86);
  header.codec = load<std::uint8_t>(at + 88);
  header.format = load<std::uint8_t>(at + 89);
  header.pair_count = load<std::uint16_t>(at + 90);
  header.body_bytes = load<std::uint32_t>(at + 92);
  header.id_high = load<std::uint64_t>(at + 96);
  header.id_low = load<std::uint64_t>(at + 104);
  header.transaction = load<std::uint64_t>(at + 112);
  header.offset_span = load<std::uint32_t>(at + 120);
  return header;
}

/// A column that is absent, or has `bytes`.
void check_size(const Field& column, std::size_t bytes, const char* what) {
  if (column && column->size() != bytes) malformed(std::string(what) + " do not fit the number of records");
}

/// `count` + 1 offsets that begin with 0, never decrease and end with `end`.
void check_offsets(std::string_view offsets, std::size_t count, std::size_t end, const char* what) {
  if (offsets.size() / 4 != count + 1 || offsets.size() % 4 != 0)
    malformed(std::string("the offsets of ") + what + " do not fit the number of records");
  std::int32_t last = load<std::int32_t>(offsets.data());
  bool ascending = last == 0;
  for (std::size_t place = 1; place <= count; ++place) {
    const auto next = load<std::int32_t>(offsets.data() + 4 * place);
    ascending = ascending && next >= last;
    last = next;
  }
  if (!ascending || static_cast<std::uint32_t>(last) != end)
    malformed(std::string("the offsets of ") + what + " do not begin with 0, decrease, or do not end with their bytes");
}

BinaryColumn read_column(const Field& offsets, const Field& bytes, const Field& validity, std::size_t count,
                         const char* what) {
  if (!offsets) malformed(std::string(what) + " have no offsets");
  const BinaryColumn column{*offsets, bytes.value_or(std::string_view{}), validity};
  check_offsets(column.offsets, count, column.bytes.size(), what);
  if (validity && validity->size() != (count + 7) / 8)
    malformed(std::string("the validity of ") + what + " does not fit");
  return column;
}

HeaderColumn read_headers(std::span<const Field> fields, std::size_t count) {
  const std::string_view offsets = *fields[0];
  if (offsets.size() != 4 * (count + 1)) malformed("the headers do not fit the number of records");
  const auto entries = load<std::int32_t>(offsets.data() + 4 * count);
  if (entries < 0) malformed("the offsets of headers decrease");
  const auto entry_count = static_cast<std::size_t>(entries);
  check_offsets(offsets, count, entry_count, "headers");
  return {offsets, read_column(fields[1], fields[2], std::nullopt, entry_count, "header names"),
          read_column(fields[3], fields[4], fields[5], entry_count, "header values")};
}

bool is_zero(std::string_view bytes) noexcept { return bytes.find_first_not_of('\0') == std::string_view::npos; }

}  // namespace

/// Checks a message step by step, in the order of the format's page.
struct BatchReader {
  RecordView::Columns& columns;
  std::size_t bytes_max;
  std::array<Field, field_count> fields{};

  void read() {
    const std::string_view message = columns.message;
    detail::check_flat_head(message, number_bytes);
    if (message.size() > bytes_max) throw Error("batch.too_large", "the batch is over the limit");
    detail::decode_flat(message, number_bytes, fields);
    columns.header = read_numbers(message.data());
    if (columns.header.body_bytes > bytes_max)
      throw Error("batch.too_large", "the body of the batch is over the limit");
    read_seals(message);
    read_columns();
    read_body();
  }

  void read_seals(std::string_view message) const {
    const std::uint32_t head = detail::crc32c(message.substr(0, stamp_at));
    if (detail::crc32c(message.substr(count_at), head) != columns.header.crc)
      throw Error("batch.corrupt", "the CRC of the batch does not match", true);
    columns.stamped = !is_zero(message.substr(stamp_at, crc_at - stamp_at));
    const std::string_view stamp = message.substr(stamp_at, stamp_crc_at - stamp_at);
    if (columns.stamped && detail::crc32c(stamp) != columns.header.stamp_crc)
      throw Error("batch.corrupt", "the CRC of the batch's stamp does not match", true);
  }

  void read_columns() const {
    const std::size_t count = columns.header.count;
    if (count == 0 || count > BatchBuilder::records_max) malformed("the batch has no records, or too many");
    check_size(fields[route_index_at], 2 * count, "the route index");
    check_size(fields[key_hashes_at], 4 * count, "the key hashes");
    check_size(fields[priorities_at], count, "the priorities");
    check_size(fields[delays_at], 4 * count, "the delays");
    check_size(fields[ttls_at], 4 * count, "the times to live");
    check_size(fields[ids_at], 16 * count, "the ids");
    check_size(fields[deltas_at], 4 * count, "the offsets");
    columns.route_index = fields[route_index_at];
    columns.priorities = fields[priorities_at];
    columns.delays_ms = fields[delays_at];
    columns.ttls_ms = fields[ttls_at];
    columns.ids = fields[ids_at];
    columns.offset_deltas = fields[deltas_at];
    read_routes();
    read_offsets();
  }

  void read_offsets() const {
    const std::uint32_t count = columns.header.count, span = columns.header.offset_span;
    const Field& deltas = fields[deltas_at];
    if (span < count || span > offset_span_max || deltas.has_value() != (span > count))
      malformed("the offsets of the batch do not fit its span");
    std::uint32_t next = 0;
    for (std::size_t place = 0; deltas && place < deltas->size(); place += 4) {
      const auto delta = load<std::uint32_t>(deltas->data() + place);
      if (delta < next || delta >= span) malformed("the offsets of the batch do not ascend, or exceed its span");
      next = delta + 1;
    }
  }

  void read_routes() const {
    const std::size_t pair_count = columns.header.pair_count;
    const Field& index = fields[route_index_at];
    if (fields[routes_at].has_value() != (pair_count > 0) || index.has_value() != (pair_count > 1))
      malformed("the routes or their index do not fit the number of pairs");
    if (pair_count == 0) return;
    columns.pairs = detail::decode_routes(*fields[routes_at], pair_count);
    for (std::size_t place = 0; index && place < index->size(); place += 2)
      if (load<std::uint16_t>(index->data() + place) >= pair_count)
        malformed("a record has a pair that is not there");
  }

  void read_body() const {
    if (!fields[body_at]) malformed("the batch has no body");
    if (columns.header.format != 0) malformed("the body is of a format that this client does not know");
    std::string_view body = *fields[body_at];
    if (columns.header.codec == static_cast<std::uint8_t>(Codec::zstd)) {
      columns.body = detail::zstd_decompress(body, columns.header.body_bytes);
      body = columns.body;
    } else if (columns.header.codec != 0) {
      malformed("the body is compressed in a way that this client does not know");
    }
    if (body.size() != columns.header.body_bytes) malformed("the body has another size than the batch says");
    read_body_columns(body, columns.header.count);
  }

  void read_body_columns(std::string_view body, std::size_t count) const {
    std::array<Field, body_field_count> parts;
    detail::decode_flat(body, 0, parts);
    check_size(parts[2], 8 * count, "the timestamps");
    columns.timestamps_ms = parts[2];
    if (parts[3]) columns.keys = read_column(parts[3], parts[4], parts[5], count, "keys");
    columns.values = read_column(parts[0], parts[1], parts[6], count, "values");
    if (parts[7]) columns.headers = read_headers(std::span(parts).subspan(7), count);
  }
};

const detail::Pair& RecordView::Columns::pair_of(std::size_t index) const noexcept {
  if (pairs.empty()) return no_pair;
  return pairs[route_index ? load<std::uint16_t>(route_index->data() + 2 * index) : 0];
}

std::int64_t RecordView::Columns::offset_at(std::size_t index) const noexcept {
  std::size_t delta = index;
  if (index == header.count) delta = header.offset_span;
  else if (offset_deltas) delta = load<std::uint32_t>(offset_deltas->data() + 4 * index);
  return detail::offset_behind(header.base_offset, delta);
}

Batch Batch::decode(std::string message, std::size_t bytes_max) {
  auto columns = std::make_shared<RecordView::Columns>();
  columns->message = std::move(message);  // It does not move again: all else are views of it.
  BatchReader{*columns, bytes_max}.read();
  return Batch(std::move(columns));
}

const BatchHeader& Batch::header() const noexcept { return columns_->header; }
std::string_view Batch::message() const noexcept { return columns_->message; }
bool Batch::stamped() const noexcept { return columns_->stamped; }
std::size_t Batch::size() const noexcept { return columns_->header.count; }
std::int64_t Batch::first_offset() const noexcept { return columns_->header.base_offset; }
std::int64_t Batch::end_offset() const noexcept { return columns_->offset_at(size()); }
RecordView Batch::operator[](std::size_t index) const noexcept { return {columns_.get(), index}; }

std::optional<std::string_view> RecordView::value() const noexcept { return columns_->values[index_]; }

std::optional<std::string_view> RecordView::key() const noexcept {
  return columns_->keys ? (*columns_->keys)[index_] : std::nullopt;
}

std::string_view RecordView::routing_key() const noexcept { return columns_->pair_of(index_).routing_key; }
const std::vector<Label>& RecordView::labels() const noexcept { return columns_->pair_of(index_).labels; }

std::vector<Header> RecordView::headers() const {
  std::vector<Header> headers;
  if (!columns_->headers) return headers;
  const HeaderColumn& column = *columns_->headers;
  const auto end = static_cast<std::size_t>(load<std::int32_t>(column.offsets.data() + 4 * (index_ + 1)));
  for (auto entry = static_cast<std::size_t>(load<std::int32_t>(column.offsets.data() + 4 * index_)); entry < end;
       ++entry) {
    const std::string_view name = column.names.item(entry);
    if (!detail::is_utf8(name)) malformed("the name of a header is not UTF-8");
    const auto value = column.values[entry];
    headers.push_back({std::string(name), value ? std::optional<std::string>(*value) : std::nullopt});
  }
  return headers;
}

Uuid RecordView::id() const noexcept {
  if (columns_->ids) return Uuid::from_bytes(columns_->ids->data() + 16 * index_);
  return Uuid{columns_->header.id_high, columns_->header.id_low}.plus(index_);
}

std::int64_t RecordView::timestamp_ms() const noexcept {
  const Field& column = columns_->timestamps_ms;
  return column ? load<std::int64_t>(column->data() + 8 * index_) : columns_->header.first_timestamp_ms;
}

std::uint8_t RecordView::priority() const noexcept {
  return columns_->priorities ? load<std::uint8_t>(columns_->priorities->data() + index_) : std::uint8_t{0};
}

std::uint32_t RecordView::delay_ms() const noexcept {
  return columns_->delays_ms ? load<std::uint32_t>(columns_->delays_ms->data() + 4 * index_) : 0;
}

std::uint32_t RecordView::ttl_ms() const noexcept {
  return columns_->ttls_ms ? load<std::uint32_t>(columns_->ttls_ms->data() + 4 * index_) : 0;
}

std::int64_t RecordView::offset() const noexcept { return columns_->offset_at(index_); }
std::int64_t RecordView::next_offset() const noexcept { return columns_->offset_at(index_ + 1); }

Record RecordView::copy() const {
  const auto copied = [](std::optional<std::string_view> bytes) {
    return bytes ? std::optional<std::string>(*bytes) : std::nullopt;
  };
  return Record{.value = copied(value()),
                .key = copied(key()),
                .routing_key = std::string(routing_key()),
                .labels = labels(),
                .headers = headers(),
                .id = id(),
                .timestamp_ms = timestamp_ms(),
                .priority = priority(),
                .delay_ms = delay_ms(),
                .ttl_ms = ttl_ms()};
}

}  // namespace linn
