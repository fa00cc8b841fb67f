// Subscription: one of a consumer's, on one connection. It ends with the connection; the consumer then makes another.
//
// Laws: credit is given back in chunks, when records are handed over; where there are leases the broker counts what is
// held. What was delivered under a lease is not handed over once the connection is lost or the lease is known to be
// over; a settlement that was not answered before the connection was lost fails with delivery.not_current, for whoever
// awaits it. When half of a lease has passed, what the application has not seen is released, and what it still refers
// to is renewed.

import type { RecordBatch } from "./batch.js";
import type { Message as ControlMessage } from "./codec.js";
import { invalid, LinnError, protocolError } from "./errors.js";
import type { Caller, Connection, PushHandler } from "./connection.js";
import { Batch, type Delivery, type Settler } from "./message.js";
import { AdaptivePrefetch, PREFETCH_FIRST, PREFETCH_MAX } from "./prefetch.js";
import { merged, Settling, withReasons, type Settled, type Verdict } from "./settling.js";
import type { Struct } from "./struct.js";

export type SubscriptionKind = "shared" | "group" | "reader";

const KINDS: readonly SubscriptionKind[] = ["shared", "group", "reader"];
/** How long a settlement that nobody awaits may wait for more: far below any lease. */
const SETTLE_LINGER_MS = 5;
/** Characters of a reason that are sent: the broker keeps 255 bytes. */
const REASON_CHARACTERS_MAX = 255;
/** Settlements that wait together. */
const SETTLINGS_MAX = 1_024;
/** How long an application that has all there may be, and settles nothing, waits until there may be twice as much. */
const STARVED_MS = 100;
/** Times that leases are checked while one lasts: an application may block the event loop for a quarter of it. */
const CHECKS_PER_LEASE = 4;
export const U32_MAX = 0xffffffff;

/** How much one subscription may have. */
export interface Limits {
  /** Records that may be on their way. */
  readonly prefetch: number;
  /** Whether a queue's follows the application, from `PREFETCH_FIRST` on; `prefetch` is for streams then. */
  readonly adapts: boolean;
  /** How long after its delivery a lease is renewed; 0: never. */
  readonly renewalMaxMs: number;
}

/** What to subscribe with where it may turn out to be a queue. */
export function firstCredit({ prefetch, adapts }: Limits): number {
  return adapts ? Math.min(prefetch, PREFETCH_FIRST) : prefetch;
}

/** Records that were not handed to the application: of a delivery, from an offset up to another. */
export interface Unread {
  readonly delivery: Delivery;
  readonly first: bigint;
  readonly end: bigint;
}

/** The consumer, as its subscriptions see it. */
export interface SubscriptionOwner {
  readonly topic: string;
  arrived(batches: readonly Batch[]): void;
  /** Some of what arrived is not wanted any more. */
  dropUnwanted(): void;
  /** Take back what was not handed to the application, of the batches for which `isTaken` holds. */
  takeUnread(isTaken: (batch: Batch) => boolean): Unread[];
  /** A settlement that nobody awaits was refused. */
  refused(error: LinnError): void;
  /** The broker has ended the subscription. */
  ended(error: LinnError): void;
  /** The connection is over. */
  disconnected(subscription: Subscription): void;
}

/** What is known of a lease, which is of one delivery. */
class Lease {
  /** Records that were delivered under it, and neither settled nor lost. */
  held: number;
  /** Referred to by the application for as long as it has records of the lease. */
  delivery: WeakRef<LeasedDelivery> | undefined;
  readonly first: bigint;
  /** The offset behind its last record. */
  readonly end: bigint;
  /** The batches, if they have or leave gaps: a queue with an order delivers scattered records. */
  readonly #sparse: readonly RecordBatch[];

  constructor(
    readonly subscription: Subscription,
    readonly partition: number,
    readonly deliveryId: bigint,
    batches: readonly RecordBatch[],
    readonly sinceMs: number,
    /** When it is over at the latest: later than the broker has it, whose clock began before. */
    public untilMs: number,
  ) {
    this.first = batches[0]!.header.baseOffset;
    this.end = batches.at(-1)!.endOffset;
    this.held = batches.reduce((sum, batch) => sum + batch.count, 0);
    this.#sparse = this.held < Number(this.end - this.first) ? batches : [];
  }

  /** The number of its records from an offset up to another. */
  count(first: bigint, end: bigint): number {
    if (this.#sparse.length === 0) return Number(end - first);
    return this.#sparse.reduce((sum, batch) => {
      if (first <= batch.header.baseOffset && batch.endOffset <= end) return sum + batch.count;
      // A part is settled of what was read, and so was verified.
      return batch.isVerified ? sum + Math.max(0, batch.indexAt(end) - batch.indexAt(first)) : sum;
    }, 0);
  }
}

/** A delivery that knows its lease. Applications may settle with a plain one that has the same numbers. */
class LeasedDelivery implements Delivery {
  readonly partition: number;
  readonly deliveryId: bigint;
  readonly #lease: Lease;

  constructor(
    lease: Lease,
    readonly attempt: number,
  ) {
    this.partition = lease.partition;
    this.deliveryId = lease.deliveryId;
    this.#lease = lease;
  }

  static leaseOf(delivery: Delivery): Lease | undefined {
    return #lease in delivery ? delivery.#lease : undefined;
  }
}

/** The subscription that a delivery came by, where it is known. */
export function subscriptionOf(delivery: Delivery): Subscription | undefined {
  return LeasedDelivery.leaseOf(delivery)?.subscription;
}

/** Takes what the broker pushes, gives credit, sends settlements. */
export class Subscription implements PushHandler, Settler {
  readonly id: number;
  readonly kind: SubscriptionKind;
  readonly leaseMs: number;
  readonly leased: boolean;
  /** Of a group's member: what it owns. */
  owned: Set<number> | undefined;
  alive = true;
  readonly #renewalMaxMs: number;
  readonly #adaptive: AdaptivePrefetch | undefined;
  #credit: number;
  /** Records that the broker may send before it hears of more. Not counted where there are leases. */
  #granted: number;
  #chunk: number;
  readonly #leases = new Map<string, Lease>();
  /** Records that were delivered under leases, and neither settled nor lost. */
  #held = 0;
  /** Records of a queue that arrived and were not handed over. */
  #buffered = 0;
  /** How often the application has had to wait. */
  #waits = 0;
  /** Whether the application waits for records. */
  #isAwaited = false;
  #open: Settling[] = [];
  readonly #unanswered = new Set<Settling>();
  #flushTimer: NodeJS.Timeout | undefined;
  #leaseTimer: NodeJS.Timeout | undefined;
  #starvedTimer: NodeJS.Timeout | undefined;

  /** Throws protocol.malformed. */
  constructor(
    readonly owner: SubscriptionOwner,
    readonly connection: Connection,
    subscribed: Struct<"Subscribed">,
    limits: Limits,
    /** Readers: the next offset of each partition. Members: where reading goes on after a nack. */
    readonly positions: Map<number, bigint>,
  ) {
    this.id = subscribed.subscription;
    const kind = KINDS[subscribed.kind];
    if (kind === undefined) throw protocolError(`a subscription of kind ${subscribed.kind}`);
    this.kind = kind;
    this.leaseMs = subscribed.leaseMs;
    this.leased = kind === "shared" && subscribed.leaseMs > 0;
    this.#renewalMaxMs = limits.renewalMaxMs;
    this.#granted = firstCredit(limits);
    this.#credit = limits.prefetch;
    if (limits.adapts && kind === "shared") {
      this.#adaptive = new AdaptivePrefetch(this.leaseMs, performance.now());
      this.#credit = this.#granted;
    }
    this.#chunk = Math.max(1, this.#credit >> 1);
    connection.subscriptions.set(this.id, this);
    this.#grant();
  }

  // --- what the broker sends ---

  pushed(message: ControlMessage, batches: RecordBatch[]): void {
    switch (message.member) {
      case "deliver":
        this.#delivered(message.content, batches);
        break;
      case "assigned":
        this.#assigned(message.content);
        break;
      case "leaseEnded":
        this.#leaseEnded(message.content);
        break;
      case "ended":
        this.end();
        this.owner.ended(new LinnError(message.content.code, message.content.text));
    }
  }

  #delivered(deliver: Struct<"Deliver">, batches: RecordBatch[]): void {
    const delivery = this.leased && batches.length > 0 ? this.#leaseOf(deliver, batches) : plain(deliver);
    const arrived: Batch[] = [];
    if (this.kind === "reader" && deliver.passedTo > (this.positions.get(deliver.partition) ?? 0n)) {
      this.positions.set(deliver.partition, deliver.passedTo);
    }
    for (const records of batches) {
      const first = this.#skipped(deliver.partition, records);
      if (this.kind !== "shared") this.#spend(first);
      else this.#buffered += records.count;
      if (first < records.count) arrived.push(new Batch(this.owner.topic, delivery, records, first, this));
    }
    this.owner.arrived(arrived);
  }

  #leaseOf({ partition, deliveryId, attempt }: Struct<"Deliver">, batches: RecordBatch[]): LeasedDelivery {
    const now = performance.now();
    const lease = new Lease(this, partition, deliveryId, batches, now, now + this.leaseMs);
    this.#leases.set(keyOf(partition, deliveryId), lease);
    this.#held += lease.held;
    this.#scheduleLeaseCheck();
    const delivery = new LeasedDelivery(lease, attempt);
    lease.delivery = new WeakRef(delivery);
    return delivery;
  }

  #leaseEnded({ partition, deliveryId }: Struct<"LeaseEnded">): void {
    const lease = this.#leases.get(keyOf(partition, deliveryId));
    if (lease === undefined) return;
    lease.untilMs = -Infinity;
    this.#forget(lease);
    this.owner.dropUnwanted();
  }

  #forget(lease: Lease): void {
    this.#held -= lease.held;
    lease.held = 0;
    this.#leases.delete(keyOf(lease.partition, lease.deliveryId));
  }

  #assigned({ epoch, partitions, revoked }: Struct<"Assigned">): void {
    if (this.kind === "shared") return; // What a queue's consumer has stays its own.
    const owned = (this.owned = new Set(partitions));
    for (const partition of [...this.positions.keys()]) if (!owned.has(partition)) this.positions.delete(partition);
    this.owner.dropUnwanted();
    if (revoked.length === 0) return;
    this.flush();
    this.connection.tell({ member: "heartbeat", content: { subscription: this.id, epoch } });
  }

  /** How many records of a batch the consumer has read already, or does not want any more. */
  #skipped(partition: number, records: RecordBatch): number {
    const position = this.positions.get(partition);
    switch (this.kind) {
      case "shared":
        return 0;
      case "group":
        if (this.owned !== undefined && !this.owned.has(partition)) return records.count;
        if (position === undefined) return 0;
        // On its way when reading was set back.
        if (position < records.header.baseOffset || position >= records.endOffset) return records.count;
        this.positions.delete(partition);
        return records.indexAt(position);
      case "reader": {
        const read = position ?? 0n;
        this.positions.set(partition, read > records.endOffset ? read : records.endOffset);
        return records.indexAt(read);
      }
    }
  }

  /** Whether a batch that arrived is still to be handed over. */
  wants(batch: Batch): boolean {
    // Without a lease it was settled by being sent; a reader goes on behind what arrived.
    if (!this.alive) return !this.leased && this.kind !== "group";
    if (this.leased) return !isOver(batch.delivery);
    if (this.owned !== undefined && !this.owned.has(batch.partition)) return false;
    return this.kind !== "group" || !this.positions.has(batch.partition);
  }

  /** The connection is over. */
  lost(): void {
    this.end();
    this.owner.disconnected(this);
  }

  /** The subscription, or its connection, is over. */
  end(): void {
    if (!this.alive) return;
    this.alive = false;
    this.connection.subscriptions.delete(this.id);
    for (const timer of [this.#flushTimer, this.#leaseTimer, this.#starvedTimer]) clearTimeout(timer);
    const lost = [...this.#unanswered, ...this.#open];
    this.#open = [];
    this.#unanswered.clear();
    for (const settling of lost) settling.finish(notCurrent());
  }

  /** Give back what the application has not seen, and unsubscribe; wait for the answer at most so long. */
  async leave(timeoutMs: number): Promise<void> {
    if (!this.alive) return;
    const request = { member: "unsubscribe", content: { subscription: this.id } } as const;
    const answered = this.connection.together(() => {
      // Without credit the broker does not lease what is released here to this subscription again.
      if (this.leased) this.connection.tell({ member: "credit", content: { subscription: this.id, records: 0 } });
      this.release();
      this.flush();
      return this.connection.request(request, "done", timeoutMs);
    });
    await answered.catch(() => {});
    this.end();
  }

  // --- credit ---

  /** A batch goes to the application, or is dropped. */
  handedOver(batch: Batch): void {
    if (this.kind !== "shared") {
      this.#spend(batch.length);
      return;
    }
    const adaptive = this.#adaptive;
    if (adaptive?.isDue) this.#adapt(adaptive);
    adaptive?.handed(batch.length);
    this.#buffered -= batch.length;
    if (this.leased) return;
    adaptive?.settled(batch.length);
    this.#spend(batch.length);
  }

  #spend(records: number): void {
    this.#granted -= records;
    if (this.#credit - this.#granted >= this.#chunk) this.#grant();
  }

  /** Let the broker send as much as `#credit` says. */
  #grant(): void {
    const missing = this.#credit - this.#granted;
    if (!this.alive || missing === 0 || (!this.leased && missing < 0)) return;
    this.#granted = this.#credit;
    const records = this.leased ? this.#credit : missing;
    this.connection.tell({ member: "credit", content: { subscription: this.id, records } });
  }

  #adapt(adaptive: AdaptivePrefetch): void {
    const withApplication = Math.max(0, this.#held - this.#buffered);
    if (adaptive.adapt(performance.now(), withApplication)) this.#windowChanged(adaptive.window);
  }

  #windowChanged(window: number): void {
    this.#chunk = Math.max(1, window >> 1);
    this.#credit = window;
    this.#grant();
  }

  /** The application has nothing left, and asks for more. */
  waits(): void {
    this.flush();
    this.#waits += 1;
    this.#isAwaited = true;
    const adaptive = this.#adaptive;
    if (adaptive === undefined || !this.alive) return;
    this.#adapt(adaptive);
    if (this.#held >= adaptive.window && adaptive.window < PREFETCH_MAX) this.#starvesLater(adaptive);
  }

  #starvesLater(adaptive: AdaptivePrefetch): void {
    const waits = this.#waits;
    clearTimeout(this.#starvedTimer);
    this.#starvedTimer = setTimeout(() => {
      if (waits !== this.#waits || !this.alive || this.#held < adaptive.window || !adaptive.starved()) return;
      this.#windowChanged(adaptive.window);
      this.#starvesLater(adaptive);
    }, STARVED_MS);
  }

  /** It waits no longer. */
  waited(): void {
    this.#waits += 1;
    this.#isAwaited = false;
    clearTimeout(this.#starvedTimer);
    this.#adaptive?.resumed(performance.now());
  }

  // --- leases ---

  #scheduleLeaseCheck(): void {
    this.#leaseTimer ??= setTimeout(() => this.#checkLeases(), this.leaseMs / CHECKS_PER_LEASE).unref();
  }

  /** Release what was not handed to the application within half a lease, and renew what it has. */
  #checkLeases(): void {
    this.#leaseTimer = undefined;
    const soonMs = performance.now() + this.leaseMs / 2;
    const due = new Set([...this.#leases.values()].filter(({ untilMs }) => untilMs < soonMs));
    if (due.size > 0) {
      this.release(due);
      this.flush(); // Before: a lease of which nothing is held any more is not renewed.
      for (const lease of due) this.#renew(lease);
      this.flush();
    }
    if (this.#leases.size > 0) this.#scheduleLeaseCheck();
  }

  /** Give back what was not handed to the application: of these leases, or of all. */
  release(leases?: ReadonlySet<Lease | undefined>): void {
    if (!this.leased) return;
    const isTaken = ({ settler, delivery }: Batch): boolean =>
      settler === this && (leases === undefined || leases.has(leaseOf(delivery)));
    for (const { delivery, first, end } of this.owner.takeUnread(isTaken)) {
      if (!isOver(delivery)) this.#settleQuietly(delivery, first, end, "release", 0);
    }
  }

  #renew(lease: Lease): void {
    const now = performance.now();
    const leftMs = Math.min(this.leaseMs, lease.sinceMs + this.#renewalMaxMs - now);
    const delivery = lease.delivery?.deref();
    if (now >= lease.untilMs) this.#forget(lease);
    else if (delivery !== undefined && lease.held > 0 && lease.untilMs < now + leftMs) {
      this.#settleQuietly(delivery, lease.first, lease.end, "extend", Math.ceil(leftMs));
    }
  }

  /** Settle without telling the application of a refusal: it is told when it settles the records itself. */
  #settleQuietly(delivery: Delivery, first: bigint, end: bigint, verdict: Verdict, ms: number): void {
    const settling = new Settling(delivery, first, end, verdict, ms, () => this.flush());
    settling.awaited = true;
    this.#add(settling);
  }

  // --- settling ---

  /** Settle a range of offsets of a delivery; see `Batch` and `Message`. Throws message.invalid. */
  settle(delivery: Delivery, first: bigint, end: bigint, verdict: Verdict, ms: number, reason = ""): Settled {
    if (!Number.isInteger(ms) || ms < 0 || ms > U32_MAX) {
      throw invalid(`milliseconds must be from 0 to ${U32_MAX}, not ${ms}`);
    }
    const sent = reason.slice(0, REASON_CHARACTERS_MAX);
    const settling = new Settling(delivery, first, end, verdict, ms, () => this.flush(), sent);
    if (verdict === "ack" && !this.leased && this.kind !== "group") settling.finish(undefined);
    else this.#add(settling);
    return settling;
  }

  #add(settling: Settling): void {
    if (!this.alive) {
      settling.finish(notCurrent());
      return;
    }
    const { delivery, verdict } = settling;
    const lease = leaseOf(delivery);
    if (verdict === "extend" && lease !== undefined && !isOver(delivery)) {
      lease.untilMs = performance.now() + settling.ms;
    }
    this.#open.push(settling);
    if (verdict === "nack" && this.kind === "group") {
      const before = this.positions.get(delivery.partition);
      // The last one of several nacks must not have the others passed over.
      if (before === undefined || settling.first < before) this.positions.set(delivery.partition, settling.first);
      this.owner.dropUnwanted();
    }
    if (this.#open.length >= SETTLINGS_MAX || this.#countOf(settling) >= this.#chunk || this.#hurries()) this.flush();
    else this.#flushTimer ??= setTimeout(() => this.flush(), SETTLE_LINGER_MS);
  }

  /** Whether settlements leave at once: the application waits for what the broker sends when it has them. Beside
   * unanswered ones they wait to be joined. */
  #hurries(): boolean {
    return this.leased && this.#isAwaited && this.#unanswered.size === 0;
  }

  /** Send all settlements that wait. */
  flush(): void {
    clearTimeout(this.#flushTimer);
    this.#flushTimer = undefined;
    const settlings = this.#open;
    this.#open = [];
    if (settlings.length === 0 || !this.alive) return;
    for (const settling of settlings) this.#unanswered.add(settling);
    if (this.leased) this.#countSettled(settlings);
    const entries = merged(settlings, (delivery, first, end) => {
      const lease = leaseOf(delivery);
      return lease?.first === first && lease.end === end;
    });
    const reasons = withReasons(entries);
    const content = { subscription: this.id, entries: entries.map(({ entry }) => entry), reasons };
    const caller: Caller = {
      answered: (message) => {
        const refused = message.member === "settled" ? message.content.refused : [];
        const byEntry = new Map(refused.map(({ entry, code, text }) => [entry, new LinnError(code, text)]));
        entries.forEach((entry, index) => this.#answered(entry.settlings, byEntry.get(index)));
      },
      failed: (error) => {
        if (this.connection.error !== undefined || !this.alive) this.end();
        else this.#answered(settlings, error);
      },
    };
    this.connection.ask(caller, { member: "settle", content });
  }

  /** Take off what is settled from what is held. What is refused was not held any more, or is another's. */
  #countSettled(settlings: readonly Settling[]): void {
    for (const settling of settlings) {
      const { delivery, verdict } = settling;
      const lease = this.#leaseFor(delivery);
      if (verdict === "extend" || lease === undefined) continue;
      const settled = Math.min(lease.held, this.#countOf(settling));
      lease.held -= settled;
      this.#held -= settled;
      if (verdict !== "release") this.#adaptive?.settled(settled);
      if (lease.held === 0) this.#forget(lease);
    }
  }

  #countOf({ delivery, first, end }: Settling): number {
    return this.#leaseFor(delivery)?.count(first, end) ?? Number(end - first);
  }

  #leaseFor(delivery: Delivery): Lease | undefined {
    return leaseOf(delivery) ?? this.#leases.get(keyOf(delivery.partition, delivery.deliveryId));
  }

  #answered(settlings: readonly Settling[], error: LinnError | undefined): void {
    const open = settlings.filter((settling) => this.#unanswered.delete(settling));
    for (const { verdict, delivery } of open) {
      // What comes from now on was read after reading was set back.
      if (verdict === "nack" && this.kind === "group") this.positions.delete(delivery.partition);
    }
    this.#finish(open, error);
    if (this.#open.length > 0 && this.#hurries()) this.flush();
  }

  #finish(settlings: readonly Settling[], error: LinnError | undefined): void {
    for (const settling of settlings) settling.finish(error);
    if (error === undefined || settlings.length === 0 || settlings.some((settling) => settling.awaited)) return;
    this.owner.refused(error);
  }

  /** Send all settlements, and wait until the broker has answered, whatever it said; at most so long. */
  async untilSettled(timeoutMs: number): Promise<void> {
    this.flush();
    let timer: NodeJS.Timeout | undefined;
    const timeUp = new Promise<void>((resolve) => (timer = setTimeout(resolve, timeoutMs)));
    await Promise.race([Promise.all([...this.#unanswered].map((settling) => settling.done)), timeUp]);
    clearTimeout(timer);
  }
}

function keyOf(partition: number, deliveryId: bigint): string {
  return `${partition}/${deliveryId}`;
}

function plain({ partition, deliveryId, attempt }: Struct<"Deliver">): Delivery {
  return { partition, deliveryId, attempt };
}

function leaseOf(delivery: Delivery): Lease | undefined {
  return LeasedDelivery.leaseOf(delivery);
}

function isOver(delivery: Delivery): boolean {
  const lease = leaseOf(delivery);
  return lease !== undefined && performance.now() >= lease.untilMs;
}

function notCurrent(): LinnError {
  const text = "the subscription that delivered the records is over; the broker may deliver them again";
  return new LinnError("delivery.not_current", text);
}
