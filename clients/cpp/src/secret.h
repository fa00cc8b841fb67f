// Secret: bytes that are overwritten before their memory is given back.
#pragma once

#include <string>
#include <string_view>

#include <string.h>

namespace linn::detail {

/// Overwrite a secret's bytes; the text is empty then.
inline void wipe(std::string& bytes) noexcept {
  ::explicit_bzero(bytes.data(), bytes.size());
  bytes.clear();
}

class Secret {
 public:
  /// Takes a copy, and wipes what it was copied from.
  explicit Secret(std::string& bytes) : bytes_(bytes) { wipe(bytes); }
  ~Secret() { wipe(bytes_); }
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;

  std::string_view bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace linn::detail
