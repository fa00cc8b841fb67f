// Settling: what a consumer said of some records, until the broker has answered.
//
// Law: each settlement is carried out, or its refusal is thrown to whoever awaits it, or else by the consumer's next
// step.

import { again, type LinnError } from "./errors.js";
import type { Delivery } from "./message.js";
import type { Struct } from "./struct.js";

/** `first` and `end` of a settlement of all that is left of a lease. */
const WHOLE_LEASE = -1n;
export const VERDICTS = ["ack", "nack", "reject", "extend", "release"] as const;
export type Verdict = (typeof VERDICTS)[number];
/** Await it for the broker's word, or let it be: it is sent all the same, and a refusal comes with the consumer's
 * next step. */
export type Settled = PromiseLike<void>;

/** A range of records and what is to become of it. */
export class Settling implements PromiseLike<void> {
  /** Whether somebody hears of a refusal. */
  awaited = false;
  readonly done: Promise<LinnError | undefined>;
  #finish!: (error: LinnError | undefined) => void;

  constructor(
    readonly delivery: Delivery,
    readonly first: bigint,
    readonly end: bigint,
    readonly verdict: Verdict,
    readonly ms: number,
    readonly send: () => void,
    readonly reason = "",
  ) {
    this.done = new Promise((resolve) => (this.#finish = resolve));
  }

  then<A = void, B = never>(
    fulfilled?: ((nothing: void) => A | PromiseLike<A>) | null,
    rejected?: ((error: unknown) => B | PromiseLike<B>) | null,
  ): PromiseLike<A | B> {
    this.awaited = true;
    // Behind this turn, so that what else is settled in it goes along.
    queueMicrotask(this.send);
    const outcome = this.done.then((error) => {
      if (error !== undefined) throw again(error);
    });
    return outcome.then(fulfilled, rejected);
  }

  /** The broker has answered, or can't any more. */
  finish(error: LinnError | undefined): void {
    this.#finish(error);
  }

  /** Whether `later` may be said in one breath with it. */
  joins(later: Settling): boolean {
    return (
      this.delivery.partition === later.delivery.partition &&
      this.delivery.deliveryId === later.delivery.deliveryId &&
      this.verdict === later.verdict &&
      this.ms === later.ms &&
      this.reason === later.reason &&
      this.end === later.first
    );
  }
}

/** The entries of one settle, each with those who hear of its refusal. One that is about all of a lease names no
 * offsets: it settles what is left, if some records were settled before. */
export function merged(
  settlings: readonly Settling[],
  isWholeLease: (delivery: Delivery, first: bigint, end: bigint) => boolean,
): { entry: Struct<"Settlement">; settlings: Settling[] }[] {
  const entries: { entry: Struct<"Settlement">; settlings: Settling[] }[] = [];
  for (const settling of settlings) {
    const last = entries.at(-1);
    if (last?.settlings.at(-1)?.joins(settling)) {
      last.entry.end = settling.end;
      last.settlings.push(settling);
    } else {
      entries.push({ entry: entryOf(settling), settlings: [settling] });
    }
  }
  for (const { entry, settlings } of entries) {
    if (isWholeLease(settlings[0]!.delivery, entry.first, entry.end)) entry.first = entry.end = WHOLE_LEASE;
  }
  return entries;
}

/** Have entries name their reasons, and return these. */
export function withReasons(entries: { entry: Struct<"Settlement">; settlings: Settling[] }[]): string[] {
  const reasons: string[] = [];
  for (const { entry, settlings } of entries) {
    const reason = settlings[0]!.reason;
    if (reason === "") continue;
    if (reasons.at(-1) !== reason) reasons.push(reason);
    entry.reason = reasons.length;
  }
  return reasons;
}

function entryOf(settling: Settling): Struct<"Settlement"> {
  const { delivery, first, end, verdict, ms } = settling;
  const { partition, deliveryId } = delivery;
  return { partition, deliveryId, first, end, verdict: VERDICTS.indexOf(verdict), ms, reason: 0 };
}
