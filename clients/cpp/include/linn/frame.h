// Looking at a control message: for tools and tests. Clients need none of this.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace linn {

/// A field's value: a number, a truth, a text, a list, or the fields of a struct by their names in the schema. Enums
/// are numbers.
struct FieldValue {
  using List = std::vector<FieldValue>;
  using Fields = std::vector<std::pair<std::string, FieldValue>>;
  std::variant<bool, std::int64_t, std::uint64_t, std::string, List, Fields> value;
};

struct FrameContent {
  std::uint64_t correlation = 0;
  /// Batches that follow it.
  std::uint16_t batches = 0;
  /// As the schema names it; "unknown" where this version has none.
  std::string member;
  FieldValue::Fields fields;
};

/// Read one whole control message of either side, all of it. Throws Error protocol.malformed.
FrameContent read_frame(std::string_view message);

}  // namespace linn
