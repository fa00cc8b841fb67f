#include "json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace {

constexpr int depth_max = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json whole() {
    Json json = value(0);
    skip_space();
    if (place_ != text_.size()) fail();
    return json;
  }

 private:
  [[noreturn]] void fail() const { throw std::runtime_error("not JSON at " + std::to_string(place_)); }

  void skip_space() {
    while (place_ < text_.size() && std::string_view(" \t\r\n").find(text_[place_]) != std::string_view::npos) ++place_;
  }

  char peek() const { return place_ < text_.size() ? text_[place_] : '\0'; }

  bool take(std::string_view word) {
    if (!text_.substr(place_).starts_with(word)) return false;
    place_ += word.size();
    return true;
  }

  void expect(std::string_view word) {
    skip_space();
    if (!take(word)) fail();
  }

  Json value(int depth) {
    if (depth > depth_max) fail();
    skip_space();
    switch (peek()) {
      case '{': return object(depth);
      case '[': return list(depth);
      case '"': return string();
      default: break;
    }
    if (take("null")) return nullptr;
    if (take("true")) return true;
    if (take("false")) return false;
    if (take("NaN")) return std::numeric_limits<double>::quiet_NaN();
    if (take("Infinity")) return std::numeric_limits<double>::infinity();
    if (take("-Infinity")) return -std::numeric_limits<double>::infinity();
    return number();
  }

  Json object(int depth) {
    Json::Object members;
    expect("{");
    skip_space();
    if (take("}")) return members;
    do {
      skip_space();
      std::string name = string();
      expect(":");
      members.emplace_back(std::move(name), value(depth + 1));
      skip_space();
    } while (take(","));
    expect("}");
    return members;
  }

  Json list(int depth) {
    Json::List entries;
    expect("[");
    skip_space();
    if (take("]")) return entries;
    do {
      entries.push_back(value(depth + 1));
      skip_space();
    } while (take(","));
    expect("]");
    return entries;
  }

  Json number() {
    const std::size_t end = text_.find_first_not_of("+-.0123456789eE", place_);
    const std::string_view digits = text_.substr(place_, end - place_);
    place_ += digits.size();
    if (digits.find_first_of(".eE") != std::string_view::npos) return converted<double>(digits);
    if (digits.size() > 18 && digits.front() != '-') return large(digits);
    return converted<std::int64_t>(digits);
  }

  Json large(std::string_view digits) {
    const auto number = converted<std::uint64_t>(digits);
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return number;
    return static_cast<std::int64_t>(number);
  }

  template <typename Number>
  Number converted(std::string_view digits) {
    Number number{};
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (problem != std::errc() || end != digits.data() + digits.size() || digits.empty()) fail();
    return number;
  }

  std::string string() {
    std::string text;
    if (!take("\"")) fail();
    while (!take("\"")) {
      if (place_ == text_.size()) fail();
      const char character = text_[place_++];
      if (character != '\\')
        text += character;
      else
        escape(text);
    }
    return text;
  }

  void escape(std::string& text) {
    constexpr std::string_view names = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    const char name = peek();
    ++place_;
    if (name == 'u') return append_point(text, point());
    const std::size_t which = names.find(name);
    if (which == std::string_view::npos || place_ > text_.size()) fail();
    text += meanings[which];
  }

  std::uint32_t point() {
    const std::uint32_t first = four_digits();
    if (first < 0xd800 || first > 0xdbff || !take("\\u")) return first;
    return 0x10000 + ((first - 0xd800) << 10) + (four_digits() - 0xdc00);
  }

  std::uint32_t four_digits() {
    std::uint32_t number = 0;
    const std::string_view digits = text_.substr(std::min(place_, text_.size()), 4);
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
    if (digits.size() < 4 || problem != std::errc() || end != digits.data() + 4) fail();
    place_ += 4;
    return number;
  }

  static void append_point(std::string& text, std::uint32_t point) {
    if (point < 0x80) {
      text += static_cast<char>(point);
      return;
    }
    const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    constexpr std::array<std::uint32_t, 4> leads{0, 0xc0, 0xe0, 0xf0};
    text += static_cast<char>(leads[static_cast<std::size_t>(more)] | point >> (6 * more));
    for (int left = more - 1; left >= 0; --left) text += static_cast<char>(0x80 | (point >> (6 * left) & 0x3f));
  }

  std::string_view text_;
  std::size_t place_ = 0;
};

void dump_text(std::string& out, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  out += '"';
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\')
      (out += '\\') += character;
    else if (byte < 0x20)
      ((out += "\\u00") += digits[byte >> 4]) += digits[byte & 0xf];
    else
      out += character;
  }
  out += '"';
}

/// A float always has a point or an exponent.
std::string dump_float(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  std::array<char, 32> digits{};
  const auto [end, problem] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void dump_to(std::string& out, const Json& json);

void dump_list(std::string& out, const Json::List& entries) {
  out += '[';
  for (const Json& entry : entries) {
    if (out.back() != '[') out += ", ";
    dump_to(out, entry);
  }
  out += ']';
}

void dump_object(std::string& out, const Json::Object& members) {
  out += '{';
  bool first = true;
  for (const auto& [name, member] : members) {
    if (!std::exchange(first, false)) out += ", ";
    dump_text(out, name);
    out += ": ";
    dump_to(out, member);
  }
  out += '}';
}

void dump_to(std::string& out, const Json& json) {
  const auto& value = json.value;
  if (json.is_null())
    out += "null";
  else if (const auto* truth = std::get_if<bool>(&value))
    out += *truth ? "true" : "false";
  else if (const auto* number = std::get_if<std::int64_t>(&value))
    out += std::to_string(*number);
  else if (const auto* natural = std::get_if<std::uint64_t>(&value))
    out += std::to_string(*natural);
  else if (const auto* real = std::get_if<double>(&value))
    out += dump_float(*real);
  else if (const auto* text = std::get_if<std::string>(&value))
    dump_text(out, *text);
  else if (const auto* list = std::get_if<Json::List>(&value))
    dump_list(out, *list);
  else
    dump_object(out, std::get<Json::Object>(value));
}

[[noreturn]] void wrong_type(const char* expected) {
  throw std::runtime_error(std::string("the command has no ") + expected);
}

}  // namespace

Json Json::parse(std::string_view text) { return Parser(text).whole(); }

std::string Json::dump() const {
  std::string out;
  dump_to(out, *this);
  return out;
}

const Json& Json::operator[](std::string_view name) const {
  static const Json nothing;
  const auto* members = std::get_if<Object>(&value);
  if (members == nullptr) return nothing;
  for (const auto& [known, member] : *members)
    if (known == name) return member;
  return nothing;
}

std::string Json::text(std::string_view otherwise) const {
  if (is_null()) return std::string(otherwise);
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) wrong_type("text here");
  return *text;
}

std::int64_t Json::number(std::int64_t otherwise) const {
  if (is_null()) return otherwise;
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr) wrong_type("integer here");
  return *number;
}

std::uint64_t Json::natural(std::uint64_t otherwise) const {
  if (const auto* large = std::get_if<std::uint64_t>(&value)) return *large;
  const std::int64_t small = number(static_cast<std::int64_t>(otherwise));
  if (small < 0) wrong_type("natural number here");
  return static_cast<std::uint64_t>(small);
}

bool Json::truth(bool otherwise) const {
  if (is_null()) return otherwise;
  const auto* truth = std::get_if<bool>(&value);
  if (truth == nullptr) wrong_type("truth here");
  return *truth;
}

const Json::List& Json::list() const {
  static const List nothing;
  const auto* list = std::get_if<List>(&value);
  return list == nullptr ? nothing : *list;
}

const Json::Object& Json::object() const {
  static const Object nothing;
  const auto* object = std::get_if<Object>(&value);
  return object == nullptr ? nothing : *object;
}
