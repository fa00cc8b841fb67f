// Prefetch: how many records of a queue a consumer may hold, adapted to how fast its application works. No I/O.
//
// Laws: few at first, at most twice as many once half of them were settled; beyond what the application has in its
// hands, no more than it works through in `BUFFERED_MS`, and in a tenth of a lease. What waits here could be worked on
// elsewhere.

/** Little enough that four slow jobs are a small loss where others are idle; doubled ten times it is the most. */
export const PREFETCH_FIRST = 4;
/** Beyond it no rate grows; what a stream's consumer has from the start. */
export const PREFETCH_MAX = 4_096;
/** Work that waits in the client: far more than a round trip, and too little to leave other consumers without any. */
const BUFFERED_MS = 100;
const LEASE_PART = 10;

/** The window of one subscription of a queue. */
export class AdaptivePrefetch {
  /** Records that may be on their way or with the application. */
  window = PREFETCH_FIRST;
  readonly #bufferedMs: number;
  /** The application's time for one record, the latest counting most. */
  #costMs: number | undefined;
  #handed = 0;
  #settled = 0;
  #busySinceMs: number;

  /** `leaseMs`: how long a lease lasts; 0 where records are settled when they are delivered. */
  constructor(leaseMs: number, now: number) {
    this.#bufferedMs = leaseMs > 0 ? Math.min(BUFFERED_MS, leaseMs / LEASE_PART) : BUFFERED_MS;
    this.#busySinceMs = now;
  }

  /** Whether the application has taken enough since the last time to `adapt` before it takes more. */
  get isDue(): boolean {
    return 2 * this.#handed >= this.window;
  }

  /** The application takes some records. */
  handed(records: number): void {
    this.#handed += records;
  }

  /** Some records are done with. */
  settled(records: number): void {
    this.#settled += records;
  }

  /** The application has waited for records, and has some now: the wait was not its own time. */
  resumed(now: number): void {
    this.#busySinceMs = now;
  }

  /** The application asks for more, and has so many in its hands. Whether the window has changed. */
  adapt(now: number, withApplication: number): boolean {
    if (this.#handed > 0) {
      const costMs = Math.max(0, now - this.#busySinceMs) / this.#handed;
      this.#costMs = this.#costMs === undefined ? costMs : (this.#costMs + costMs) / 2;
      this.#handed = 0;
    }
    this.#busySinceMs = now;
    if (this.#costMs === undefined) return false;
    const buffered = Math.min(PREFETCH_MAX, this.#bufferedMs / this.#costMs);
    const target = withApplication + 1 + Math.floor(buffered);
    if (target > this.window) return 2 * this.#settled >= this.window && this.#grow();
    if (2 * target > this.window) return false;
    this.window = 2 ** Math.ceil(Math.log2(target));
    this.#settled = 0;
    return true;
  }

  /** The application has all of it, settles nothing, and asks for more: it collects records before it settles them,
   * say, and would wait for ever. Whether the window has changed. */
  starved(): boolean {
    return this.#grow();
  }

  #grow(): boolean {
    const before = this.window;
    this.window = Math.min(2 * this.window, PREFETCH_MAX);
    this.#settled = 0;
    return this.window > before;
  }
}
