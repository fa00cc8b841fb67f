// What a consumer reads: batches, and messages that are read out of them when they are asked for.

import type { RecordBatch } from "./batch.js";
import { LinnError } from "./errors.js";
import type { Headers, LabelValue } from "./record.js";
import type { Settled, Verdict } from "./settling.js";

/** Records that came together, under one lease or under none. */
export interface Delivery {
  readonly partition: number;
  /** Of the lease; 0n where there is none. */
  readonly deliveryId: bigint;
  /** 1 the first time; 0 where attempts are not counted. */
  readonly attempt: number;
}

/** Settles ranges of offsets: a subscription. */
export interface Settler {
  settle(delivery: Delivery, first: bigint, end: bigint, verdict: Verdict, ms: number, reason?: string): Settled;
}

/** Records of one partition, in their order. */
export class Batch implements Iterable<Message> {
  constructor(
    readonly topic: string,
    readonly delivery: Delivery,
    /** The batch as the producer made it, column by column. */
    readonly records: RecordBatch,
    /** Index of the first record that belongs here. */
    readonly first: number,
    readonly settler: Settler | undefined,
  ) {}

  get partition(): number {
    return this.delivery.partition;
  }

  /** Number of messages. */
  get length(): number {
    return this.records.count - this.first;
  }

  get startOffset(): bigint {
    return this.records.offset(this.first);
  }

  /** The offset behind the last message and the gap that may follow it: the one to read on from. */
  get endOffset(): bigint {
    return this.records.endOffset;
  }

  *[Symbol.iterator](): Generator<Message> {
    for (let index = this.first; index < this.records.count; index++) yield new Message(this, index);
  }

  /** All messages are done with; on a stream, the group's place is behind them. */
  ack(): Settled {
    return this.settle(this.startOffset, this.endOffset, "ack", 0);
  }

  /** All messages are to be delivered again; on a stream, the group reads on from the first. `reason` is for people: a
   * dead letter has the last one, cut to 255 bytes. */
  nack(delayMs = 0, reason = ""): Settled {
    return this.settle(this.startOffset, this.endOffset, "nack", delayMs, reason);
  }

  /** No message can be dealt with: to the dead-letter topic with them, and with the reason. */
  reject(reason = ""): Settled {
    return this.settle(this.startOffset, this.endOffset, "reject", 0, reason);
  }

  /** The lease lasts `leaseMs` from now. */
  extend(leaseMs: number): Settled {
    return this.settle(this.startOffset, this.endOffset, "extend", leaseMs);
  }

  /** Settle a range of offsets. Throws delivery.wrong_kind where the records were fetched. */
  settle(first: bigint, end: bigint, verdict: Verdict, ms: number, reason = ""): Settled {
    if (this.settler === undefined) {
      throw new LinnError("delivery.wrong_kind", "fetched records can't be settled: no consumer received them");
    }
    return this.settler.settle(this.delivery, first, end, verdict, ms, reason);
  }
}

/** One record. Its properties are read when they are asked for; values, keys and headers are views of the batch's
 * bytes. */
export class Message {
  constructor(
    readonly batch: Batch,
    /** In the batch. */
    readonly index: number,
  ) {}

  /** The content; null: a tombstone. */
  get value(): Uint8Array | null {
    return this.batch.records.value(this.index);
  }

  get key(): Uint8Array | null {
    return this.batch.records.key(this.index);
  }

  get routingKey(): string {
    return this.batch.records.routingKey(this.index);
  }

  /** Integers are bigint, floats number. */
  get labels(): Record<string, LabelValue> {
    return this.batch.records.labels(this.index);
  }

  /** In order; names may repeat. Throws batch.malformed where a name is not UTF-8. */
  get headers(): Headers {
    return this.batch.records.headers(this.index);
  }

  /** A UUID, the same in every topic. */
  get id(): string {
    return this.batch.records.id(this.index);
  }

  /** When it was made, ms since 1970. */
  get timestampMs(): bigint {
    return this.batch.records.timestampMs(this.index);
  }

  get priority(): number {
    return this.batch.records.priority(this.index);
  }

  get delayMs(): number {
    return this.batch.records.delayMs(this.index);
  }

  get ttlMs(): number {
    return this.batch.records.ttlMs(this.index);
  }

  get topic(): string {
    return this.batch.topic;
  }

  get partition(): number {
    return this.batch.partition;
  }

  /** Its place in the partition. */
  get offset(): bigint {
    return this.batch.records.offset(this.index);
  }

  /** 1 the first time; 0 where attempts are not counted. */
  get attempt(): number {
    return this.batch.delivery.attempt;
  }

  /** It is done with; on a stream, the group's place is behind it. */
  ack(): Settled {
    return this.#settle("ack", 0);
  }

  /** It is to be delivered again; after `delayMs`, or as the topic says where that is 0. */
  nack(delayMs = 0, reason = ""): Settled {
    return this.#settle("nack", delayMs, reason);
  }

  /** It can't be dealt with: to the dead-letter topic with it. */
  reject(reason = ""): Settled {
    return this.#settle("reject", 0, reason);
  }

  /** Its lease lasts `leaseMs` from now. */
  extend(leaseMs: number): Settled {
    return this.#settle("extend", leaseMs);
  }

  #settle(verdict: Verdict, ms: number, reason = ""): Settled {
    return this.batch.settle(this.offset, this.batch.records.offset(this.index + 1), verdict, ms, reason);
  }
}
