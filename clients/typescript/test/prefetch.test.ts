// How much of a queue a consumer holds by default: enough for its speed, and no more than it works through.

import assert from "node:assert/strict";
import { test } from "node:test";
import { AdaptivePrefetch, PREFETCH_FIRST, PREFETCH_MAX } from "../src/prefetch.js";

/** An application that takes what there may be, one by one, and settles each. */
function run(costMs: number, records: number, leaseMs = 30_000): AdaptivePrefetch {
  const prefetch = new AdaptivePrefetch(leaseMs, 0);
  let now = 0;
  for (let taken = 0; taken < records; ) {
    for (let count = prefetch.window; count > 0; count--, taken++) {
      if (prefetch.isDue) prefetch.adapt(now, 0);
      prefetch.handed(1);
      now += costMs;
      prefetch.settled(1);
    }
    const before = prefetch.window;
    prefetch.adapt(now, 0);
    assert.ok(prefetch.window <= 4 * before);
  }
  return prefetch;
}

test("a consumer begins with a few records", () => {
  assert.equal(new AdaptivePrefetch(30_000, 0).window, PREFETCH_FIRST);
  assert.equal(PREFETCH_FIRST, 4);
});

test("the window is a tenth of a second of work, and behind a slow job waits no other", () => {
  const costs = [0.001, 0, 1, 12, 90, 200, 3_600_000];
  const windows = costs.map((costMs) => run(costMs, costMs < 1 ? 20_000 : 2_000).window);
  assert.deepEqual(windows, [4_096, 4_096, 128, 16, 2, 1, 1]);
  assert.equal(run(1, 2_000, 100).window, 16, "10 ms of work, a tenth of the lease, and the next power of two");
});

test("an application that gets slow has a small window after its next step", () => {
  const prefetch = run(0.001, 20_000);
  prefetch.adapt(10_000_000, 0);
  prefetch.handed(1);
  prefetch.adapt(10_001_000, 0);
  assert.equal(prefetch.window, 1);
});

test("what the application has in its hands comes on top", () => {
  const prefetch = new AdaptivePrefetch(30_000, 0);
  for (let step = 1; step < 8; step++) {
    prefetch.handed(8);
    prefetch.settled(8);
    prefetch.adapt(1_000 * step, 50);
  }
  assert.equal(prefetch.window, 64);
});

test("nothing that is not settled makes the window grow, but starving does", () => {
  const prefetch = new AdaptivePrefetch(30_000, 0);
  for (let step = 0; step < 20; step++) {
    prefetch.handed(4);
    prefetch.adapt(step / 1_000, 4 * step);
  }
  assert.equal(prefetch.window, PREFETCH_FIRST);
  while (prefetch.starved());
  assert.equal(prefetch.window, PREFETCH_MAX);
});

test("time without records is not the application's", () => {
  const prefetch = new AdaptivePrefetch(30_000, 0);
  for (let hour = 1; hour < 20; hour++) {
    prefetch.resumed(3_600_000 * hour);
    prefetch.handed(4);
    prefetch.settled(4);
    prefetch.adapt(3_600_000 * hour + 1, 0);
  }
  assert.ok(prefetch.window >= 64);
});
