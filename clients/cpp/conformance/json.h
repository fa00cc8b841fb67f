// Json: as much of it as a conformance agent needs. Integers keep 64 bits, and are told from floats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

struct Json {
  using List = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, List, Object> value = nullptr;

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool truth) : value(truth) {}
  Json(std::int64_t number) : value(number) {}
  Json(std::uint64_t number) : value(number) {}
  Json(std::int32_t number) : value(std::int64_t{number}) {}
  Json(std::uint32_t number) : value(std::uint64_t{number}) {}
  Json(double number) : value(number) {}
  Json(std::string text) : value(std::move(text)) {}
  Json(std::string_view text) : value(std::string(text)) {}
  Json(const char* text) : value(std::string(text)) {}
  Json(List list) : value(std::move(list)) {}
  Json(Object object) : value(std::move(object)) {}

  /// Throws std::runtime_error with the place where the text is not JSON.
  static Json parse(std::string_view text);
  /// On one line.
  std::string dump() const;

  bool is_null() const noexcept { return std::holds_alternative<std::nullptr_t>(value); }
  /// An object's member, or null.
  const Json& operator[](std::string_view name) const;
  bool has(std::string_view name) const { return !(*this)[name].is_null(); }

  // What it holds, or what is given where it is null. Throw std::runtime_error where it is of another type.
  std::string text(std::string_view otherwise = "") const;
  std::int64_t number(std::int64_t otherwise = 0) const;
  std::uint64_t natural(std::uint64_t otherwise = 0) const;
  bool truth(bool otherwise = false) const;
  const List& list() const;
  const Object& object() const;
};
