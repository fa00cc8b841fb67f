// Lane: a producer's batches for one partition, or all those whose partitions the broker chooses, and their numbers.
//
// Laws: the batches of a lane are sent in order. What the broker refuses for now is sent again before anything newer:
// the lane stands still until all that is in flight has been answered. Batches are numbered when they are first sent,
// and keep their numbers when they are sent again, so that the broker stores each once. A new epoch begins only while
// nothing of the lane is in flight.

import type { Numbers } from "./batch-builder.js";
import type { LinnError } from "./errors.js";
import type { PendingBatch } from "./pending-batch.js";
import type { Identity } from "./producer-ids.js";

const SEQUENCE_END = 2 ** 32;
const OUT_OF_ORDER = "producer.out_of_order";

export class Lane {
  /** In the order of their sequence. */
  readonly waiting: PendingBatch[] = [];
  readonly inFlight = new Set<PendingBatch>();
  /** Whether it stands still. */
  isHeld = false;
  #timer: NodeJS.Timeout | undefined;
  #identity: Identity | undefined;
  /** The numbers of the next batch; undefined: it begins an epoch. */
  #next: Numbers | undefined;

  constructor(
    /** -1: the broker chooses. */
    readonly partition: number,
    /** Gives the identity with which it numbers its batches; undefined: they have no numbers. Throws limit.exceeded. */
    readonly identify: (() => Identity) | undefined,
  ) {}

  /** The batch that may be sent now. */
  get first(): PendingBatch | undefined {
    const batch = this.waiting[0];
    if (batch === undefined || this.isHeld) return undefined;
    return this.inFlight.size > 0 && this.#beginsEpoch(batch) ? undefined : batch;
  }

  // --- numbers ---

  #beginsEpoch(batch: PendingBatch): boolean {
    if (this.identify === undefined || batch.numbers !== undefined) return false;
    if (this.#next === undefined || this.#identity?.hasLost(this.#next.producerId)) return true;
    return this.#next.firstSequence + batch.records.length > SEQUENCE_END;
  }

  /** The numbers with which the first batch is to be sent. Throws limit.exceeded. */
  numbersOf(batch: PendingBatch): Numbers | undefined {
    if (this.identify === undefined || batch.numbers !== undefined) return batch.numbers;
    if (this.#beginsEpoch(batch)) {
      if (this.#identity === undefined) this.#identity = this.identify();
      else this.#identity.nextEpoch();
      const { producerId, epoch } = this.#identity;
      this.#next = { producerId, epoch, firstSequence: 0, scattered: this.partition < 0 };
    }
    return this.#next;
  }

  // --- what becomes of a batch ---

  /** The first batch was sent with these numbers. */
  sent(batch: PendingBatch, numbers: Numbers | undefined): void {
    this.waiting.shift();
    this.inFlight.add(batch);
    batch.attempts += 1;
    batch.unanswered += 1;
    if (numbers === undefined || batch.numbers !== undefined) return;
    batch.numbers = numbers;
    this.#next = { ...numbers, firstSequence: numbers.firstSequence + batch.records.length };
  }

  /** A batch is to be sent again: the broker refused it for now, or the connection was lost. */
  putBack(batch: PendingBatch, error: LinnError): void {
    this.inFlight.delete(batch);
    batch.refusal = error;
    const later = this.waiting.findIndex(({ sequence }) => sequence > batch.sequence);
    this.waiting.splice(later < 0 ? this.waiting.length : later, 0, batch);
    if (error.code !== "connection.lost") this.isHeld = true;
  }

  /** A batch is not sent again, though it may not be stored: no other can follow its numbers. */
  leaveOut(batch: PendingBatch): void {
    const place = this.waiting.indexOf(batch);
    if (place >= 0) this.waiting.splice(place, 1);
    this.inFlight.delete(batch);
    if (batch.numbers !== undefined) this.#next = undefined;
  }

  /** Let a lane that stands still go on, once all in flight is answered: if the broker refused its first batch, after
   * `backoffMs`, and `then` is called; at once if that batch was refused only because one before it had been. */
  goOn(backoffMs: (attempt: number) => number, then: () => void): void {
    if (!this.isHeld || this.inFlight.size > 0) return;
    const first = this.waiting[0];
    if (first?.refusal === undefined || isOutOfOrder(first.refusal)) {
      this.#release();
      return;
    }
    const goOn = (): void => {
      this.#release();
      then();
    };
    // Its batches have timers that keep the process running.
    this.#timer ??= setTimeout(goOn, backoffMs(first.attempts - 1)).unref();
  }

  #release(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.isHeld = false;
    const { refusal } = this.waiting[0] ?? {};
    if (refusal === undefined || !isOutOfOrder(refusal)) return;
    // The batch before it was left out. Neither it nor any behind it is stored: they are numbered anew.
    this.#next = undefined;
    for (const batch of this.waiting) batch.numbers = batch.refusal = undefined;
  }
}

/** Whether the broker refused a batch because it lacks one before it. */
export function isOutOfOrder(error: LinnError): boolean {
  return error.code === OUT_OF_ORDER;
}
