// Consumer: reads one topic, message by message or batch by batch, and settles what it has read.
//
// Laws: credit is given back for what was handed over, so that no more than the credit waits here; of records with leases
// the broker counts what is held, and says when a lease is over: what waits here of it is dropped. What was refused or failed is thrown by the next step, after which reading may go on, unless the
// subscription or the connection is over.

import type { RecordBatch } from "./batch.js";
import type { Message as ControlMessage } from "./codec.js";
import { again, goneBy, invalid, LinnError, protocolError } from "./errors.js";
import type { Caller, Link, Taker } from "./link.js";
import { Batch, Message, type Delivery, type Settler } from "./message.js";
import { merged, Settling, type Settled, type Verdict } from "./settling.js";
import type { Struct } from "./struct.js";

export type Start = "earliest" | "latest" | bigint | number;
export type SubscriptionKind = "shared" | "group" | "reader";

export interface ConsumerOptions {
  /** On a stream: the group whose members share the partitions and whose place is kept. */
  group?: string;
  /** Records that may be on their way or with the application; leased ones count until they are settled. */
  credit?: number;
  /** Of a stream, where nothing is committed. */
  start?: Start;
  /** Of a stream without a group: only these. */
  partitions?: readonly number[];
}

const KINDS: readonly SubscriptionKind[] = ["shared", "group", "reader"];
const CREDIT = 4_096;
const STARTS = { earliest: -2n, latest: -1n };
/** How long a settlement that nobody awaits may wait for more: far below any lease. */
const SETTLE_LINGER_MS = 5;
/** Settlements that wait together. */
const SETTLINGS_MAX = 1_024;
const MS_MAX = 0xffffffff;

/** Made by `Client.consumer`. Iterate over it, or over `batches()`. */
export class Consumer implements Taker, Settler, AsyncIterable<Message> {
  readonly topic: string;
  readonly kind: SubscriptionKind;
  /** How long a lease lasts, in ms; 0 where there are none. */
  readonly leaseMs: number;
  readonly #link: Link;
  readonly #timeoutMs: number;
  readonly #id: number;
  readonly #chunk: number;
  #spent = 0;
  #arrived: Batch[] = [];
  #current: { batch: Batch; messages: Iterator<Message> } | undefined;
  #owned: Set<number> | undefined;
  /** Members of groups: where reading goes on after a nack, by partition. */
  readonly #positions = new Map<number, bigint>();
  #open: Settling[] = [];
  readonly #unanswered = new Set<Settling>();
  #flushTimer: NodeJS.Timeout | undefined;
  #refusals: LinnError[] = [];
  #broken: LinnError | undefined;
  #isClosed = false;
  readonly #wakers = new Set<() => void>();

  private constructor(link: Link, topic: string, credit: number, timeoutMs: number, subscribed: Struct<"Subscribed">) {
    this.topic = topic;
    const kind = KINDS[subscribed.kind];
    if (kind === undefined) throw protocolError(`a subscription of kind ${subscribed.kind}`);
    this.kind = kind;
    this.leaseMs = subscribed.leaseMs;
    this.#link = link;
    this.#timeoutMs = timeoutMs;
    this.#id = subscribed.subscription;
    this.#chunk = Math.max(1, credit >> 1);
    link.subscriptions.set(this.#id, this);
  }

  /** Subscribe. Rejects with topic.unknown, delivery.wrong_kind and other refusals, connection.lost,
   * request.timeout. */
  static async open(link: Link, topic: string, options: ConsumerOptions, timeoutMs: number): Promise<Consumer> {
    const { group = "", credit = CREDIT, start = "earliest", partitions = [] } = options;
    if (!Number.isInteger(credit) || credit < 1 || credit > MS_MAX)
      throw invalid(`credit is a positive number, not ${credit}`);
    const content = { topic, group, credit, start: startOf(start), partitions: [...partitions] };
    return new Promise<Consumer>((resolve, reject) => {
      const timer = setTimeout(() => {
        link.forget(correlation);
        reject(new LinnError("request.timeout", `subscribe: no answer from ${link.peer} within ${timeoutMs} ms`));
      }, timeoutMs);
      const caller: Caller = {
        // Made here, before anything that is pushed to it is looked at.
        answered: (message) => {
          clearTimeout(timer);
          try {
            if (message.member !== "subscribed")
              throw protocolError(`the broker answered subscribe with ${message.member}`);
            resolve(new Consumer(link, topic, credit, timeoutMs, message.content));
          } catch (error) {
            reject(error as LinnError);
          }
        },
        failed: (error) => {
          clearTimeout(timer);
          reject(error);
        },
      };
      const correlation = link.ask(caller, { member: "subscribe", content });
    });
  }

  /** The partitions that a member of a group owns now; undefined where there is no group, or none is known yet. */
  get partitions(): number[] | undefined {
    return this.#owned && [...this.#owned];
  }

  get #leased(): boolean {
    return this.kind === "shared" && this.leaseMs > 0;
  }

  // --- what the broker sends ---

  pushed(message: ControlMessage, batches: RecordBatch[]): void {
    if (this.#isClosed) return;
    switch (message.member) {
      case "deliver":
        this.#delivered(message.content, batches);
        break;
      case "assigned":
        this.#owned = new Set(message.content.partitions);
        this.#dropUnwanted();
        break;
      case "leaseEnded":
        this.#leaseEnded(message.content);
        break;
      case "ended":
        this.#end(new LinnError(message.content.code, message.content.text));
    }
    this.#wake();
  }

  #delivered(deliver: Struct<"Deliver">, batches: RecordBatch[]): void {
    const { partition, deliveryId, attempt } = deliver;
    const delivery: Delivery = { partition, deliveryId, attempt };
    for (const records of batches) {
      const first = this.#skipped(partition, records);
      if (first > 0) this.#spend(first);
      if (first < records.count) this.#arrived.push(new Batch(this.topic, delivery, records, first, this));
    }
  }

  /** Drop what waits here of a lease that is over: the broker gives it to whoever is next. */
  #leaseEnded({ partition, deliveryId }: Struct<"LeaseEnded">): void {
    const isOver = (batch: Batch): boolean =>
      batch.partition === partition && batch.delivery.deliveryId === deliveryId;
    this.#arrived = this.#arrived.filter((batch) => !isOver(batch));
    if (this.#current !== undefined && isOver(this.#current.batch)) this.#current = undefined;
  }

  /** How many records of a batch are not wanted (any more). */
  #skipped(partition: number, records: RecordBatch): number {
    if (this.#owned !== undefined && !this.#owned.has(partition)) return records.count;
    const position = this.#positions.get(partition);
    if (position === undefined) return 0;
    const { baseOffset } = records.header;
    // On its way when reading was set back.
    if (position < baseOffset || position >= records.endOffset) return records.count;
    this.#positions.delete(partition);
    return Number(position - baseOffset);
  }

  #isWanted(batch: Batch): boolean {
    if (this.#owned !== undefined && !this.#owned.has(batch.partition)) return false;
    return !this.#positions.has(batch.partition);
  }

  /** Drop what arrived of partitions that were lost, or in which reading was set back. */
  #dropUnwanted(): void {
    for (const partition of this.#positions.keys()) {
      if (this.#owned !== undefined && !this.#owned.has(partition)) this.#positions.delete(partition);
    }
    const arrived = this.#arrived;
    this.#arrived = arrived.filter((batch) => this.#isWanted(batch));
    for (const batch of arrived) if (!this.#isWanted(batch)) this.#handedOver(batch);
    if (this.#current !== undefined && !this.#isWanted(this.#current.batch)) this.#current = undefined;
  }

  /** The link is over. */
  lost(error: LinnError): void {
    this.#end(goneBy(error));
    this.#wake();
  }

  #end(error: LinnError): void {
    if (this.#broken !== undefined) return;
    this.#broken = error;
    this.#link.subscriptions.delete(this.#id);
    // What was leased comes again elsewhere.
    if (this.#leased || this.kind === "group") this.#arrived = [];
    const settlings = [...this.#unanswered, ...this.#open];
    this.#open = [];
    this.#unanswered.clear();
    this.#finish(settlings, tooLate());
  }

  #wake(): void {
    for (const wake of this.#wakers) wake();
    this.#wakers.clear();
  }

  // --- credit ---

  #handedOver(batch: Batch): void {
    if (!this.#leased) this.#spend(batch.length);
  }

  #spend(records: number): void {
    if (this.#broken !== undefined || this.#isClosed) return;
    this.#spent += records;
    if (this.#spent < this.#chunk) return;
    this.#link.tell({ member: "credit", content: { subscription: this.#id, records: this.#spent } });
    this.#spent = 0;
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
    const message = this.#current?.messages.next();
    if (message?.done === false) return message.value;
    this.#current = undefined;
    const batch = await this.nextBatch(timeoutMs);
    if (batch === undefined) return undefined;
    const messages = batch[Symbol.iterator]();
    this.#current = { batch, messages };
    const first: IteratorResult<Message> = messages.next();
    return first.done === true ? undefined : first.value;
  }

  /** The next batch; undefined when `timeoutMs` has passed, or when the consumer was closed.
   *
   * Rejects with the refusal of a settlement that nobody awaited, or batch.corrupt where a batch is damaged,
   * after which reading may go on; and each time where the subscription is over (topic.unknown where the topic
   * was deleted) or the connection is (connection.lost). */
  async nextBatch(timeoutMs?: number): Promise<Batch | undefined> {
    const until = timeoutMs === undefined ? Infinity : performance.now() + timeoutMs;
    for (;;) {
      const refusal = this.#refusals.shift();
      if (refusal !== undefined) throw again(refusal);
      const batch = this.#arrived.shift();
      if (batch !== undefined) return this.#checked(batch);
      if (this.#isClosed) return undefined;
      if (this.#broken !== undefined) throw again(this.#broken);
      this.flush();
      if (!(await this.#changed(until))) return undefined;
    }
  }

  #checked(batch: Batch): Batch {
    this.#handedOver(batch);
    batch.records.verify();
    return batch;
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
      const timer = until === Infinity ? undefined : setTimeout(timeUp, left);
      this.#wakers.add(wake);
    });
  }

  // --- settling ---

  /** Settle a range of offsets of a delivery; see `Batch` and `Message`. Throws message.invalid. */
  settle(delivery: Delivery, first: bigint, end: bigint, verdict: Verdict, ms: number): Settled {
    if (!Number.isInteger(ms) || ms < 0 || ms > MS_MAX) throw invalid(`milliseconds from 0 to ${MS_MAX}, not ${ms}`);
    const settling = new Settling(delivery, first, end, verdict, ms, () => this.flush());
    if (verdict === "ack" && !this.#leased && this.kind !== "group") {
      settling.finish(undefined);
    } else if (this.#broken !== undefined || this.#isClosed) {
      this.#finish([settling], tooLate());
    } else {
      this.#add(settling);
    }
    return settling;
  }

  #add(settling: Settling): void {
    const { partition } = settling.delivery;
    this.#open.push(settling);
    if (settling.verdict === "nack" && this.kind === "group") {
      this.#positions.set(partition, settling.first);
      this.#dropUnwanted();
    }
    if (this.#open.length >= SETTLINGS_MAX || settling.end - settling.first >= this.#chunk) this.flush();
    else this.#flushTimer ??= setTimeout(() => this.flush(), SETTLE_LINGER_MS);
  }

  /** Send all settlements that wait. */
  flush(): void {
    clearTimeout(this.#flushTimer);
    this.#flushTimer = undefined;
    const settlings = this.#open;
    this.#open = [];
    if (settlings.length === 0) return;
    for (const settling of settlings) this.#unanswered.add(settling);
    const entries = merged(settlings);
    const content = { subscription: this.#id, entries: entries.map(({ entry }) => entry) };
    const caller: Caller = {
      answered: (message) => {
        const refused = message.member === "settled" ? message.content.refused : [];
        const byEntry = new Map(refused.map(({ entry, code, text }) => [entry, new LinnError(code, text)]));
        entries.forEach((entry, index) => this.#answered(entry.settlings, byEntry.get(index)));
      },
      failed: (error) => {
        const outcome = error.code === "connection.lost" || error.code === "client.closed" ? tooLate() : error;
        this.#answered(settlings, outcome);
      },
    };
    this.#link.ask(caller, { member: "settle", content });
  }

  #answered(settlings: readonly Settling[], error: LinnError | undefined): void {
    const open = settlings.filter((settling) => this.#unanswered.delete(settling));
    for (const { verdict, delivery } of open) {
      // What comes from now on was read after reading was set back.
      if (verdict === "nack") this.#positions.delete(delivery.partition);
    }
    this.#finish(open, error);
  }

  #finish(settlings: readonly Settling[], error: LinnError | undefined): void {
    for (const settling of settlings) settling.finish(error);
    if (error === undefined || settlings.length === 0 || settlings.some((settling) => settling.awaited)) return;
    this.#refusals.push(error);
    this.#wake();
  }

  /** Wait for the broker's answers to settlements, as long as for any answer. */
  async #answeredAll(): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const timeUp = new Promise<void>((resolve) => (timer = setTimeout(resolve, this.#timeoutMs)));
    await Promise.race([Promise.all([...this.#unanswered].map((settling) => settling.done)), timeUp]);
    clearTimeout(timer);
  }

  /** Settle what waits to be settled, and unsubscribe. What was not settled goes back to a queue.
   *
   * Rejects with the refusal of a settlement that nobody awaited. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.flush();
    await this.#answeredAll();
    this.#isClosed = true;
    this.#arrived = [];
    this.#current = undefined;
    this.#wake();
    if (this.#broken === undefined) {
      const content = { subscription: this.#id };
      await this.#link.request({ member: "unsubscribe", content }, "done", this.#timeoutMs);
      this.#link.subscriptions.delete(this.#id);
    }
    const refusal = this.#refusals.shift();
    if (refusal !== undefined) throw again(refusal);
  }
}

function startOf(start: Start): bigint {
  if (typeof start === "string") {
    if (Object.hasOwn(STARTS, start)) return STARTS[start];
  } else if (typeof start === "bigint" || Number.isInteger(start)) {
    const offset = BigInt(start);
    if (offset >= 0n && offset < 1n << 63n) return offset;
  }
  throw invalid(`start is "earliest", "latest" or an offset, not ${start}`);
}

function tooLate(): LinnError {
  const text = "the subscription that the records came by is over; the broker may deliver them again";
  return new LinnError("delivery.not_current", text);
}

function iterate<T>(step: () => Promise<T | undefined>): AsyncIterator<T, undefined> {
  return {
    next: async () => {
      const value = await step();
      return value === undefined ? { done: true, value: undefined } : { done: false, value };
    },
  };
}
