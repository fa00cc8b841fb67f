// Outage: the time that a client is without a connection, and what it says of it.

import type { LinnError } from "./errors.js";

/** How often a client says that it still has no connection: seldom enough to leave a log readable overnight. */
const TELL_AGAIN_MS = 30_000;

/** What became of the connection. */
export interface ConnectionEvent {
  readonly state: "lost" | "waiting" | "back";
  /** A line for a log. */
  readonly text: string;
  /** Why there is no connection, as far as is known. */
  readonly error: LinnError;
  /** Since it was lost. */
  readonly ms: number;
}

/** Begins when a connection is lost, and says so; ends when there is another. */
export class Outage {
  readonly #began = performance.now();
  #told = this.#began;

  constructor(
    readonly peer: string,
    /** Why there is no connection, as far as is known. */
    public error: LinnError,
    readonly tell: (news: ConnectionEvent) => void,
  ) {
    this.#tell("lost", `the connection to ${peer} was lost: ${error.message}; connecting again`);
  }

  /** An attempt to connect failed. */
  goesOn(error: LinnError): void {
    this.error = error;
    const now = performance.now();
    if (now - this.#told < TELL_AGAIN_MS) return;
    this.#told = now;
    const seconds = Math.round((now - this.#began) / 1000);
    this.#tell("waiting", `still no connection to ${this.peer} after ${seconds} s: ${error.message}`);
  }

  /** There is a connection again. */
  isOver(): void {
    const seconds = (performance.now() - this.#began) / 1000;
    this.#tell("back", `connected to ${this.peer} again after ${seconds.toFixed(1)} s`);
  }

  #tell(state: ConnectionEvent["state"], text: string): void {
    this.tell({ state, text, error: this.error, ms: performance.now() - this.#began });
  }
}
