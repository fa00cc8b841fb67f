// Error: everything that this library throws on purpose.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace linn {

/// What went wrong. The code is API: the broker's are passed on as they came, and the library's own are from the same
/// list (docs/reference/errors.md). The text is for people and may change.
class Error : public std::runtime_error {
 public:
  Error(std::string_view code, std::string_view text, bool retriable = false)
      : std::runtime_error(std::string(text) + " [" + std::string(code) + "]"),
        code_(code),
        text_(text),
        retriable_(retriable) {}

  /// For programs, such as "topic.unknown".
  const std::string& code() const noexcept { return code_; }
  /// For people, without the code; `what()` has both.
  const std::string& text() const noexcept { return text_; }
  /// Whether the same request, unchanged, may succeed later.
  bool retriable() const noexcept { return retriable_; }

 private:
  std::string code_;
  std::string text_;
  bool retriable_;
};

}  // namespace linn
