// Session: a client's connection, which comes back for as long as the client is open.
//
// Laws: there is one connection at a time. When it is lost another is made, with growing waits. Where the session gives up
// (after `retriesMax` attempts, or where the broker can't be talked to) whatever waits is failed, and it tries again
// only when somebody wants a connection.

import type { NetConnectOpts } from "node:net";
import type { RecordBatch } from "./batch.js";
import type { Message, Request } from "./codec.js";
import { again, clientClosed, LinnError } from "./errors.js";
import { Connection, type ConnectionOptions, type Welcome } from "./connection.js";
import { Outage, type ConnectionEvent } from "./outage.js";

export interface SessionOptions extends ConnectionOptions {
  requestTimeoutMs: number;
  retriesMax: number;
  backoffMs: number;
  backoffMaxMs: number;
  onConnection: (news: ConnectionEvent) => void;
}

/** A producer or a consumer. */
export interface SessionUser {
  /** There is a connection again. */
  connected(connection: Connection): void;
  /** There is none, and nobody looks for one. */
  gaveUp(error: LinnError): void;
}

interface Waiter {
  resolve(connection: Connection): void;
  reject(error: LinnError): void;
}

export class Session {
  readonly users = new Set<SessionUser>();
  /** While there is no connection. */
  outage: Outage | undefined;
  closed = false;
  #connection: Connection;
  #upSince = performance.now();
  #endedEarly = 0;
  readonly #waiters = new Set<Waiter>();
  #wake: (() => void) | undefined;
  #isIdle = false;

  private constructor(
    readonly peer: string,
    readonly address: NetConnectOpts,
    readonly options: SessionOptions,
    connection: Connection,
  ) {
    this.#connection = connection;
    this.#watch(connection);
  }

  /** Connect, once; throws as `Connection.open`. */
  static async open(peer: string, address: NetConnectOpts, options: SessionOptions): Promise<Session> {
    return new Session(peer, address, options, await Connection.open(peer, address, options));
  }

  /** The connection, while there is one. */
  get connection(): Connection | undefined {
    return this.#connection.error === undefined ? this.#connection : undefined;
  }

  /** What the broker said when it was there last. */
  get welcome(): Welcome {
    return this.#connection.welcome;
  }

  /** Whether a batch may be compressed. */
  get compress(): Connection["compress"] {
    return this.#connection.compress;
  }

  /** Why there is no connection; undefined while there is one. */
  get error(): LinnError | undefined {
    return this.#connection.error === undefined ? undefined : (this.outage?.error ?? this.#connection.error);
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

  /** A connection that takes requests. Rejects with request.timeout, client.closed, or what the session gave up with. */
  ready(what: string, timeoutMs: number): Promise<Connection> {
    if (this.closed) return Promise.reject(clientClosed("the client was closed"));
    const { connection } = this;
    if (connection !== undefined && !connection.drains) return Promise.resolve(connection);
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

  /** Send a request and wait for its answer, with all waits for a connection; `repeats`: again where its connection was lost. */
  async request<M extends Message["member"]>(
    message: Request,
    answer: M,
    { repeats = true, extraMs = 0 }: { repeats?: boolean; extraMs?: number } = {},
  ): Promise<{ message: Extract<Message, { member: M }>; batches: RecordBatch[] }> {
    const timeoutMs = this.options.requestTimeoutMs + extraMs;
    const until = performance.now() + timeoutMs;
    for (let attempts = 1; ; attempts++) {
      const connection = await this.ready(message.member, until - performance.now());
      try {
        return await connection.request(message, answer, until - performance.now());
      } catch (error) {
        const isLost = error instanceof LinnError && error.code === "connection.lost";
        if (!isLost || !repeats || this.isUsedUp(attempts)) throw error;
      }
    }
  }

  // --- connections ---

  #watch(connection: Connection): void {
    this.#connection = connection;
    this.#upSince = performance.now();
    connection.onEnd = (error) => this.#lost(error);
    if (connection.error !== undefined) this.#lost(connection.error);
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
      const connection = await this.#connect(outage);
      if (connection !== undefined) {
        this.#up(connection, outage);
        return;
      }
      if (this.closed) return;
      this.#giveUp(outage.error);
      this.#isIdle = true;
      await this.#sleep(undefined);
      this.#isIdle = false;
    }
  }

  /** Another connection; undefined where there is none to be had. */
  async #connect(outage: Outage): Promise<Connection | undefined> {
    for (let attempts = 0; !this.isUsedUp(attempts + 1); attempts++) {
      if (attempts > 0) await this.#sleep(this.backoffOf(attempts - 1));
      if (this.closed) return undefined;
      try {
        return await Connection.open(this.peer, this.address, this.options);
      } catch (error) {
        if (!(error instanceof LinnError)) throw error;
        outage.goesOn(error);
        if (!error.retriable) return undefined;
      }
    }
    return undefined;
  }

  #up(connection: Connection, outage: Outage): void {
    if (this.closed) {
      void connection.close();
      return;
    }
    outage.isOver();
    this.outage = undefined;
    this.#watch(connection);
    if (connection.error !== undefined) return;
    for (const waiter of [...this.#waiters]) waiter.resolve(connection);
    for (const user of [...this.users]) user.connected(connection);
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
    await this.#connection.close();
    this.#giveUp(clientClosed("the client was closed"));
  }
}
