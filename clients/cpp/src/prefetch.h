// Prefetch: how many records of a queue a consumer may hold, adapted to how fast its application works. No I/O.
//
// Laws: few at first, at most twice as many once half of them were settled; beyond what the application has in its
// hands, no more than it works through in a tenth of a second, and in a tenth of a lease. What waits here could be
// worked on elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "socket.h"

namespace linn::detail {

/// Little enough that four slow jobs are a small loss where others are idle; doubled ten times it is the most.
inline constexpr std::uint32_t prefetch_first = 4;
/// Beyond it no rate grows; what a stream's consumer has from the start.
inline constexpr std::uint32_t prefetch_max = 4'096;

/// The window of one subscription of a queue.
class AdaptivePrefetch {
 public:
  /// `lease`: how long one lasts; 0 where records are settled when they are delivered.
  AdaptivePrefetch(std::chrono::milliseconds lease, Clock::time_point now) noexcept;

  /// Records that may be on their way or with the application.
  std::uint32_t window() const noexcept { return window_; }
  /// Whether the application has taken enough since the last time to `adapt` before it takes more.
  bool is_due() const noexcept { return 2 * handed_ >= window_; }
  /// The application takes some records.
  void handed(std::uint64_t records) noexcept { handed_ += records; }
  /// Some records are done with.
  void settled(std::uint64_t records) noexcept { settled_ += records; }
  /// The application has waited for records, and has some now: the wait was not its own time.
  void resumed(Clock::time_point now) noexcept { busy_since_ = now; }
  /// The application asks for more, and has so many in its hands. Whether the window has changed.
  bool adapt(Clock::time_point now, std::uint64_t with_application) noexcept;
  /// The application has all of it, settles nothing, and asks for more: it collects records before it settles them,
  /// say, and would wait for ever. Whether the window has changed.
  bool starved() noexcept { return grow(); }

 private:
  bool grow() noexcept;

  std::uint32_t window_ = prefetch_first;
  double buffered_s_;
  /// The application's time for one record, the latest counting most.
  std::optional<double> cost_s_;
  std::uint64_t handed_ = 0;
  std::uint64_t settled_ = 0;
  Clock::time_point busy_since_;
};

}  // namespace linn::detail
