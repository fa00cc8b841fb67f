// The producer ids of a client: those that its first connection was given, which no other client ever gets. Later
// connections show the key that came with them, and use them as well.

import { LinnError } from "./errors.js";

/** Ids that a broker gives to a connection. */
const IDS_PER_CLIENT = 256;
const EPOCH_MAX = 0xffff;

export class ProducerIds {
  /** The first of them, and the secret that proves whose they are. */
  first = 0n;
  key = 0n;
  #next = 0n;
  readonly #returned: [producerId: bigint, epoch: number][] = [];
  /** Returns the ids of producers that were dropped without being closed. */
  readonly #dropped = new FinalizationRegistry<Identity>((identity) => this.giveBack(identity));

  /** `first` and `key`: the welcome's producerId and producerKey. */
  constructor(first: bigint, key: bigint) {
    this.replace(first, key);
  }

  /** Give up the ids, which the broker does not know, for those of another welcome. */
  replace(first: bigint, key: bigint): void {
    [this.first, this.key, this.#next] = [first, key, first];
    this.#returned.length = 0;
  }

  /** Whether an id is one of them: not one that was given up. */
  has(producerId: bigint): boolean {
    return producerId >= this.first && producerId < this.first + BigInt(IDS_PER_CLIENT);
  }

  /** An identity for a producer, which gives it back or is garbage-collected. Throws limit.exceeded. */
  identify(owner: object): Identity {
    const identity = new Identity(this);
    this.#dropped.register(owner, identity, identity);
    return identity;
  }

  /** An id, and the first epoch in which it can be used. Throws limit.exceeded. */
  take(): [producerId: bigint, epoch: number] {
    if (this.has(this.#next)) return [this.#next++, 0];
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
    const { producerId, epoch } = identity;
    if (epoch < EPOCH_MAX && this.has(producerId)) this.#returned.push([producerId, epoch + 1]);
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

  /** Whether an id with which a batch would be numbered was given up. */
  hasLost(producerId: bigint): boolean {
    return !this.#ids.has(producerId);
  }

  /** Begin an epoch later than all before, or with another id. Throws limit.exceeded. */
  nextEpoch(): void {
    if (this.epoch < EPOCH_MAX && this.#ids.has(this.producerId)) this.epoch += 1;
    else [this.producerId, this.epoch] = this.#ids.take();
  }
}
