// PendingBatch: records that a producer sends as one batch, until they are confirmed or have failed.

import { recordBytes, type CheckedRecord, type Numbers } from "./batch-builder.js";
import type { LinnError } from "./errors.js";

/** Where a batch was put. */
export interface Placement {
  /** -1: several partitions, or none. */
  readonly partition: number;
  /** Of the first record that was not refused; -1n where `partition` is -1. */
  readonly baseOffset: bigint;
  /** Records stored, in all topics together; 0: no binding took any. */
  readonly copies: number;
  /** With `mandatory`, the records that no topic took, as ranges of their indexes: first, end (exclusive), ... */
  readonly returned: readonly number[];
  /** Records that the broker refused, in ranges like `returned`; offsets count on without them. `publish` and
   * `publishBatch` reject where there are any. */
  readonly refused: readonly RefusedRecords[];
}

/** Records that were refused for one reason. */
export interface RefusedRecords {
  readonly code: string;
  readonly text: string;
  readonly records: readonly number[];
}

export class PendingBatch {
  readonly records: CheckedRecord[] = [];
  bytes = 0;
  /** No more records are added. */
  closed = false;
  /** How often it was sent. */
  attempts = 0;
  /** How often of those without an answer, so that it may be stored. */
  unanswered = 0;
  /** Set when it is first sent, if its lane gives numbers. */
  numbers: Numbers | undefined;
  /** Why it was not confirmed when it was last sent. */
  refusal: LinnError | undefined;
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
