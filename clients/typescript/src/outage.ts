// Outage: the time that a client is without a connection, and what its program is told of it.

import type { LinnError } from "./errors.js";

/** How often a client says that it still has no connection: seldom enough to leave a log readable overnight. */
const REMIND_MS = 30_000;

/** A change in the state of a client's connection, a reminder that there is none, or "bypassed": another broker of the
 * cluster can't be reached, and its topics are used through this connection. */
export interface ConnectionEvent {
  readonly state: "lost" | "retrying" | "restored" | "bypassed";
  /** A line for a log. */
  readonly text: string;
  /** Why the connection was lost, or could not be made. */
  readonly error: LinnError;
  /** Time since it was lost; 0 for "bypassed". */
  readonly ms: number;
}

/** Tell a listener, in a turn of its own: what it throws, or closes, does not get in the way of connecting again. */
export function tell(listener: (event: ConnectionEvent) => void, event: ConnectionEvent): void {
  queueMicrotask(() => listener(event));
}

/** Begins when a connection is lost, and ends when there is another. */
export class Outage {
  readonly #beganMs = performance.now();
  #toldMs = this.#beganMs;

  constructor(
    readonly peer: string,
    /** Why there is no connection, as far as is known. */
    public error: LinnError,
    readonly listener: (event: ConnectionEvent) => void,
  ) {
    this.#tell("lost", `the connection to ${peer} was lost: ${error.message}; connecting again`);
  }

  /** Note that an attempt to connect failed. */
  attemptFailed(error: LinnError): void {
    this.error = error;
    const now = performance.now();
    if (now - this.#toldMs < REMIND_MS) return;
    this.#toldMs = now;
    const seconds = Math.round((now - this.#beganMs) / 1000);
    this.#tell("retrying", `still no connection to ${this.peer} after ${seconds} s: ${error.message}`);
  }

  /** There is a connection again. */
  end(): void {
    const seconds = (performance.now() - this.#beganMs) / 1000;
    this.#tell("restored", `connected to ${this.peer} again after ${seconds.toFixed(1)} s`);
  }

  #tell(state: ConnectionEvent["state"], text: string): void {
    tell(this.listener, { state, text, error: this.error, ms: performance.now() - this.#beganMs });
  }
}
