// Consumer: reads one topic, message by message or batch by batch, and settles what it has read.
//
// Laws: records of a partition come in order, but for those that are delivered again. What was refused or failed is
// thrown by the next step, after which reading may go on, unless the subscription is over for good. After a
// reconnection the consumer subscribes again: a queue delivers again what was not settled, a group goes on where it
// committed, a reader behind what it has read.

import type { Caller, Connection } from "./connection.js";
import { again, invalid, LinnError, protocolError } from "./errors.js";
import { Batch, Message, type Delivery } from "./message.js";
import { PREFETCH_MAX } from "./prefetch.js";
import { TIMER_MS_MAX, type Session, type SessionUser } from "./session.js";
import type { Settled, Verdict } from "./settling.js";
import type { Struct } from "./struct.js";
import {
  firstCredit,
  Subscription,
  subscriptionOf,
  U32_MAX,
  type Limits,
  type SubscriptionKind,
  type SubscriptionOwner,
  type Unread,
} from "./subscription.js";

export type Start = "earliest" | "latest" | bigint | number;

export interface ConsumerOptions {
  /** On a stream: the group whose members share the partitions and whose place is kept. */
  group?: string;
  /** On a stream, without a group: the shared subscription for whose records consumers compete as for those of a queue.
   * It is made if it is not there, and begins at `start`. */
  shared?: string;
  /** The consumer's name in its group, queue or shared subscription; one of that name that is there already is fenced. */
  name?: string;
  /** Records that may be on their way or with the application; leased ones count until they are settled. Default: 4,096
   * of a stream; of a queue a few at first, and more while the application is fast. */
  prefetch?: number;
  /** Of a stream, where nothing is committed. */
  start?: Start;
  /** Of a stream without a group: only these. */
  partitions?: readonly number[];
  /** Of a stream: a predicate over labels and routing key, such as `label.kind = "late"`. The broker passes over all
   * other records, and for a group they count as consumed. Default: all records. */
  where?: string;
  /** Of a queue: how long after its delivery a lease is renewed while the application has records of it; 0: never.
   * Default: an hour. */
  renewalMaxMs?: number;
}

/** Long enough for a long job; what hangs for longer is to be tried elsewhere. */
const RENEWAL_MAX_MS = 3_600_000;
/** What ends a subscription where the broker that leads the topic was lost, or is another one. */
const LED_ELSEWHERE = new Set(["peer.unreachable", "partition.not_leader"]);
const STARTS = { earliest: -2n, latest: -1n };

interface Wanted extends Limits {
  readonly group: string;
  readonly shared: string;
  readonly name: string;
  readonly start: bigint;
  readonly partitions: readonly number[];
  readonly where: string;
}

/** Made by `Client.consumer`. Iterate over it, or over `batches()`. */
export class Consumer implements SubscriptionOwner, SessionUser, AsyncIterable<Message> {
  readonly topic: string;
  readonly #session: Session;
  readonly #wanted: Wanted;
  #subscription: Subscription | undefined;
  /** The latest, over or not. */
  #latest!: Subscription;
  /** Readers: where they go on. */
  #positions = new Map<number, bigint>();
  /** The epoch and the topic in which they have read up to there, so that the broker says so if it has lost any of it. */
  #readIn: Partial<Struct<"Subscribe">> = {};
  #arrived: Batch[] = [];
  #current: { batch: Batch; index: number } | undefined;
  #refusals: LinnError[] = [];
  /** What the session gave up with, until it is thrown or there is a connection again. */
  #outageError: LinnError | undefined;
  /** Why the subscription is over for good. */
  #broken: LinnError | undefined;
  #isClosing = false;
  #isClosed = false;
  readonly #wakers = new Set<() => void>();

  private constructor(session: Session, topic: string, wanted: Wanted) {
    this.topic = topic;
    this.#session = session;
    this.#wanted = wanted;
  }

  /** Subscribe. Rejects with topic.unknown, delivery.wrong_kind and other refusals, message.invalid, request.timeout,
   * connection.lost after `retriesMax` attempts. */
  static async open(session: Session, topic: string, options: ConsumerOptions): Promise<Consumer> {
    const consumer = new Consumer(session, topic, wantedOf(options));
    const until = performance.now() + session.options.requestTimeoutMs;
    for (let attempts = 1; ; attempts++) {
      const connection = await session.ready("subscribe", until - performance.now());
      try {
        await consumer.#subscribe(connection, until);
      } catch (error) {
        if (connection.error === undefined || session.isUsedUp(attempts)) throw error;
        continue;
      }
      session.users.add(consumer);
      // It may have been lost, and made again, before this consumer could be told.
      if (connection.error !== undefined && session.connection !== undefined) consumer.connected(session.connection);
      return consumer;
    }
  }

  get kind(): SubscriptionKind {
    return this.#latest.kind;
  }

  /** How long a lease lasts, in ms; 0 where there are none. */
  get leaseMs(): number {
    return this.#latest.leaseMs;
  }

  /** The partitions that a member of a group owns now; undefined where there is no group, or none is known. */
  get partitions(): number[] | undefined {
    const owned = this.#subscription?.owned;
    return owned && [...owned];
  }

  // --- subscribing ---

  async #subscribe(connection: Connection, until: number): Promise<void> {
    const { group, start, partitions, where, shared, name: member } = this.#wanted;
    const positions = await this.#startingOffsets(connection, until);
    const starts: bigint[] = [];
    for (const [partition, offset] of positions) starts[partition] = offset;
    const credit = firstCredit(this.#wanted);
    const choice = { start, partitions: [...partitions], starts, where };
    const readIn = positions.size > 0 ? this.#readIn : {};
    const content = { topic: this.topic, group, credit, ...choice, member, shared, ...readIn };
    const timeoutMs = until - performance.now();
    await new Promise<void>((resolve, reject) => {
      let isLate = false;
      const timer = setTimeout(() => {
        isLate = true;
        reject(new LinnError("request.timeout", `subscribe: no answer from ${connection.peer} in time`));
      }, timeoutMs);
      const caller: Caller = {
        // Made here, before anything that is pushed to it is looked at.
        answered: (message) => {
          clearTimeout(timer);
          if (message.member !== "subscribed") {
            reject(protocolError(`the broker answered subscribe with ${message.member}`));
          } else if (isLate || this.#isClosed) {
            connection.tell({ member: "unsubscribe", content: { subscription: message.content.subscription } });
            resolve();
          } else {
            try {
              this.#subscribed(connection, message.content, positions);
              resolve();
            } catch (error) {
              reject(error as LinnError);
            }
          }
        },
        failed: (error) => {
          clearTimeout(timer);
          reject(error);
        },
      };
      connection.ask(caller, { member: "subscribe", content });
    });
  }

  #subscribed(connection: Connection, content: Struct<"Subscribed">, positions: Map<number, bigint>): void {
    this.#positions = positions;
    const { leaderEpoch, topicIdHigh, topicIdLow } = content;
    this.#readIn = { leaderEpoch, topicIdHigh, topicIdLow };
    this.#subscription = this.#latest = new Subscription(this, connection, content, this.#wanted, positions);
  }

  /** Where a reader begins, by partition: behind what it has read, or, for "latest", at the end that there was when it
   * began, so that nothing is skipped where the connection is lost before its first record. Empty where the broker
   * decides. */
  async #startingOffsets(connection: Connection, until: number): Promise<Map<number, bigint>> {
    const { group, shared, start } = this.#wanted;
    if (group !== "" || shared !== "" || (this.#positions.size === 0 && start !== STARTS.latest)) return new Map();
    const request = { member: "describe" as const, content: { topics: [this.topic] } };
    const { message } = await connection.request(request, "description", until - performance.now());
    const [topic] = message.content.topics;
    if (topic?.kind !== "stream") return new Map(); // Without a group it is read as a queue.
    return new Map(
      topic.partitions.map(({ highWatermark }, partition) => {
        const first = this.#positions.size === 0 ? highWatermark : start >= 0n ? start : STARTS.earliest;
        return [partition, this.#positions.get(partition) ?? first];
      }),
    );
  }

  // --- told by its session and its subscriptions ---

  disconnected(subscription: Subscription): void {
    if (this.#subscription === subscription) this.#subscription = undefined;
    this.dropUnwanted();
    this.#wake();
  }

  /** Subscribe again. What the broker refuses for good is thrown by the next step. */
  connected(connection: Connection): void {
    this.#outageError = undefined;
    void this.#subscribeAgain(connection);
  }

  async #subscribeAgain(connection: Connection): Promise<void> {
    const isNeeded = (): boolean => !this.#isClosed && this.#broken === undefined && connection.error === undefined;
    for (let attempts = 0; isNeeded(); attempts++) {
      try {
        await this.#subscribe(connection, performance.now() + this.#session.options.requestTimeoutMs);
        break;
      } catch (error) {
        if (!(error instanceof LinnError)) throw error;
        if (connection.error !== undefined) return; // `connected` is called again for the next one.
        if (!error.retriable || this.#session.isUsedUp(attempts + 1)) {
          this.#broken = error;
          break;
        }
        await new Promise((resolve) => setTimeout(resolve, this.#session.backoffMs(attempts)).unref());
      }
    }
    this.#wake();
  }

  /** The next step throws the error, and the one after that has the client try again. */
  gaveUp(error: LinnError): void {
    if (error.code === "client.closed") this.#broken ??= error;
    else this.#outageError = error;
    this.#wake();
  }

  arrived(batches: readonly Batch[]): void {
    if (this.#isClosed) return;
    for (const batch of batches) this.#arrived.push(batch);
    this.#wake();
  }

  dropUnwanted(): void {
    const arrived = this.#arrived;
    this.#arrived = arrived.filter((batch) => isWanted(batch));
    if (this.#arrived.length < arrived.length) {
      for (const batch of arrived) if (!isWanted(batch)) handedOver(batch);
    }
    if (this.#current !== undefined && !isWanted(this.#current.batch)) this.#current = undefined;
    this.#wake();
  }

  takeUnread(isTaken: (batch: Batch) => boolean): Unread[] {
    const unread: Unread[] = [];
    if (this.#current !== undefined && isTaken(this.#current.batch)) {
      const { batch, index } = this.#current;
      const first = batch.records.offset(index);
      unread.push({ delivery: batch.delivery, first, end: batch.endOffset });
      this.#current = undefined;
    }
    const arrived = this.#arrived;
    this.#arrived = [];
    for (const batch of arrived) {
      if (isTaken(batch)) {
        handedOver(batch);
        unread.push({ delivery: batch.delivery, first: batch.startOffset, end: batch.endOffset });
      } else this.#arrived.push(batch);
    }
    return unread;
  }

  refused(error: LinnError): void {
    this.#refusals.push(error);
    this.#wake();
  }

  /** Subscribes again where the leader of a cluster was lost, or is another broker: it is as after an outage. */
  ended(error: LinnError): void {
    const connection = this.#session.connection;
    if (LED_ELSEWHERE.has(error.code) && connection !== undefined) void this.#subscribeAgain(connection);
    else this.#broken ??= error;
    this.#subscription = undefined;
    this.dropUnwanted();
  }

  #wake(): void {
    for (const wake of this.#wakers) wake();
    this.#wakers.clear();
  }

  // --- reading ---

  /** The messages, in the order of the deliveries. Leaving the loop keeps the subscription: see `close`. */
  [Symbol.asyncIterator](): AsyncIterator<Message, undefined> {
    return iterate(() => this.next());
  }

  /** The batches; see `nextBatch`. */
  batches(): AsyncIterable<Batch> {
    return { [Symbol.asyncIterator]: () => iterate(() => this.nextBatch()) };
  }

  /** The next message; undefined when `timeoutMs` has passed, or when the consumer was closed.
   *
   * Rejects as `nextBatch` does. */
  async next(timeoutMs?: number): Promise<Message | undefined> {
    const refusal = this.#refusals.shift();
    if (refusal !== undefined) throw again(refusal);
    const current = this.#current;
    if (current !== undefined && isWanted(current.batch)) return this.#messageOf(current.batch, current.index);
    this.#current = undefined;
    const batch = await this.nextBatch(timeoutMs);
    return batch && this.#messageOf(batch, batch.first);
  }

  #messageOf(batch: Batch, index: number): Message {
    // The last one leaves nothing here that would keep its lease from ending.
    this.#current = index + 1 < batch.records.count ? { batch, index: index + 1 } : undefined;
    return new Message(batch, index);
  }

  /** The next batch; undefined when `timeoutMs` has passed, or when the consumer was closed.
   *
   * Rejects with the refusal of a settlement that nobody awaited, batch.corrupt where a batch is damaged, or
   * connection.failed where no broker was found in `retriesMax` attempts; reading may go on after these. Rejects each
   * time where the subscription is over for good (topic.unknown where the topic was deleted), or the client was
   * closed. */
  async nextBatch(timeoutMs?: number): Promise<Batch | undefined> {
    const until = timeoutMs === undefined ? Infinity : performance.now() + timeoutMs;
    for (;;) {
      const refusal = this.#refusals.shift();
      if (refusal !== undefined) throw again(refusal);
      const batch = this.#arrived.shift();
      if (batch !== undefined) {
        handedOver(batch);
        if (!isWanted(batch)) continue; // Its lease ended while it waited here.
        batch.records.verify();
        return batch;
      }
      if (this.#isClosed) return undefined;
      if (this.#broken !== undefined) throw again(this.#broken);
      const outageError = this.#outageError;
      this.#outageError = undefined;
      if (outageError !== undefined) throw again(outageError);
      if (this.#session.connection === undefined) this.#session.want();
      this.#subscription?.waits();
      const changed = await this.#changed(until);
      this.#subscription?.waited();
      if (!changed) return undefined;
    }
  }

  /** Wait for something to happen; false where the time has passed. */
  #changed(until: number): Promise<boolean> {
    const left = until - performance.now();
    if (left <= 0) return Promise.resolve(false);
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        resolve(true);
      };
      const timeUp = (): void => {
        this.#wakers.delete(wake);
        resolve(false);
      };
      const timer = until === Infinity ? undefined : setTimeout(timeUp, Math.min(left, TIMER_MS_MAX));
      this.#wakers.add(wake);
    });
  }

  // --- settling ---

  /** Settle a range of offsets of a delivery by its numbers; see `Batch` and `Message`. Throws message.invalid. */
  settle(delivery: Delivery, first: bigint, end: bigint, verdict: Verdict, ms: number, reason = ""): Settled {
    return (subscriptionOf(delivery) ?? this.#latest).settle(delivery, first, end, verdict, ms, reason);
  }

  /** Send all settlements that wait. */
  flush(): void {
    this.#subscription?.flush();
  }

  /** Settle what waits to be settled, and unsubscribe. What was not read goes back to a queue as if it had not been
   * delivered; what was read and not settled goes back as well, and the attempt counts.
   *
   * Rejects with the refusal of a settlement that nobody awaited. */
  async close(): Promise<void> {
    if (this.#isClosing) return;
    this.#isClosing = true;
    const until = performance.now() + this.#session.options.requestTimeoutMs;
    await this.#subscription?.untilSettled(until - performance.now());
    this.#isClosed = true;
    this.#session.users.delete(this);
    const left = this.#subscription?.leave(until - performance.now());
    this.#arrived = [];
    this.#current = undefined;
    this.#wake();
    await left;
    const refusal = this.#refusals.shift();
    if (refusal !== undefined) throw again(refusal);
  }
}

function isWanted(batch: Batch): boolean {
  return !(batch.settler instanceof Subscription) || batch.settler.wants(batch);
}

function handedOver(batch: Batch): void {
  if (batch.settler instanceof Subscription) batch.settler.handedOver(batch);
}

function wantedOf(options: ConsumerOptions): Wanted {
  const { group = "", prefetch, start = "earliest", partitions = [], where = "" } = options;
  const { renewalMaxMs = RENEWAL_MAX_MS, shared = "", name = "" } = options;
  if (prefetch !== undefined && (!Number.isInteger(prefetch) || prefetch < 1 || prefetch > U32_MAX)) {
    throw invalid(`prefetch must be a whole number from 1 to ${U32_MAX}, not ${prefetch}`);
  }
  if (!(renewalMaxMs >= 0)) throw invalid(`renewalMaxMs must be a number of at least 0, not ${renewalMaxMs}`);
  const adapts = prefetch === undefined && group === "";
  const choice = { start: startOf(start), partitions, where };
  return { group, shared, name, prefetch: prefetch ?? PREFETCH_MAX, adapts, ...choice, renewalMaxMs };
}

function startOf(start: Start): bigint {
  if (typeof start === "string") {
    if (Object.hasOwn(STARTS, start)) return STARTS[start];
  } else if (typeof start === "bigint" || Number.isInteger(start)) {
    const offset = BigInt(start);
    if (offset >= 0n && offset < 1n << 63n) return offset;
  }
  throw invalid(`start must be "earliest", "latest" or an offset, not ${start}`);
}

function iterate<T>(step: () => Promise<T | undefined>): AsyncIterator<T, undefined> {
  return {
    next: async () => {
      const value = await step();
      return value === undefined ? { done: true, value: undefined } : { done: false, value };
    },
  };
}
