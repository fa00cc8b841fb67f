// Producer: publishes to one topic or one exchange. Messages that come while a batch is on its way share the next one.
//
// Laws: the batches of a lane (see there) go out in the order of the calls; each message is confirmed or failed exactly
// once. What was not answered when the connection was lost, and what the broker refuses for now, is sent again in that
// order. All batches in flight are on one connection: to the topic's leader, or to the broker at hand. Later ones go to
// another when all are answered, or their connection is lost. A message that is not confirmed within the request timeout fails, up to a quarter of it later where it shares
// a batch.

import { buildBatch, checkRecord, recordBytes, type CheckedRecord, type Numbers } from "./batch-builder.js";
import type { Message } from "./codec.js";
import {
  again,
  clientClosed,
  connectionLost,
  invalid,
  LinnError,
  protocolError,
  RecordsRefused,
  Unroutable,
} from "./errors.js";
import type { Caller, Connection } from "./connection.js";
import { isOutOfOrder, Lane } from "./lane.js";
import { TopicLeader } from "./leaders.js";
import { PendingBatch, type Placement } from "./pending-batch.js";
import type { Identity } from "./producer-ids.js";
import type { RecordInput } from "./record.js";
import { indexesAmong, isAmong } from "./returned.js";
import type { Session, SessionUser } from "./session.js";
import { baseId, formatId, idPlus } from "./uuid.js";
import { noZstd } from "./zstd.js";

export type Acks = "none" | "leader" | "all";

export interface ProducerOptions {
  /** "all", the default: confirmed when every in-sync replica has stored it as the topic's durability asks for;
   * "leader": when the broker that leads the topic has; "none": not at all. */
  acks?: Acks;
  /** Compress the batches. */
  codec?: "zstd";
  /** A batch goes when it has this size, about. */
  batchBytesMax?: number;
  /** Batches sent and not confirmed. Default: 8, which is the most where the producer is idempotent. */
  inFlightMax?: number;
  /** Bytes that may wait to be confirmed; beyond it publishing fails with limit.exceeded. See `ready`. */
  bufferBytesMax?: number;
  /** Whether the broker recognises a batch that is sent again after a lost connection or a refusal: each message is then
   * stored once and in order. Without effect with acks "none". Default: true. */
  idempotent?: boolean;
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
/** As many as a broker remembers of an idempotent producer. */
const IN_FLIGHT_MAX = 8;
const BUFFER_BYTES_MAX = 32 << 20;
/** In a batch of several calls: half of what a UInt16 can tell apart in routes. */
const RECORDS_MAX = 32_768;
/** Parts of the request timeout, during one of which messages may join a batch that waits. */
const JOINS_PER_TIMEOUT = 4;

/** Made by `Client.producer`. */
export class Producer implements SessionUser {
  readonly #world: World;
  readonly #session: Session;
  readonly #options: Required<Omit<ProducerOptions, "codec">> & { compresses: boolean };
  /** By partition; -1 where the broker chooses. */
  readonly #lanes = new Map<number, Lane>();
  /** That of the lane whose partitions the broker chooses, and that of all others: a partition may be in both. */
  readonly #identities = new Map<boolean, Identity>();
  /** The latest batch. */
  #last: PendingBatch | undefined;
  #lastSequence = 0;
  #bufferedBytes = 0;
  #pumps = false;
  /** Where the topic's leader is; undefined: an exchange, whose topics may have several. */
  readonly #leader: TopicLeader | undefined;
  /** The connection that the latest batch went to. */
  #at: Connection | undefined;
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
    const { acks = "all", batchBytesMax = BATCH_BYTES_MAX, inFlightMax = IN_FLIGHT_MAX } = options;
    const { bufferBytesMax = BUFFER_BYTES_MAX, idempotent = true } = options;
    if (!(acks in ACKS)) throw invalid(`acks must be "none", "leader" or "all", not ${JSON.stringify(acks)}`);
    if (!(batchBytesMax > 0 && inFlightMax > 0 && bufferBytesMax > 0))
      throw invalid("a producer's limits must be positive");
    if (idempotent && inFlightMax > IN_FLIGHT_MAX) {
      throw invalid(`inFlightMax must be at most ${IN_FLIGHT_MAX} unless idempotent is false`);
    }
    if (options.codec === "zstd" && world.session.compress === undefined) noZstd();
    this.#world = world;
    this.#session = world.session;
    const compresses = options.codec === "zstd";
    if (!toExchange) this.#leader = new TopicLeader(world.session.leaders, target, () => this.#pumpSoon());
    this.#options = { acks, batchBytesMax, inFlightMax, bufferBytesMax, idempotent, compresses };
  }

  // --- publishing ---

  /** Publish one message, and wait for what `acks` asks for.
   *
   * Rejects with message.invalid, message.too_large, limit.exceeded (nothing was sent); exchange.unroutable (it was
   * mandatory, and no topic takes it); request.timeout, connection.lost (the text says whether it was never sent, or
   * may be stored); or what the broker refused it with. */
  async publish(record: RecordInput, options: PublishOptions = {}): Promise<Receipt> {
    const checked = this.#checked(record);
    const bytes = recordBytes(checked);
    const batch = this.#openBatch(this.#asksReturn(options), bytes);
    const index = batch.add(checked);
    this.#buffer(bytes);
    if (batch.bytes >= this.#options.batchBytesMax || batch.records.length >= RECORDS_MAX) batch.closed = true;
    const placement = await this.#confirmed(batch);
    for (const { code, text, records } of placement?.refused ?? []) {
      if (isAmong(records, index)) throw refusedAs(batch, new RecordsRefused(code, text, [0]));
    }
    if (placement !== undefined && isAmong(placement.returned, index)) throw this.#unroutable("the message", [0]);
    const id = formatId(checked.id ?? idPlus(batch.baseId, index));
    if (placement === undefined || placement.partition < 0) {
      return { partition: undefined, offset: undefined, id, batchCopies: placement?.copies };
    }
    const { partition, baseOffset, copies, refused } = placement;
    const before = refused.flatMap(({ records }) => indexesAmong(records, index)).length;
    return { partition, offset: baseOffset + BigInt(index - before), id, batchCopies: copies };
  }

  /** Publish records as one batch; rejects as `publish` does, and with batch.too_large.
   *
   * Where no topic takes some records, or the broker refuses some, the error has their `indexes`, and the others are
   * confirmed. With acks "none" there is no placement. */
  async publishBatch(records: readonly RecordInput[], options: BatchOptions = {}): Promise<Placement | undefined> {
    const checked = records.map((record) => this.#checked(record));
    if (checked.length === 0) throw invalid("a batch holds at least one record");
    const batch = this.#newBatch(options.partition ?? -1, this.#asksReturn(options));
    for (const record of checked) batch.add(record);
    batch.closed = true;
    this.#buffer(batch.bytes);
    const placement = await this.#confirmed(batch);
    const lost = indexesAmong(placement?.returned ?? [], records.length);
    const [first, ...others] = placement?.refused ?? [];
    if (first !== undefined) {
      const refused = [first, ...others].flatMap((each) => indexesAmong(each.records, records.length));
      const indexes = [...refused, ...lost].sort((one, other) => one - other);
      throw refusedAs(batch, new RecordsRefused(first.code, first.text, indexes));
    }
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

  /** The batch that waits and may be joined by so many bytes, or another. */
  #openBatch(mandatory: boolean, bytes: number): PendingBatch {
    const last = this.#last;
    const sinceMs = performance.now() - this.#session.options.requestTimeoutMs / JOINS_PER_TIMEOUT;
    // Or a record that is nearly too large would take those before it along.
    const isFull = last !== undefined && last.bytes + bytes > this.#options.batchBytesMax;
    if (last === undefined || last.closed || isFull || last.mandatory !== mandatory || last.sinceMs < sinceMs) {
      return this.#newBatch(-1, mandatory);
    }
    last.timer.refresh(); // Whoever joins may wait as long as whoever was first.
    return last;
  }

  #newBatch(partition: number, mandatory: boolean): PendingBatch {
    if (this.#last !== undefined) this.#last.closed = true;
    const id = baseId(this.#world.now(), this.#world.random());
    const timer = setTimeout(() => this.#overdue(batch), this.#session.options.requestTimeoutMs);
    const batch = new PendingBatch(++this.#lastSequence, partition, id, mandatory, timer);
    this.#last = batch;
    this.#laneOf(batch).waiting.push(batch);
    return batch;
  }

  #laneOf({ partition }: PendingBatch): Lane {
    const place = this.toExchange || partition < 0 ? -1 : partition;
    let lane = this.#lanes.get(place);
    if (lane === undefined) {
      const { idempotent, acks } = this.#options;
      const numbers = idempotent && acks !== "none";
      lane = new Lane(place, numbers ? () => this.#identity(place < 0) : undefined);
      this.#lanes.set(place, lane);
    }
    return lane;
  }

  #identity(scattered: boolean): Identity {
    const identity = this.#identities.get(scattered) ?? this.#session.producerIds.identify(this);
    this.#identities.set(scattered, identity);
    return identity;
  }

  #buffer(bytes: number): void {
    this.#bufferedBytes += bytes;
    this.#session.users.add(this);
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
    for (let lane = this.#nextLane(); lane !== undefined; lane = this.#nextLane()) {
      const connection = this.#chosen();
      if (connection === undefined) {
        this.#session.want();
        return;
      }
      const batch = lane.waiting[0]!;
      // One that is open waits for more messages, as long as others are on their way.
      const most = batch.closed ? this.#options.inFlightMax : 1;
      if (this.#inFlight >= most) return;
      if (!connection.ready) {
        this.#listen(connection);
        return;
      }
      batch.closed = true;
      this.#send(connection, lane, batch);
    }
  }

  /** The connection for the next batch; undefined: there is none, or it has to wait for an answer. */
  #chosen(): Connection | undefined {
    const chosen = this.#leader?.connection() ?? this.#session.connection;
    if (this.#leader?.isAwaited) return undefined;
    if (chosen === this.#at) return chosen;
    if (this.#inFlight > 0) return undefined;
    // Nothing tells when batches without acks have arrived, and so later ones stay behind them.
    if (this.#options.acks === "none" && this.#at?.isEnding === false) return this.#at;
    this.#at = chosen;
    return chosen;
  }

  /** The lane whose first batch is the oldest of those that may be sent now. */
  #nextLane(): Lane | undefined {
    let next: Lane | undefined;
    let oldest = Infinity;
    for (const lane of this.#lanes.values()) {
      const { sequence = Infinity } = lane.first ?? {};
      if (sequence < oldest) [next, oldest] = [lane, sequence];
    }
    return next;
  }

  get #inFlight(): number {
    let count = 0;
    for (const lane of this.#lanes.values()) count += lane.inFlight.size;
    return count;
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
    this.#pump();
  }

  /** Fail everything that waits, because there is no broker to send it to. */
  gaveUp(error: LinnError): void {
    for (const lane of this.#lanes.values()) {
      for (const batch of lane.waiting.splice(0)) this.#fail(lane, batch, mayBeStored(batch, error));
      this.#goOn(lane);
    }
  }

  #send(connection: Connection, lane: Lane, batch: PendingBatch): void {
    let numbers: Numbers | undefined;
    let bytes: Buffer;
    try {
      numbers = lane.numbersOf(batch);
      bytes = this.#built(connection, batch, numbers);
    } catch (error) {
      if (!(error instanceof LinnError)) throw error;
      this.#fail(lane, batch, error);
      return;
    }
    const { acks } = this.#options;
    const { partition, mandatory } = batch;
    const content = { target: this.target, toExchange: this.toExchange, acks: ACKS[acks], partition, mandatory };
    if (acks === "none") {
      connection.tell({ member: "publish", content }, [bytes]);
      lane.leaveOut(batch);
      this.#settle(batch, undefined);
      return;
    }
    lane.sent(batch, numbers);
    const caller: Caller = {
      answered: (message) => this.#answered(lane, batch, message),
      failed: (error) => this.#failed(lane, batch, error),
    };
    const correlation = connection.ask(caller, { member: "publish", content }, [bytes]);
    batch.forget = () => connection.forget(correlation);
  }

  #answered(lane: Lane, batch: PendingBatch, message: Message): void {
    const placement = message.member === "published" ? message.content.placements[0] : undefined;
    if (placement === undefined) {
      this.#fail(lane, batch, protocolError(`the broker answered publish with ${message.member}`));
    } else {
      lane.inFlight.delete(batch);
      batch.unanswered -= 1;
      this.#leader?.confirmed(placement.leaderEpoch);
      this.#settle(batch, placement);
    }
    this.#goOn(lane);
  }

  /** The broker refused, or the connection was lost. */
  #failed(lane: Lane, batch: PendingBatch, error: LinnError): void {
    // A batch behind a refused one is refused with it, as often as that takes.
    const isUsedUp = this.#session.isUsedUp(batch.attempts) && !isOutOfOrder(error);
    const isLost = error.code === "connection.lost";
    if (!isLost && error.code !== "client.closed") batch.unanswered -= 1;
    if (error.code === "partition.not_leader") this.#leader?.refused();
    if (error.retriable && !isUsedUp) lane.putBack(batch, error);
    else this.#fail(lane, batch, isLost ? mayBeStored(batch, error) : refusedAs(batch, error));
    this.#goOn(lane);
  }

  #goOn(lane: Lane): void {
    lane.goOn(
      (attempt) => this.#session.backoffMs(attempt),
      () => this.#pump(),
    );
    this.#pumpSoon();
  }

  /** Fail what was not confirmed in time. */
  #overdue(batch: PendingBatch): void {
    const lane = this.#laneOf(batch);
    batch.forget?.();
    this.#fail(lane, batch, this.#lateness(batch));
    this.#goOn(lane);
  }

  /** A refusal only if the batch was refused whenever it was sent. */
  #lateness({ unanswered, refusal }: PendingBatch): LinnError {
    if (unanswered === 0 && refusal !== undefined && !isOutOfOrder(refusal)) return refusal;
    const within = `within ${this.#session.options.requestTimeoutMs} ms`;
    const why = this.#session.outage?.error.message ?? "those before it were not confirmed";
    const text = unanswered
      ? `${this.target} did not confirm a batch ${within}; it may or may not be stored`
      : `a batch for ${this.target} was not sent ${within}: ${why}`;
    return new LinnError("request.timeout", text);
  }

  #built(connection: Connection, batch: PendingBatch, numbers: Numbers | undefined): Buffer {
    const bytes = buildBatch(batch.records, {
      baseId: batch.baseId,
      zstd: this.#options.compresses ? connection.compress : undefined,
      keyHashes: batch.partition < 0,
      numbers,
    });
    const most = connection.welcome.batchBytesMax;
    if (bytes.length > most)
      throw new LinnError("batch.too_large", `a batch of ${bytes.length} bytes, more than ${most}`);
    return bytes;
  }

  /** Fail a batch that is not sent again. */
  #fail(lane: Lane, batch: PendingBatch, error: LinnError): void {
    lane.leaveOut(batch);
    this.#settle(batch, error);
  }

  #settle(batch: PendingBatch, outcome: Placement | LinnError | undefined): void {
    clearTimeout(batch.timer);
    if (this.#last === batch) this.#last = undefined;
    this.#bufferedBytes -= batch.bytes;
    if (this.#bufferedBytes === 0) this.#session.users.delete(this);
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
    const lanes = [...this.#lanes.values()];
    const batches = lanes.flatMap(({ inFlight, waiting }) => [...inFlight, ...waiting]);
    await Promise.allSettled(batches.map((batch) => batch.confirmed));
  }

  /** Flush, and take no more. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.flush();
    for (const identity of this.#identities.values()) this.#session.producerIds.giveBack(identity);
    this.#identities.clear();
  }
}

/** What a batch fails with that is not sent again because of `error`. */
function mayBeStored({ unanswered }: PendingBatch, error: LinnError): LinnError {
  if (unanswered === 0 || error.code === "client.closed") return error;
  return connectionLost(`${error.message}; the batch was sent, and may or may not be stored`);
}

/** What a batch, or records of it, fail with that the broker refuses: what was sent before may be stored all the same. */
function refusedAs({ unanswered }: PendingBatch, error: LinnError): LinnError {
  if (unanswered === 0 || error.code === "client.closed") return error;
  const text = "it was sent before the connection was lost, and may or may not be stored; sent again, it failed";
  return connectionLost(`${text}: ${error.message}`);
}
