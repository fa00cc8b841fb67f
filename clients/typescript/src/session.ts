// Session: a client's connection, which comes back for as long as the client is open.
//
// Laws: there is one link at a time. When it is lost another is made, with growing waits. Where the session gives up
// (after `retriesMax` attempts, or where the broker can't be talked to) whatever waits is failed, and it tries again
// only when somebody wants a link.

import type { NetConnectOpts } from "node:net";
import type { RecordBatch } from "./batch.js";
import type { Message, Request } from "./codec.js";
import { again, clientClosed, LinnError } from "./errors.js";
import { Link, type LinkOptions, type Welcome } from "./link.js";
import { Outage, type ConnectionNews } from "./outage.js";

export interface SessionOptions extends LinkOptions {
  requestTimeoutMs: number;
  retriesMax: number;
  backoffMs: number;
  backoffMaxMs: number;
  onConnection: (news: ConnectionNews) => void;
}

/** A producer or a consumer. */
export interface SessionUser {
  /** There is a link again. */
  linkUp(link: Link): void;
  /** There is none, and nobody looks for one. */
  gaveUp(error: LinnError): void;
}

interface Waiter {
  resolve(link: Link): void;
  reject(error: LinnError): void;
}

export class Session {
  readonly users = new Set<SessionUser>();
  /** While there is no link. */
  outage: Outage | undefined;
  closed = false;
  #link: Link;
  #upSince = performance.now();
  #endedEarly = 0;
  readonly #waiters = new Set<Waiter>();
  #wake: (() => void) | undefined;
  #isIdle = false;

  private constructor(
    readonly peer: string,
    readonly address: NetConnectOpts,
    readonly options: SessionOptions,
    link: Link,
  ) {
    this.#link = link;
    this.#watch(link);
  }

  /** Connect, once; throws as `Link.open`. */
  static async open(peer: string, address: NetConnectOpts, options: SessionOptions): Promise<Session> {
    return new Session(peer, address, options, await Link.open(peer, address, options));
  }

  /** The link, while there is one. */
  get link(): Link | undefined {
    return this.#link.error === undefined ? this.#link : undefined;
  }

  /** What the broker said when it was there last. */
  get welcome(): Welcome {
    return this.#link.welcome;
  }

  /** Whether a batch may be compressed. */
  get compress(): Link["compress"] {
    return this.#link.compress;
  }

  /** Why there is no link; undefined while there is one. */
  get error(): LinnError | undefined {
    return this.#link.error === undefined ? undefined : (this.outage?.error ?? this.#link.error);
  }

  /** Whether so many attempts are more than there may be. */
  isUsedUp(attempts: number): boolean {
    return attempts > this.options.retriesMax;
  }

  /** The wait after so many attempts before this one: doubling, less up to half of it at random. */
  backoffOf(attempt: number): number {
    const longest = Math.min(this.options.backoffMaxMs, this.options.backoffMs * 2 ** Math.min(attempt, 30));
    return longest * (1 - Math.random() / 2);
  }

  /** Have the session connect again where it had given up. */
  want(): void {
    if (this.#isIdle) this.#wake?.();
  }

  // --- requests ---

  /** A link that takes requests. Rejects with request.timeout, client.closed, or what the session gave up with. */
  ready(what: string, timeoutMs: number): Promise<Link> {
    if (this.closed) return Promise.reject(clientClosed("the client was closed"));
    const { link } = this;
    if (link !== undefined && !link.drains) return Promise.resolve(link);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        const why = this.outage === undefined ? "the broker is stopping" : this.outage.error.message;
        waiter.reject(new LinnError("request.timeout", `${what}: no connection within ${this.options.requestTimeoutMs} ms: ${why}`));
      }, timeoutMs);
      const end = (): void => {
        clearTimeout(timer);
        this.#waiters.delete(waiter);
      };
      const waiter: Waiter = {
        resolve: (found) => (end(), resolve(found)),
        reject: (error) => (end(), reject(error)),
      };
      this.#waiters.add(waiter);
      this.want();
    });
  }

  /** Send a request and wait for its answer, with all waits for a link; `repeats`: again where its link was lost. */
  async request<M extends Message["member"]>(
    message: Request,
    answer: M,
    { repeats = true, extraMs = 0 }: { repeats?: boolean; extraMs?: number } = {},
  ): Promise<{ message: Extract<Message, { member: M }>; batches: RecordBatch[] }> {
    const timeoutMs = this.options.requestTimeoutMs + extraMs;
    const until = performance.now() + timeoutMs;
    for (let attempts = 1; ; attempts++) {
      const link = await this.ready(message.member, until - performance.now());
      try {
        return await link.request(message, answer, until - performance.now());
      } catch (error) {
        const isLost = error instanceof LinnError && error.code === "connection.lost";
        if (!isLost || !repeats || this.isUsedUp(attempts)) throw error;
      }
    }
  }

  // --- links ---

  #watch(link: Link): void {
    this.#link = link;
    this.#upSince = performance.now();
    link.onEnd = (error) => this.#lost(error);
    if (link.error !== undefined) this.#lost(link.error);
  }

  #lost(error: LinnError): void {
    if (this.closed) return;
    this.outage = new Outage(this.peer, error, this.options.onConnection);
    void this.#comeBack(this.outage);
  }

  async #comeBack(outage: Outage): Promise<void> {
    // A connection that ends as soon as it is made is no better than one that fails: back off all the same.
    const livedMs = performance.now() - this.#upSince;
    this.#endedEarly = livedMs < this.options.backoffMaxMs ? this.#endedEarly + 1 : 0;
    if (this.#endedEarly > 1) await this.#sleep(this.backoffOf(this.#endedEarly - 2));
    while (!this.closed) {
      const link = await this.#connect(outage);
      if (link !== undefined) {
        this.#up(link, outage);
        return;
      }
      if (this.closed) return;
      this.#giveUp(outage.error);
      this.#isIdle = true;
      await this.#sleep(undefined);
      this.#isIdle = false;
    }
  }

  /** Another link; undefined where there is none to be had. */
  async #connect(outage: Outage): Promise<Link | undefined> {
    for (let attempts = 0; !this.isUsedUp(attempts + 1); attempts++) {
      if (attempts > 0) await this.#sleep(this.backoffOf(attempts - 1));
      if (this.closed) return undefined;
      try {
        return await Link.open(this.peer, this.address, this.options);
      } catch (error) {
        if (!(error instanceof LinnError)) throw error;
        outage.goesOn(error);
        if (!error.retriable) return undefined;
      }
    }
    return undefined;
  }

  #up(link: Link, outage: Outage): void {
    if (this.closed) {
      void link.close();
      return;
    }
    outage.isOver();
    this.outage = undefined;
    this.#watch(link);
    if (link.error !== undefined) return;
    for (const waiter of [...this.#waiters]) waiter.resolve(link);
    for (const user of [...this.users]) user.linkUp(link);
  }

  #giveUp(error: LinnError): void {
    for (const waiter of [...this.#waiters]) waiter.reject(again(error));
    for (const user of [...this.users]) user.gaveUp(error);
  }

  /** Wait so long, or until somebody wakes. */
  #sleep(ms: number | undefined): Promise<void> {
    return new Promise((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(() => this.#wake?.(), ms);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = undefined;
        resolve();
      };
    });
  }

  /** Say goodbye, close the connection, and fail whatever waits. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    this.#wake?.();
    await this.#link.close();
    this.#giveUp(clientClosed("the client was closed"));
  }
}
