// Alarm: wakes the thread of a session when its connection is lost, or when batches are to be sent again.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "socket.h"

namespace linn::detail {

/// Any thread may ring; one waits. It never waits for anything else, so that it can be rung under any other mutex.
class Alarm {
 public:
  void ring_at(Clock::time_point at) {
    const std::lock_guard lock(mutex_);
    at_ = std::min(at_, at);
    rung_.notify_one();
  }

  void ring() { ring_at(Clock::time_point::min()); }

  /// Wait for the earliest time that was set, which may have passed already.
  void wait() {
    std::unique_lock lock(mutex_);
    while (Clock::now() < at_) rung_.wait_until(lock, Clock::time_point(at_));
    at_ = Clock::time_point::max();
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  Clock::time_point at_ = Clock::time_point::max();
};

}  // namespace linn::detail
