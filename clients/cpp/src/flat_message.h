// A Cap'n Proto message whose root struct holds numbers and Data fields only: RecordBatch and its Body are such.
//
// Written and read by bytes, so that a batch is joined once and every field is a view of it. The layout is the one of
// docs/reference/batch-format.md: segment table, root pointer, numbers, pointers, and the fields' bytes in their order.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace linn::detail {

/// The bytes of a field. std::nullopt is an absent field, a null pointer; empty bytes are a present field.
using Field = std::optional<std::string_view>;

/// Where the numbers of the root struct begin.
inline constexpr std::size_t numbers_at = 16;

/// Join numbers (whole words) and fields, without the null pointers at the end. Throws Error batch.too_large where a field has 2^29 bytes or more.
std::string encode_flat(std::string_view numbers, std::span<const Field> fields);

/// The first `fields.size()` fields of a message that has at least `number_bytes` of numbers; newer writers may have
/// more of both, and fields without a pointer are absent. All of them are inside the message, and together not longer
/// than it.
///
/// Throws Error batch.malformed.
void decode_flat(std::string_view message, std::size_t number_bytes, std::span<Field> fields);

/// Only that the message is one segment that fills it, with a root struct first that is large enough.
///
/// Throws Error batch.malformed.
void check_flat_head(std::string_view message, std::size_t number_bytes);

}  // namespace linn::detail
