// Producer: publishes to one topic or one exchange. Messages that come while a batch is on its way share the next one.
//
// Laws: batches go out in the order of the calls; each message is confirmed or failed exactly once; what is refused
// is not sent again: the error says whether trying again makes sense.

import { buildBatch, checkRecord, recordBytes, type CheckedRecord } from "./batch-builder.js";
import type { Message } from "./codec.js";
import { again, clientClosed, invalid, LinnError, protocolError, Unroutable } from "./errors.js";
import type { Caller, Link } from "./link.js";
import type { RecordInput } from "./record.js";
import { indexesReturned, isReturned } from "./returned.js";
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
  readonly link: Link;
  readonly requestTimeoutMs: number;
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
  readonly confirmed: Promise<Placement | undefined>;
  confirm!: (placement: Placement | undefined) => void;
  fail!: (error: LinnError) => void;

  constructor(
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
export class Producer {
  readonly #world: World;
  readonly #options: Required<Omit<ProducerOptions, "codec">> & { compresses: boolean };
  readonly #waiting: Shipment[] = [];
  readonly #inFlight = new Set<Shipment>();
  #bufferedBytes = 0;
  #pumps = false;
  #listens = false;
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
    if (options.codec === "zstd" && world.link.compress === undefined) noZstd();
    this.#world = world;
    this.#options = { acks, batchBytesMax, inFlightMax, bufferBytesMax, compresses: options.codec === "zstd" };
  }

  // --- publishing ---

  /** Publish one message, and wait for what `acks` asks for.
   *
   * Rejects with message.invalid, message.too_large, limit.exceeded (nothing was sent); exchange.unroutable (it was
   * mandatory, and no topic takes it); request.timeout, connection.lost (it may or may not be stored); or what the
   * broker refused it with. */
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
    const checked = checkRecord(record, this.#world.now());
    const most = this.#world.link.welcome.messageBytesMax;
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
    const shipment = new Shipment(partition, baseId(this.#world.now(), this.#world.random()), mandatory);
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
      const { link } = this.#world;
      // One that is open waits for company, as long as others are on their way.
      const most = shipment.closed ? this.#options.inFlightMax : 1;
      if (this.#inFlight.size >= most && link.error === undefined) return;
      if (!link.ready && link.error === undefined) {
        this.#listen(link);
        return;
      }
      this.#waiting.shift();
      shipment.closed = true;
      this.#ship(link, shipment);
    }
  }

  #listen(link: Link): void {
    if (this.#listens) return;
    this.#listens = true;
    link.whenReady(() => {
      this.#listens = false;
      this.#pump();
    });
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
      this.#settle(shipment, link.error);
      return;
    }
    this.#inFlight.add(shipment);
    const caller = new Shipping(shipment, (outcome) => {
      clearTimeout(timer);
      this.#settle(shipment, outcome);
      this.#pumpSoon();
    });
    const timer = setTimeout(() => {
      link.forget(correlation);
      const text = `publish: no answer from ${link.peer} within ${this.#world.requestTimeoutMs} ms`;
      caller.failed(new LinnError("request.timeout", text));
    }, this.#world.requestTimeoutMs);
    const correlation = link.ask(caller, { member: "publish", content }, [bytes]);
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
  }
}

/** The caller of one publish. */
class Shipping implements Caller {
  #ended = false;

  constructor(
    readonly shipment: Shipment,
    readonly end: (outcome: Placement | LinnError) => void,
  ) {}

  answered(message: Message): void {
    const placement = message.member === "published" ? message.content.placements[0] : undefined;
    this.#end(placement ?? protocolError(`the broker answered publish with ${message.member}`));
  }

  failed(error: LinnError): void {
    this.#end(error);
  }

  #end(outcome: Placement | LinnError): void {
    if (this.#ended) return;
    this.#ended = true;
    this.end(outcome);
  }
}
