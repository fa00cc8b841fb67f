// Session: a client's connection, which comes back for as long as the client is open.
//
// Laws: there is one connection at a time. When it is lost another is made, with growing waits; an attempt tries all
// addresses of the URL, beginning behind the one that was lost. Where the session gives
// up (after `retriesMax` attempts, or where the broker speaks another version) whatever waits is failed, and it tries
// again only when a connection is wanted.

import type { RecordBatch } from "./batch.js";
import type { Message, Request } from "./codec.js";
import { Connection, type ConnectionOptions, type Welcome } from "./connection.js";
import { again, clientClosed, LinnError } from "./errors.js";
import { KEEPALIVE_MS, Leaders } from "./leaders.js";
import { Outage, tell, type ConnectionEvent } from "./outage.js";
import { ProducerIds } from "./producer-ids.js";
import { placeOf, type Address } from "./url.js";

/** The longest time that a timer of Node can wait. */
export const TIMER_MS_MAX = 2 ** 31 - 1;

export interface SessionOptions extends ConnectionOptions {
  requestTimeoutMs: number;
  retriesMax: number;
  backoffMs: number;
  backoffMaxMs: number;
  onConnection: (event: ConnectionEvent) => void;
}

/** A producer or a consumer. */
export interface SessionUser {
  /** There is a connection again. */
  connected(connection: Connection): void;
  /** There is none, and the session has stopped trying. */
  gaveUp(error: LinnError): void;
}

interface Waiter {
  resolve(connection: Connection): void;
  reject(error: LinnError): void;
}

export class Session {
  /** Told of connections: consumers for as long as they are open, producers while they have batches. */
  readonly users = new Set<SessionUser>();
  readonly producerIds: ProducerIds;
  /** Connections to other brokers of the cluster. */
  readonly leaders: Leaders;
  /** While there is no connection. */
  outage: Outage | undefined;
  closed = false;
  #connection: Connection;
  #connectedSinceMs = performance.now();
  /** Connections in a row that ended soon after they were made. */
  #endedEarly = 0;
  readonly #waiters = new Set<Waiter>();
  /** Ends the wait before the next attempt. */
  #wake: (() => void) | undefined;
  #hasGivenUp = false;
  /** Cancels the attempt that is under way. */
  #attempt: AbortController | undefined;

  private constructor(
    readonly peer: string,
    readonly addresses: readonly Address[],
    readonly options: SessionOptions,
    connection: Connection,
    /** The index of the address that is connected, or was tried last. */
    private at: number,
  ) {
    this.#connection = connection;
    this.producerIds = new ProducerIds(connection.welcome.producerId, connection.welcome.producerKey);
    this.leaders = this.#newLeaders();
    this.#adopt(connection);
  }

  #newLeaders(): Leaders {
    const connection = (): Connection | undefined => this.connection;
    return new Leaders({
      get connection() {
        return connection();
      },
      open: (address, signal) => this.#openBeside(address, signal),
      now: () => performance.now(),
      unreachable: (text, error) => tell(this.options.onConnection, { state: "bypassed", text, error, ms: 0 }),
    });
  }

  /** Connect, once; throws as `Connection.open`. */
  static async open(peer: string, addresses: readonly Address[], given: SessionOptions): Promise<Session> {
    // Where there is another broker to go to, one that is frozen is left soon.
    const options = addresses.length > 1 ? { ...given, keepaliveMsMax: KEEPALIVE_MS } : given;
    const [connection, at] = await openAny(addresses, 0, (address) => Connection.open(peer, address, options));
    return new Session(peer, addresses, options, connection, at);
  }

  /** The connection, while there is one. */
  get connection(): Connection | undefined {
    return this.#connection.error === undefined ? this.#connection : undefined;
  }

  /** What the broker said when it was last connected to. */
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

  /** Whether so many attempts are more than `retriesMax` allows. */
  isUsedUp(attempts: number): boolean {
    return attempts > this.options.retriesMax;
  }

  /** The wait after so many attempts before this one: doubling, less up to half of it at random. */
  backoffMs(attempt: number): number {
    const longest = Math.min(this.options.backoffMaxMs, this.options.backoffMs * 2 ** Math.min(attempt, 30));
    return longest * (1 - Math.random() / 2);
  }

  /** Have the session try again where it had given up. */
  want(): void {
    if (this.#hasGivenUp) this.#wake?.();
  }

  // --- requests ---

  /** A connection that takes requests, waiting for one at most `timeoutMs`.
   *
   * Rejects with request.timeout, client.closed, or what the session gave up with. */
  ready(what: string, timeoutMs: number): Promise<Connection> {
    if (this.closed) return Promise.reject(clientClosed("the client was closed"));
    const { connection } = this;
    if (connection !== undefined && !connection.drains) return Promise.resolve(connection);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        const why = this.outage?.error.message ?? "the broker is stopping";
        const within = `no connection within ${Math.round(timeoutMs)} ms`;
        waiter.reject(new LinnError("request.timeout", `${what}: ${within}: ${why}`));
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

  /** Send a request and wait for its answer, including waits for a connection. With `repeats` it is sent again where
   * the connection was lost. */
  async request<M extends Message["member"]>(
    message: Request,
    answer: M,
    { repeats = true, extraMs = 0 }: { repeats?: boolean; extraMs?: number } = {},
  ): Promise<{ message: Extract<Message, { member: M }>; batches: RecordBatch[] }> {
    const until = performance.now() + Math.min(this.options.requestTimeoutMs + extraMs, TIMER_MS_MAX);
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

  #adopt(connection: Connection): void {
    this.#connection = connection;
    this.#connectedSinceMs = performance.now();
    connection.onEnd = (error) => this.#lost(error);
    if (connection.error !== undefined) this.#lost(connection.error);
  }

  #lost(error: LinnError): void {
    if (this.closed) return;
    this.outage = new Outage(this.peer, error, this.options.onConnection);
    this.at = (this.at + 1) % this.addresses.length;
    void this.#reconnect(this.outage);
  }

  async #reconnect(outage: Outage): Promise<void> {
    // A connection that ends as soon as it is made is no better than one that fails: back off all the same.
    const livedMs = performance.now() - this.#connectedSinceMs;
    this.#endedEarly = livedMs < this.options.backoffMaxMs ? this.#endedEarly + 1 : 0;
    if (this.#endedEarly > 1) await this.#sleep(this.backoffMs(this.#endedEarly - 2));
    while (!this.closed) {
      const connection = await this.#tryToConnect(outage);
      if (connection !== undefined) {
        this.#connected(connection, outage);
        return;
      }
      if (this.closed) return;
      this.#hasGivenUp = true;
      this.#failAll(outage.error);
      await this.#sleep(undefined);
      this.#hasGivenUp = false;
    }
  }

  /** Another connection; undefined where the attempts are used up, the broker can't be talked to, or the session was
   * closed. */
  async #tryToConnect(outage: Outage): Promise<Connection | undefined> {
    for (let attempts = 0; !this.isUsedUp(attempts + 1); attempts++) {
      if (attempts > 0) await this.#sleep(this.backoffMs(attempts - 1));
      if (this.closed) return undefined;
      const { signal } = (this.#attempt = new AbortController());
      try {
        const open = (address: Address): Promise<Connection> => this.#openWithIds({ ...address, signal });
        const [connection, at] = await openAny(this.addresses, this.at, open, signal);
        this.at = at;
        return connection;
      } catch (error) {
        if (!(error instanceof LinnError)) throw error;
        if (this.closed) return undefined;
        outage.attemptFailed(error);
        if (!error.retriable) return undefined;
      } finally {
        this.#attempt = undefined;
      }
    }
    return undefined;
  }

  /** A connection over which the client goes on with its producer ids, or with new ones if the broker does not know
   * them: its data was replaced. */
  async #openWithIds(address: Address): Promise<Connection> {
    const { first, key } = this.producerIds;
    try {
      return await Connection.open(this.peer, address, this.options, first, key);
    } catch (error) {
      if (!(error instanceof LinnError) || error.code !== "producer.foreign") throw error;
    }
    const connection = await Connection.open(this.peer, address, this.options);
    this.producerIds.replace(connection.welcome.producerId, connection.welcome.producerKey);
    return connection;
  }

  /** A connection to another broker of the cluster. */
  async #openBeside(address: string, signal: AbortSignal): Promise<Connection> {
    const place = placeOf(address, this.addresses[0]!.tlsHost !== undefined);
    const options = { ...this.options, keepaliveMsMax: KEEPALIVE_MS };
    const { first, key } = this.producerIds;
    return Connection.open(address, { ...place, signal }, options, first, key);
  }

  #connected(connection: Connection, outage: Outage): void {
    if (this.closed) {
      void connection.close();
      return;
    }
    outage.end();
    this.outage = undefined;
    this.#adopt(connection);
    if (connection.error !== undefined) return;
    for (const waiter of [...this.#waiters]) waiter.resolve(connection);
    for (const user of [...this.users]) user.connected(connection);
  }

  #failAll(error: LinnError): void {
    for (const waiter of [...this.#waiters]) waiter.reject(again(error));
    for (const user of [...this.users]) user.gaveUp(error);
  }

  /** Wait so long, or without end where that is undefined, unless somebody wakes it. */
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

  /** Say goodbye, close the connections, and fail whatever waits. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    this.#wake?.();
    this.#attempt?.abort();
    await Promise.all([this.#connection.close(), this.leaders.close()]);
    this.#failAll(clientClosed("the client was closed"));
  }
}

/** A connection to the first address that answers, from the one at `first` on, and its index.
 *
 * Rejects with the error of the last address, or with one that no other attempt can mend. */
async function openAny(
  addresses: readonly Address[],
  first: number,
  open: (address: Address) => Promise<Connection>,
  signal?: AbortSignal,
): Promise<[Connection, number]> {
  let worst: unknown;
  for (let tried = 0; tried < addresses.length && !(tried > 0 && signal?.aborted); tried++) {
    const at = (first + tried) % addresses.length;
    try {
      return [await open(addresses[at]!), at];
    } catch (error) {
      if (!(worst instanceof LinnError) || worst.retriable) worst = error;
    }
  }
  throw worst;
}
