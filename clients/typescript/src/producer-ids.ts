// The producer ids of a client: those that its first connection was given, which no other client ever gets.

import { LinnError } from "./errors.js";

/** Ids that a broker gives to a connection. */
const IDS_PER_CLIENT = 256;
const EPOCH_MAX = 0xffff;

export class ProducerIds {
  #next: bigint;
  readonly #end: bigint;
  readonly #returned: [producerId: bigint, epoch: number][] = [];
  /** Returns the ids of producers that were dropped without being closed. */
  readonly #dropped = new FinalizationRegistry<Identity>((identity) => this.giveBack(identity));

  /** `first`: the welcome's producerId. */
  constructor(first: bigint) {
    this.#next = first;
    this.#end = first + BigInt(IDS_PER_CLIENT);
  }

  /** An identity for a producer, which gives it back or is garbage-collected. Throws limit.exceeded. */
  identify(owner: object): Identity {
    const identity = new Identity(this);
    this.#dropped.register(owner, identity, identity);
    return identity;
  }

  /** An id, and the first epoch in which it can be used. Throws limit.exceeded. */
  take(): [producerId: bigint, epoch: number] {
    if (this.#next < this.#end) return [this.#next++, 0];
    const returned = this.#returned.shift();
    if (returned !== undefined) return returned;
    throw new LinnError(
      "limit.exceeded",
      `a client has at most ${IDS_PER_CLIENT} producer ids: close a producer, or make this one with idempotent: false`,
    );
  }

  /** Return an identity that is not used any more. */
  giveBack(identity: Identity): void {
    this.#dropped.unregister(identity);
    if (identity.epoch < EPOCH_MAX) this.#returned.push([identity.producerId, identity.epoch + 1]);
  }
}

/** A producer's id, and the latest epoch of its lanes. */
export class Identity {
  producerId: bigint;
  epoch: number;
  readonly #ids: ProducerIds;

  constructor(ids: ProducerIds) {
    this.#ids = ids;
    [this.producerId, this.epoch] = ids.take();
  }

  /** Begin an epoch later than all before, or with another id. Throws limit.exceeded. */
  nextEpoch(): void {
    if (this.epoch < EPOCH_MAX) this.epoch += 1;
    else [this.producerId, this.epoch] = this.#ids.take();
  }
}
