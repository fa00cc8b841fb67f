// Producer: publishes to one topic or one exchange. Messages that come while a batch is on its way share the next one.
//
// Laws: batches go out in the order of the calls; each message is confirmed or failed exactly once. After the connection
// was lost, all batches that were not answered are sent again in that order (the broker may have stored some already:
// then they are there twice). What the broker refuses is not sent again: the error says whether trying again makes
// sense. What is not confirmed when the request timeout is over, counted from when its first message was taken, fails.

import { buildBatch, checkRecord, recordBytes, type CheckedRecord } from "./batch-builder.js";
import type { Message } from "./codec.js";
import { again, clientClosed, connectionLost, invalid, LinnError, protocolError, Unroutable } from "./errors.js";
import type { Caller, Link } from "./link.js";
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

/** Records that go as one batch. */
class Shipment {
  readonly records: CheckedRecord[] = [];
  bytes = 0;
  /** No more records are added. */
  closed = false;
  /** How often it was sent. */
  attempts = 0;
  /** Fails it when its time is over. */
  timer: NodeJS.Timeout | undefined;
  /** Do not listen to the answer any more. */
  forget: (() => void) | undefined;
  readonly confirmed: Promise<Placement | undefined>;
  confirm!: (placement: Placement | undefined) => void;
  fail!: (error: LinnError) => void;

  constructor(
    readonly sequence: number,
    readonly partition: number,
    readonly baseId: bigint,
    readonly mandatory: boolean,
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
  readonly #waiting: Shipment[] = [];
  readonly #inFlight = new Set<Shipment>();
  #lastSequence = 0;
  #bufferedBytes = 0;
  #pumps = false;
  #listensTo: Link | undefined;
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
    if (!(acks in ACKS)) throw invalid(`acks is "none", "leader" or "all", not ${JSON.stringify(acks)}`);
    if (!(batchBytesMax > 0 && inFlightMax > 0 && bufferBytesMax > 0))
      throw invalid("a producer's limits are positive");
    if (options.codec === "zstd" && world.session.compress === undefined) noZstd();
    this.#world = world;
    this.#session = world.session;
    this.#session.users.add(this);
    this.#options = { acks, batchBytesMax, inFlightMax, bufferBytesMax, compresses: options.codec === "zstd" };
  }

  // --- publishing ---

  /** Publish one message, and wait for what `acks` asks for.
   *
   * Rejects with message.invalid, message.too_large, limit.exceeded (nothing was sent); exchange.unroutable (it was
   * mandatory, and no topic takes it); request.timeout, connection.lost (the text says whether it was never sent, or may
   * be stored); or what the broker refused it with. */
  async publish(record: RecordInput, options: PublishOptions = {}): Promise<Receipt> {
    const checked = this.#checked(record);
    const shipment = this.#openShipment(this.#asksReturn(options));
    const index = shipment.add(checked);
    this.#buffer(recordBytes(checked));
    if (shipment.bytes >= this.#options.batchBytesMax || shipment.records.length >= RECORDS_MAX) shipment.closed = true;
    const placement = await this.#confirmed(shipment);
    if (placement !== undefined && isReturned(placement.returned, index)) throw this.#unroutable("the message", [0]);
    const id = formatId(checked.id ?? idPlus(shipment.baseId, index));
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
    const shipment = this.#newShipment(options.partition ?? -1, this.#asksReturn(options));
    for (const record of checked) shipment.add(record);
    shipment.closed = true;
    this.#buffer(shipment.bytes);
    const placement = await this.#confirmed(shipment);
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

  #openShipment(mandatory: boolean): Shipment {
    const last = this.#waiting.at(-1);
    const fits = last !== undefined && !last.closed && last.mandatory === mandatory;
    return fits ? last : this.#newShipment(-1, mandatory);
  }

  #newShipment(partition: number, mandatory: boolean): Shipment {
    const before = this.#waiting.at(-1);
    if (before !== undefined) before.closed = true;
    const id = baseId(this.#world.now(), this.#world.random());
    const shipment = new Shipment(++this.#lastSequence, partition, id, mandatory);
    shipment.timer = setTimeout(() => this.#overdue(shipment), this.#session.options.requestTimeoutMs);
    this.#waiting.push(shipment);
    return shipment;
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

  async #confirmed(shipment: Shipment): Promise<Placement | undefined> {
    try {
      return await shipment.confirmed;
    } catch (error) {
      throw again(error as LinnError);
    }
  }

  // --- sending ---

  #pump(): void {
    for (let shipment = this.#waiting[0]; shipment !== undefined; shipment = this.#waiting[0]) {
      const { link } = this.#session;
      if (link === undefined) {
        this.#session.want();
        return;
      }
      // One that is open waits for company, as long as others are on their way.
      const most = shipment.closed ? this.#options.inFlightMax : 1;
      if (this.#inFlight.size >= most) return;
      if (!link.ready) {
        this.#listen(link);
        return;
      }
      this.#waiting.shift();
      shipment.closed = true;
      this.#ship(link, shipment);
    }
  }

  #listen(link: Link): void {
    if (this.#listensTo === link) return;
    this.#listensTo = link;
    link.whenReady(() => {
      this.#listensTo = undefined;
      this.#pump();
    });
  }

  linkUp(): void {
    this.#pump();
  }

  /** Fail everything that waits, because there is no broker to send it to. */
  gaveUp(error: LinnError): void {
    for (const shipment of this.#waiting.splice(0)) this.#settle(shipment, mayBeStored(shipment, error));
  }

  #ship(link: Link, shipment: Shipment): void {
    let bytes: Buffer;
    try {
      bytes = this.#built(link, shipment);
    } catch (error) {
      if (!(error instanceof LinnError)) throw error;
      this.#settle(shipment, error);
      return;
    }
    const { acks } = this.#options;
    const { partition, mandatory } = shipment;
    const content = { target: this.target, toExchange: this.toExchange, acks: ACKS[acks], partition, mandatory };
    if (acks === "none") {
      link.tell({ member: "publish", content }, [bytes]);
      this.#settle(shipment, undefined);
      return;
    }
    shipment.attempts += 1;
    this.#inFlight.add(shipment);
    const caller: Caller = {
      answered: (message) => this.#answered(shipment, message),
      failed: (error) => this.#failed(shipment, error),
    };
    const correlation = link.ask(caller, { member: "publish", content }, [bytes]);
    shipment.forget = () => link.forget(correlation);
  }

  #answered(shipment: Shipment, message: Message): void {
    const placement = message.member === "published" ? message.content.placements[0] : undefined;
    this.#settle(shipment, placement ?? protocolError(`the broker answered publish with ${message.member}`));
    this.#pumpSoon();
  }

  /** The broker refused, or the connection was lost. */
  #failed(shipment: Shipment, error: LinnError): void {
    // A broker that is stopping has stored nothing; the next one, or the same, is asked.
    const isGone = error.code === "connection.lost" || error.code === "broker.stopping";
    if (isGone && !this.#session.isUsedUp(shipment.attempts)) this.#putBack(shipment);
    else this.#settle(shipment, error.code === "connection.lost" ? mayBeStored(shipment, error) : error);
    this.#pumpSoon();
  }

  #putBack(shipment: Shipment): void {
    this.#inFlight.delete(shipment);
    const later = this.#waiting.findIndex(({ sequence }) => sequence > shipment.sequence);
    this.#waiting.splice(later < 0 ? this.#waiting.length : later, 0, shipment);
  }

  /** Fail what was not confirmed in time. */
  #overdue(shipment: Shipment): void {
    const within = `within ${this.#session.options.requestTimeoutMs} ms`;
    const why = this.#session.outage?.error.message ?? "those before it were not confirmed";
    const text = shipment.attempts
      ? `${this.target} did not confirm a batch ${within}; it may or may not be stored`
      : `a batch for ${this.target} was not sent ${within}: ${why}`;
    const index = this.#waiting.indexOf(shipment);
    if (index >= 0) this.#waiting.splice(index, 1);
    else shipment.forget?.();
    this.#settle(shipment, new LinnError("request.timeout", text));
    this.#pumpSoon();
  }

  #built(link: Link, shipment: Shipment): Buffer {
    const bytes = buildBatch(shipment.records, {
      baseId: shipment.baseId,
      zstd: this.#options.compresses ? link.compress : undefined,
      keyHashes: shipment.partition < 0,
    });
    const most = link.welcome.batchBytesMax;
    if (bytes.length > most)
      throw new LinnError("batch.too_large", `a batch of ${bytes.length} bytes, more than ${most}`);
    return bytes;
  }

  #settle(shipment: Shipment, outcome: Placement | LinnError | undefined): void {
    clearTimeout(shipment.timer);
    this.#inFlight.delete(shipment);
    this.#bufferedBytes -= shipment.bytes;
    if (outcome instanceof LinnError) shipment.fail(outcome);
    else shipment.confirm(outcome);
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
    await Promise.allSettled([...this.#inFlight, ...this.#waiting].map((shipment) => shipment.confirmed));
  }

  /** Flush, and take no more. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.flush();
    this.#session.users.delete(this);
  }
}

/** What a batch fails with that is not sent again because of `error`. */
function mayBeStored({ attempts }: Shipment, error: LinnError): LinnError {
  if (attempts === 0 || error.code === "client.closed") return error;
  return connectionLost(`${error.message}; the batch was sent, and may or may not be stored`);
}
