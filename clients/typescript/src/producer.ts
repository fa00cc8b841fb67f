// Producer: publishes to one topic or one exchange. Messages that come while a batch is on its way share the next one.
//
// Laws: batches go out in the order of the calls; each message is confirmed or failed exactly once. After the
// connection was lost, all batches that were not answered are sent again in that order (what the broker had stored
// already is then there twice). What the broker refuses is not sent again: the error says whether trying again makes
// sense. A message that is not confirmed within the request timeout fails, up to a quarter of it later where it shares
// a batch.

import { buildBatch, checkRecord, recordBytes, type CheckedRecord } from "./batch-builder.js";
import type { Message } from "./codec.js";
import { again, clientClosed, connectionLost, invalid, LinnError, protocolError, Unroutable } from "./errors.js";
import type { Caller, Connection } from "./connection.js";
import type { RecordInput } from "./record.js";
import { indexesReturned, isReturned } from "./returned.js";
import type { Session, SessionUser } from "./session.js";
import { baseId, formatId, idPlus } from "./uuid.js";
import { noZstd } from "./zstd.js";

export type Acks = "none" | "leader" | "all";

export interface ProducerOptions {
  /** "leader": confirmed when stored as the topic's durability asks for; "all": by every replica; "none": not at
   * all. */
  acks?: Acks;
  /** Compress the batches. */
  codec?: "zstd";
  /** A batch goes when it has this size, about. */
  batchBytesMax?: number;
  /** Batches sent and not confirmed. */
  inFlightMax?: number;
  /** Bytes that may wait to be confirmed; beyond it publishing fails with limit.exceeded. See `ready`. */
  bufferBytesMax?: number;
}

export interface PublishOptions {
  /** Fail with exchange.unroutable where no binding of the exchange leads a message to a topic. A topic takes every
   * message. */
  mandatory?: boolean;
}

export interface BatchOptions extends PublishOptions {
  /** Of a topic; see `partitionOf`. -1, and left out: the broker chooses, by the records' keys where they have any. */
  partition?: number;
}

/** Where a batch was put. */
export interface Placement {
  /** -1: several partitions, or none. */
  readonly partition: number;
  /** Of the first record; -1n where `partition` is -1. */
  readonly baseOffset: bigint;
  /** Records stored, in all topics together; 0: no binding took any. */
  readonly copies: number;
  /** With `mandatory`, the records that no topic took, as ranges of their indexes: first, end (exclusive), ... */
  readonly returned: readonly number[];
}

/** Where a message was put. */
export interface Receipt {
  /** undefined where its batch went to several partitions or to none, and with acks "none". */
  readonly partition: number | undefined;
  /** undefined where `partition` is. */
  readonly offset: bigint | undefined;
  /** The message's UUID, in every topic. */
  readonly id: string;
  /** Records that its whole batch became; undefined with acks "none". */
  readonly batchCopies: number | undefined;
}

/** What the producer needs of its client. */
export interface World {
  readonly session: Session;
  now(): number;
  random(): Uint8Array;
}

const ACKS = { none: 0, leader: 1, all: 2 };
const BATCH_BYTES_MAX = 256 << 10;
const IN_FLIGHT_MAX = 8;
const BUFFER_BYTES_MAX = 32 << 20;
/** In a batch of several calls: half of what a UInt16 can tell apart in routes. */
const RECORDS_MAX = 32_768;
/** Parts of the request timeout, during one of which messages may join a batch that waits. */
const JOINS_PER_TIMEOUT = 4;

/** Records that go as one batch. */
class PendingBatch {
  readonly records: CheckedRecord[] = [];
  bytes = 0;
  /** No more records are added. */
  closed = false;
  /** How often it was sent. */
  attempts = 0;
  /** Ignore the answer. */
  forget: (() => void) | undefined;
  readonly sinceMs = performance.now();
  readonly confirmed: Promise<Placement | undefined>;
  confirm!: (placement: Placement | undefined) => void;
  fail!: (error: LinnError) => void;

  constructor(
    readonly sequence: number,
    readonly partition: number,
    readonly baseId: bigint,
    readonly mandatory: boolean,
    /** Fails it when its time is over. */
    readonly timer: NodeJS.Timeout,
  ) {
    this.confirmed = new Promise((resolve, reject) => {
      this.confirm = resolve;
      this.fail = reject;
    });
    this.confirmed.catch(() => {});
  }

  add(record: CheckedRecord): number {
    this.bytes += recordBytes(record);
    return this.records.push(record) - 1;
  }
}

/** Made by `Client.producer`. */
export class Producer implements SessionUser {
  readonly #world: World;
  readonly #session: Session;
  readonly #options: Required<Omit<ProducerOptions, "codec">> & { compresses: boolean };
  readonly #waiting: PendingBatch[] = [];
  readonly #inFlight = new Set<PendingBatch>();
  #lastSequence = 0;
  #bufferedBytes = 0;
  #pumps = false;
  #listensTo: Connection | undefined;
  #isClosed = false;
  #whenRoom: (() => void)[] = [];

  constructor(
    world: World,
    /** A topic's name, or an exchange's. */
    readonly target: string,
    readonly toExchange: boolean,
    options: ProducerOptions,
  ) {
    const { acks = "leader", batchBytesMax = BATCH_BYTES_MAX, inFlightMax = IN_FLIGHT_MAX } = options;
    const { bufferBytesMax = BUFFER_BYTES_MAX } = options;
    if (!(acks in ACKS)) throw invalid(`acks must be "none", "leader" or "all", not ${JSON.stringify(acks)}`);
    if (!(batchBytesMax > 0 && inFlightMax > 0 && bufferBytesMax > 0))
      throw invalid("a producer's limits must be positive");
    if (options.codec === "zstd" && world.session.compress === undefined) noZstd();
    this.#world = world;
    this.#session = world.session;
    this.#options = { acks, batchBytesMax, inFlightMax, bufferBytesMax, compresses: options.codec === "zstd" };
  }

  // --- publishing ---

  /** Publish one message, and wait for what `acks` asks for.
   *
   * Rejects with message.invalid, message.too_large, limit.exceeded (nothing was sent); exchange.unroutable (it was
   * mandatory, and no topic takes it); request.timeout, connection.lost (the text says whether it was never sent, or
   * may be stored); or what the broker refused it with. */
  async publish(record: RecordInput, options: PublishOptions = {}): Promise<Receipt> {
    const checked = this.#checked(record);
    const batch = this.#openBatch(this.#asksReturn(options));
    const index = batch.add(checked);
    this.#buffer(recordBytes(checked));
    if (batch.bytes >= this.#options.batchBytesMax || batch.records.length >= RECORDS_MAX) batch.closed = true;
    const placement = await this.#confirmed(batch);
    if (placement !== undefined && isReturned(placement.returned, index)) throw this.#unroutable("the message", [0]);
    const id = formatId(checked.id ?? idPlus(batch.baseId, index));
    if (placement === undefined || placement.partition < 0) {
      return { partition: undefined, offset: undefined, id, batchCopies: placement?.copies };
    }
    const { partition, baseOffset, copies } = placement;
    return { partition, offset: baseOffset + BigInt(index), id, batchCopies: copies };
  }

  /** Publish records as one batch; rejects as `publish` does, and with batch.too_large.
   *
   * An `Unroutable` has the indexes of the records that no topic takes; the others are confirmed then. With acks "none"
   * there is no placement. */
  async publishBatch(records: readonly RecordInput[], options: BatchOptions = {}): Promise<Placement | undefined> {
    const checked = records.map((record) => this.#checked(record));
    if (checked.length === 0) throw invalid("a batch holds at least one record");
    const batch = this.#newBatch(options.partition ?? -1, this.#asksReturn(options));
    for (const record of checked) batch.add(record);
    batch.closed = true;
    this.#buffer(batch.bytes);
    const placement = await this.#confirmed(batch);
    const lost = indexesReturned(placement?.returned ?? [], records.length);
    if (lost.length > 0) throw this.#unroutable(`${lost.length} of ${records.length} messages`, lost);
    return placement;
  }

  /** Whether the broker is to be asked what a mandatory message needs. Throws message.invalid. */
  #asksReturn({ mandatory = false }: PublishOptions): boolean {
    if (mandatory && this.#options.acks === "none") {
      throw invalid('mandatory needs the broker\'s answer, which acks "none" does not wait for');
    }
    return mandatory && this.toExchange;
  }

  #unroutable(what: string, indexes: readonly number[]): Unroutable {
    return new Unroutable(`no binding of exchange ${this.target} leads ${what} to a topic`, indexes);
  }

  #checked(record: RecordInput): CheckedRecord {
    if (this.#isClosed) throw clientClosed("the producer is closed");
    if (this.#session.closed) throw clientClosed("the client was closed");
    const checked = checkRecord(record, this.#world.now());
    const most = this.#session.welcome.messageBytesMax;
    if (checked.size > most) {
      throw new LinnError("message.too_large", `a message of ${checked.size} bytes, more than ${most}`);
    }
    if (this.#bufferedBytes >= this.#options.bufferBytesMax) {
      throw new LinnError("limit.exceeded", `${this.#bufferedBytes} bytes wait to be confirmed: await ready()`);
    }
    return checked;
  }

  /** The batch that waits and may be joined, or another. */
  #openBatch(mandatory: boolean): PendingBatch {
    const last = this.#waiting.at(-1);
    const sinceMs = performance.now() - this.#session.options.requestTimeoutMs / JOINS_PER_TIMEOUT;
    if (last === undefined || last.closed || last.mandatory !== mandatory || last.sinceMs < sinceMs) {
      return this.#newBatch(-1, mandatory);
    }
    last.timer.refresh(); // Whoever joins may wait as long as whoever was first.
    return last;
  }

  #newBatch(partition: number, mandatory: boolean): PendingBatch {
    const before = this.#waiting.at(-1);
    if (before !== undefined) before.closed = true;
    const id = baseId(this.#world.now(), this.#world.random());
    const timer = setTimeout(() => this.#overdue(batch), this.#session.options.requestTimeoutMs);
    const batch = new PendingBatch(++this.#lastSequence, partition, id, mandatory, timer);
    this.#waiting.push(batch);
    return batch;
  }

  #buffer(bytes: number): void {
    this.#bufferedBytes += bytes;
    this.#pumpSoon();
  }

  #pumpSoon(): void {
    if (this.#pumps) return;
    this.#pumps = true;
    // Behind this turn, so that what else is published in it goes along.
    queueMicrotask(() => {
      this.#pumps = false;
      this.#pump();
    });
  }

  async #confirmed(batch: PendingBatch): Promise<Placement | undefined> {
    try {
      return await batch.confirmed;
    } catch (error) {
      throw again(error as LinnError);
    }
  }

  // --- sending ---

  #pump(): void {
    for (let batch = this.#waiting[0]; batch !== undefined; batch = this.#waiting[0]) {
      const { connection } = this.#session;
      if (connection === undefined) {
        this.#session.users.add(this);
        this.#session.want();
        return;
      }
      // One that is open waits for more messages, as long as others are on their way.
      const most = batch.closed ? this.#options.inFlightMax : 1;
      if (this.#inFlight.size >= most) return;
      if (!connection.ready) {
        this.#listen(connection);
        return;
      }
      this.#waiting.shift();
      batch.closed = true;
      this.#send(connection, batch);
    }
  }

  #listen(connection: Connection): void {
    if (this.#listensTo === connection) return;
    this.#listensTo = connection;
    connection.whenReady(() => {
      this.#listensTo = undefined;
      this.#pump();
    });
  }

  connected(): void {
    this.#session.users.delete(this);
    this.#pump();
  }

  /** Fail everything that waits, because there is no broker to send it to. */
  gaveUp(error: LinnError): void {
    this.#session.users.delete(this);
    for (const batch of this.#waiting.splice(0)) this.#settle(batch, mayBeStored(batch, error));
  }

  #send(connection: Connection, batch: PendingBatch): void {
    let bytes: Buffer;
    try {
      bytes = this.#built(connection, batch);
    } catch (error) {
      if (!(error instanceof LinnError)) throw error;
      this.#settle(batch, error);
      return;
    }
    const { acks } = this.#options;
    const { partition, mandatory } = batch;
    const content = { target: this.target, toExchange: this.toExchange, acks: ACKS[acks], partition, mandatory };
    if (acks === "none") {
      connection.tell({ member: "publish", content }, [bytes]);
      this.#settle(batch, undefined);
      return;
    }
    batch.attempts += 1;
    this.#inFlight.add(batch);
    const caller: Caller = {
      answered: (message) => this.#answered(batch, message),
      failed: (error) => this.#failed(batch, error),
    };
    const correlation = connection.ask(caller, { member: "publish", content }, [bytes]);
    batch.forget = () => connection.forget(correlation);
  }

  #answered(batch: PendingBatch, message: Message): void {
    const placement = message.member === "published" ? message.content.placements[0] : undefined;
    this.#settle(batch, placement ?? protocolError(`the broker answered publish with ${message.member}`));
    this.#pumpSoon();
  }

  /** The broker refused, or the connection was lost. */
  #failed(batch: PendingBatch, error: LinnError): void {
    // A broker that is stopping has not stored it: it goes to the next one.
    const isGone = error.code === "connection.lost" || error.code === "broker.stopping";
    if (isGone && !this.#session.isUsedUp(batch.attempts)) this.#putBack(batch);
    else this.#settle(batch, error.code === "connection.lost" ? mayBeStored(batch, error) : error);
    this.#pumpSoon();
  }

  #putBack(batch: PendingBatch): void {
    this.#inFlight.delete(batch);
    const later = this.#waiting.findIndex(({ sequence }) => sequence > batch.sequence);
    this.#waiting.splice(later < 0 ? this.#waiting.length : later, 0, batch);
  }

  /** Fail what was not confirmed in time. */
  #overdue(batch: PendingBatch): void {
    const within = `within ${this.#session.options.requestTimeoutMs} ms`;
    const why = this.#session.outage?.error.message ?? "those before it were not confirmed";
    const text = batch.attempts
      ? `${this.target} did not confirm a batch ${within}; it may or may not be stored`
      : `a batch for ${this.target} was not sent ${within}: ${why}`;
    const index = this.#waiting.indexOf(batch);
    if (index >= 0) this.#waiting.splice(index, 1);
    else batch.forget?.();
    this.#settle(batch, new LinnError("request.timeout", text));
    this.#pumpSoon();
  }

  #built(connection: Connection, batch: PendingBatch): Buffer {
    const bytes = buildBatch(batch.records, {
      baseId: batch.baseId,
      zstd: this.#options.compresses ? connection.compress : undefined,
      keyHashes: batch.partition < 0,
    });
    const most = connection.welcome.batchBytesMax;
    if (bytes.length > most)
      throw new LinnError("batch.too_large", `a batch of ${bytes.length} bytes, more than ${most}`);
    return bytes;
  }

  #settle(batch: PendingBatch, outcome: Placement | LinnError | undefined): void {
    clearTimeout(batch.timer);
    this.#inFlight.delete(batch);
    this.#bufferedBytes -= batch.bytes;
    if (outcome instanceof LinnError) batch.fail(outcome);
    else batch.confirm(outcome);
    if (this.#bufferedBytes < this.#options.bufferBytesMax) {
      const callbacks = this.#whenRoom;
      this.#whenRoom = [];
      for (const callback of callbacks) callback();
    }
  }

  // --- waiting ---

  /** Wait until there is room in the buffer: for those who publish without awaiting each message. */
  async ready(): Promise<void> {
    while (this.#bufferedBytes >= this.#options.bufferBytesMax) {
      await new Promise<void>((resolve) => this.#whenRoom.push(resolve));
    }
  }

  /** Wait until all that was published before is confirmed or failed, whichever; each publish tells its own outcome. */
  async flush(): Promise<void> {
    await Promise.allSettled([...this.#inFlight, ...this.#waiting].map((batch) => batch.confirmed));
  }

  /** Flush, and take no more. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.flush();
    this.#session.users.delete(this);
  }
}

/** What a batch fails with that is not sent again because of `error`. */
function mayBeStored({ attempts }: PendingBatch, error: LinnError): LinnError {
  if (attempts === 0 || error.code === "client.closed") return error;
  return connectionLost(`${error.message}; the batch was sent, and may or may not be stored`);
}
