// The default prefetch of a queue: enough for the application's speed, and no more than it works through.
#include <chrono>

#include "check.h"
#include "prefetch.h"

using namespace linn::detail;
using namespace std::chrono_literals;

namespace {

const Clock::time_point start{};

/// The window of an application that takes what there may be, one by one, and settles each.
std::uint32_t window_after(Clock::duration cost, int records, std::chrono::milliseconds lease = 30s) {
  AdaptivePrefetch prefetch(lease, start);
  Clock::time_point now = start;
  for (int taken = 0; taken < records;) {
    const std::uint32_t before = prefetch.window();
    for (std::uint32_t count = before; count > 0; --count, ++taken) {
      if (prefetch.is_due()) prefetch.adapt(now, 0);
      prefetch.handed(1);
      now += cost;
      prefetch.settled(1);
    }
    prefetch.adapt(now, 0);
    CHECK(prefetch.window() <= 4 * before);
  }
  return prefetch.window();
}

void the_window_is_a_tenth_of_a_second_of_work() {
  CHECK(AdaptivePrefetch(30s, start).window() == 4);
  CHECK(window_after(1us, 20'000) == 4'096 && window_after(0us, 20'000) == 4'096);
  CHECK(window_after(1ms, 2'000) == 128 && window_after(12ms, 2'000) == 16 && window_after(90ms, 2'000) == 2);
  CHECK(window_after(1ms, 2'000, 100ms) == 16);  // 10 ms of work, and the next power of two.
}

void behind_a_slow_job_waits_no_other() {
  for (const Clock::duration cost : {Clock::duration(200ms), Clock::duration(1s), Clock::duration(1h)})
    CHECK(window_after(cost, 20) == 1);
}

void records_in_the_application_s_hands_come_on_top() {
  AdaptivePrefetch prefetch(30s, start);
  for (int step = 1; step < 8; ++step) {
    prefetch.handed(8);
    prefetch.settled(8);
    prefetch.adapt(start + step * 1s, 50);
  }
  CHECK(prefetch.window() == 64);
}

void nothing_that_is_not_settled_makes_the_window_grow_but_starving_does() {
  AdaptivePrefetch prefetch(30s, start);
  for (int step = 0; step < 20; ++step) {
    prefetch.handed(4);
    prefetch.adapt(start + step * 1us, static_cast<std::uint64_t>(4 * step));
  }
  CHECK(prefetch.window() == 4);
  while (prefetch.starved()) {
  }
  CHECK(prefetch.window() == prefetch_max);
}

void time_without_records_is_not_the_applications() {
  AdaptivePrefetch prefetch(30s, start);
  for (int hour = 1; hour < 20; ++hour) {
    prefetch.resumed(start + hour * 1h);
    prefetch.handed(4);
    prefetch.settled(4);
    prefetch.adapt(start + hour * 1h + 1ms, 0);
  }
  CHECK(prefetch.window() >= 64);
}

}  // namespace

int main() {
  return run({{"the window is a tenth of a second of work", the_window_is_a_tenth_of_a_second_of_work},
              {"behind a slow job waits no other", behind_a_slow_job_waits_no_other},
              {"records in the application's hands come on top", records_in_the_application_s_hands_come_on_top},
              {"nothing that is not settled makes the window grow, but starving does",
               nothing_that_is_not_settled_makes_the_window_grow_but_starving_does},
              {"time without records is not the application's", time_without_records_is_not_the_applications}});
}
