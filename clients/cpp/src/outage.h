// Outage: why a client has no connection, and what its log says about that. Safe to use from many threads.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <linn/error.h>

#include "socket.h"

namespace linn::detail {

/// The time between two lines that say that there is still no connection: a log stays readable overnight.
inline constexpr std::chrono::seconds tell_again_after{30};

class Outage {
 public:
  /// `log` takes lines; standard error does where it is empty.
  Outage(std::string_view url, std::function<void(const std::string&)> log);

  // --- by the thread that connects ---

  /// The connection is lost.
  void begins(const Error& reason, Clock::time_point now);
  /// An attempt to connect has failed.
  void goes_on(const Error& reason, Clock::time_point now);
  /// There is a connection again.
  void ends(Clock::time_point now);

  /// Have the log say this: one line at a time. By any thread.
  void tell(const std::string& line) const;

  // --- by any thread ---

  /// Why there is no connection, as far as is known; std::nullopt while there is one.
  std::optional<Error> reason() const;
  /// The same for people.
  std::string text() const;

 private:
  void set_reason(std::optional<Error> reason);

  const std::string url_;
  const std::function<void(const std::string&)> log_;
  mutable std::mutex log_mutex_;
  Clock::time_point began_;
  Clock::time_point told_;
  mutable std::mutex mutex_;
  std::optional<Error> reason_;
};

}  // namespace linn::detail
