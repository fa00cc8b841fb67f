// What a batch is made of, once it was checked: views of its bytes by column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <linn/batch.h>

#include "bytes.h"
#include "flat_message.h"
#include "routes.h"

namespace linn {
namespace detail {

/// Items of variable size in Arrow's layout, checked: offsets begin with 0, never decrease and end with the bytes.
struct BinaryColumn {
  std::string_view offsets;
  std::string_view bytes;
  Field validity;

  std::optional<std::string_view> operator[](std::size_t index) const noexcept {
    if (validity && ((*validity)[index / 8] >> (index % 8) & 1) == 0) return std::nullopt;
    return item(index);
  }

  /// Of a column that has no nulls.
  std::string_view item(std::size_t index) const noexcept {
    const auto start = static_cast<std::size_t>(end_at(index));
    return {bytes.data() + start, static_cast<std::size_t>(end_at(index + 1)) - start};
  }

  std::int32_t end_at(std::size_t place) const noexcept { return load<std::int32_t>(offsets.data() + 4 * place); }
};

struct HeaderColumn {
  std::string_view offsets;
  BinaryColumn names;
  BinaryColumn values;
};

}  // namespace detail

struct RecordView::Columns {
  std::string message;
  /// The body where it had to be decompressed; empty otherwise.
  std::string body;
  BatchHeader header;
  bool stamped = false;
  std::vector<detail::Pair> pairs;
  detail::Field route_index, priorities, delays_ms, ttls_ms, ids, offset_deltas, timestamps_ms;
  std::optional<detail::BinaryColumn> keys;
  detail::BinaryColumn values;
  std::optional<detail::HeaderColumn> headers;

  const detail::Pair& pair_of(std::size_t index) const noexcept;
  /// The offset of a record; with the number of records, the offset behind the batch.
  std::int64_t offset_at(std::size_t index) const noexcept;
};

}  // namespace linn
