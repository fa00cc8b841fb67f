// Record: one message as a producer makes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <linn/uuid.h>

namespace linn {

/// Values keep their type: true, 1 and 1.0 are three different labels. Text is UTF-8.
using LabelValue = std::variant<std::string, std::int64_t, double, bool>;

/// A typed property that exchanges can see.
struct Label {
  std::string name;
  LabelValue value;

  bool operator==(const Label&) const = default;
};

/// A property that only readers see. Names are UTF-8 and may repeat; a value may be null.
struct Header {
  std::string name;
  std::optional<std::string> value;

  bool operator==(const Header&) const = default;
};

/// What is published. Value and keys are bytes. Copied when it is added to a batch.
///
///     linn::Record{.value = "late by 42 minutes", .key = "UA1545", .routing_key = "departed.EWR.late"}
struct Record {
  /// std::nullopt is a tombstone, which is not the same as an empty value.
  std::optional<std::string> value = std::string{};
  std::optional<std::string> key = std::nullopt;
  std::string routing_key = {};
  /// In any order; names must be distinct.
  std::vector<Label> labels = {};
  std::vector<Header> headers = {};
  /// Without one, ids are counted from the batch's.
  std::optional<Uuid> id = std::nullopt;
  /// Since 1970; without one it has the batch's.
  std::optional<std::int64_t> timestamp_ms = std::nullopt;
  std::uint8_t priority = 0;
  std::uint32_t delay_ms = 0;
  std::uint32_t ttl_ms = 0;
};

}  // namespace linn
