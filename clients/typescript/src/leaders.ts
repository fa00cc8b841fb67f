// Leaders: a client's connections to the brokers that lead its topics, beside the one to the broker at hand.
//
// Descriptions of topics say who leads them. That is advice: any broker passes on what is published to it. A leader that
// can't be reached is served through the broker at hand, and old news does no harm.
//
// Laws: of two leaders of a topic the one with the later epoch counts. There is at most one connection to a broker, and
// one attempt at a time to make it. A connection counts only if it has reached the broker that was named, of the same
// cluster. An attempt that failed is repeated after a pause, which grows. Nothing is asked, and no connection is made
// again, while nothing is published.

import type { Connection } from "./connection.js";
import { LinnError } from "./errors.js";
import type { Struct } from "./struct.js";

/** Longest wait of a producer for the first connection to the leader: then it begins at the broker at hand. */
const REACH_MS = 1_000;
/** Pause after an attempt to connect that failed; it doubles with each failure. */
const PAUSE_MS = 5_000;
const PAUSE_MS_MAX = 60_000;
/** Longest interval of signs of life where there is another broker to go to: one that is frozen is lost after three of
 * these, before a publish fails. */
export const KEEPALIVE_MS = 1_000;
/** Age of a description after which a producer asks for another one. */
const DESCRIPTION_MS_MAX = 60_000;
/** Time after which a broker is asked again whose answer names no leader, or is older than a confirmation. */
const OLD_NEWS_MS = 500;

/** The broker at hand, and the way from it to others. */
export interface AtHand {
  /** The connection, while there is one. */
  readonly connection: Connection | undefined;
  /** Connect to another broker as to this one: with the same login, TLS and producer ids. Throws as `Connection.open`,
   * and listener.address_invalid. */
  open(address: string, signal: AbortSignal): Promise<Connection>;
  /** Milliseconds by a clock that is never set. */
  now(): number;
  /** A broker can't be reached, and is used through the one at hand. */
  unreachable(text: string, error: LinnError): void;
}

/** An attempt to connect that is under way. */
interface Attempt {
  readonly ended: Promise<void>;
  abort(): void;
}

export class Leaders {
  readonly #connections = new Map<number, Connection>();
  readonly #attempts = new Map<number, Attempt>();
  /** Brokers that could not be reached. */
  readonly #pauses = new Map<number, { ms: number; untilMs: number }>();
  #addresses = new Map<number, string>();
  #closed = false;

  constructor(readonly hand: AtHand) {}

  /** Take the addresses of brokers that are alive. */
  take(nodes: readonly Struct<"Node">[]): void {
    this.#addresses = new Map(nodes.map(({ id, address }) => [id, address]));
  }

  /** The connection to a broker that takes requests; undefined: use the broker at hand. */
  at(node: number): Connection | undefined {
    const connection = this.#connections.get(node);
    return connection?.isEnding ? undefined : connection;
  }

  /** Connect to a broker, unless there is a connection or a reason not to; its end, if an attempt is under way. */
  reach(node: number): Promise<void> | undefined {
    const hand = this.hand.connection;
    const address = this.#addresses.get(node);
    if (this.#closed || hand === undefined || address === undefined || node === hand.welcome.node) return undefined;
    if (this.#connections.has(node) || this.hand.now() < (this.#pauses.get(node)?.untilMs ?? 0)) return undefined;
    let attempt = this.#attempts.get(node);
    if (attempt === undefined) {
      const controller = new AbortController();
      const ended = this.#connect(node, address, hand, controller.signal);
      attempt = { ended, abort: () => controller.abort() };
      this.#attempts.set(node, attempt);
    }
    return attempt.ended;
  }

  async #connect(node: number, address: string, hand: Connection, signal: AbortSignal): Promise<void> {
    try {
      this.#adopt(node, await this.#opened(node, address, hand, signal));
      this.#pauses.delete(node);
    } catch (error) {
      if (!(error instanceof LinnError)) throw error;
      if (!this.#closed) this.#pause(node, hand, error);
    } finally {
      this.#attempts.delete(node);
    }
  }

  /** Connect to a node. Throws connection.failed where another broker answers. */
  async #opened(node: number, address: string, hand: Connection, signal: AbortSignal): Promise<Connection> {
    const connection = await this.hand.open(address, signal);
    const { cluster, node: found } = connection.welcome;
    if (!this.#closed && cluster === hand.welcome.cluster && found === node) return connection;
    await connection.close();
    throw new LinnError("connection.failed", `another broker answers at ${address}`);
  }

  #adopt(node: number, connection: Connection): void {
    if (connection.error !== undefined) return;
    this.#connections.set(node, connection);
    connection.onEnd = () => this.#connections.delete(node);
  }

  #pause(node: number, hand: Connection, error: LinnError): void {
    const before = this.#pauses.get(node);
    if (before === undefined) {
      const text = `broker ${node} can't be reached, its topics are used through ${hand.welcome.broker}`;
      this.hand.unreachable(`${text}: ${error.message}`, error);
    }
    const ms = before === undefined ? PAUSE_MS : Math.min(2 * before.ms, PAUSE_MS_MAX);
    this.#pauses.set(node, { ms, untilMs: this.hand.now() + ms });
  }

  /** Close all connections, and make no other. */
  async close(): Promise<void> {
    this.#closed = true;
    for (const attempt of this.#attempts.values()) attempt.abort();
    await Promise.all([...this.#connections.values()].map((connection) => connection.close()));
  }
}

/** The leader of one topic, for one producer. */
export class TopicLeader {
  /** Whether the producer waits: no leader is known, and the answer or the attempt to connect is under way. */
  isAwaited = false;
  #topicId = "";
  #node = 0;
  #epoch = 0;
  /** The latest epoch in which a batch was confirmed. */
  #confirmedEpoch = 0;
  /** The connection that `connection` returned last. */
  #at: Connection | undefined;
  /** The connection over which was asked last. */
  #askedOver: Connection | undefined;
  #isAsking = false;
  /** Time from which a broker is asked again. */
  #dueMs = 0;

  constructor(
    readonly leaders: Leaders,
    readonly topic: string,
    /** Called when `isAwaited` ends, or `connection` may have become another one. */
    readonly changed: () => void,
  ) {}

  /** The connection to the leader; undefined: there is none, and the broker at hand passes batches on.
   *
   * Asks who leads the topic when that is due, and connects to that broker again. */
  connection(): Connection | undefined {
    if (this.#at?.isEnding) this.#askSoon(0);
    this.#askIfDue();
    this.#at = this.leaders.at(this.#node);
    return this.#at;
  }

  /** A batch was confirmed, in this epoch of the leader's. */
  confirmed(epoch: number): void {
    if (epoch <= this.#confirmedEpoch) return;
    this.#confirmedEpoch = epoch;
    if (epoch > this.#epoch) this.#askNow();
  }

  /** A batch was refused with partition.not_leader. */
  refused(): void {
    this.#askNow();
  }

  #askNow(): void {
    this.#askSoon(0);
    this.#askIfDue();
  }

  #askSoon(inMs: number): void {
    this.#dueMs = Math.min(this.#dueMs, this.leaders.hand.now() + inMs);
  }

  #askIfDue(): void {
    const { connection: hand } = this.leaders.hand;
    if (hand === undefined || hand.welcome.node === 0 || this.#isAsking || !hand.ready) return;
    if (hand === this.#askedOver && this.leaders.hand.now() < this.#dueMs) {
      void this.leaders.reach(this.#node);
      return;
    }
    this.#isAsking = true;
    this.#askedOver = hand;
    this.#dueMs = this.leaders.hand.now() + DESCRIPTION_MS_MAX;
    this.isAwaited = this.#node === 0;
    void this.#ask(hand);
  }

  async #ask(hand: Connection): Promise<void> {
    try {
      const content = { topics: [this.topic] };
      this.#take((await hand.request({ member: "describe", content }, "description")).message.content);
    } catch (error) {
      if (!(error instanceof LinnError)) throw error;
      this.#askSoon(OLD_NEWS_MS);
    }
    this.#isAsking = false;
    const attempt = this.leaders.reach(this.#node);
    if (attempt !== undefined && this.isAwaited) await withinReach(attempt);
    this.isAwaited = false;
    this.changed();
    // Without a broker at hand, batches wait for this one.
    void attempt?.then(this.changed);
  }

  #take({ nodes, topics }: Struct<"Description">): void {
    this.leaders.take(nodes);
    const info = topics[0];
    const told = info?.partitions[0];
    if (info === undefined || told === undefined) return;
    const topicId = `${info.idHigh} ${info.idLow}`;
    const isOther = topicId !== this.#topicId;
    if (isOther) this.#confirmedEpoch = 0;
    if (isOther || told.leaderEpoch >= this.#epoch) {
      [this.#topicId, this.#node, this.#epoch] = [topicId, told.leader, told.leaderEpoch];
    }
    if (told.leader === 0 || told.leaderEpoch < this.#confirmedEpoch) this.#askSoon(OLD_NEWS_MS);
  }
}

/** Wait for an attempt to connect, but not for long. */
async function withinReach(attempt: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const passed = new Promise<void>((resolve) => (timer = setTimeout(resolve, REACH_MS)));
  await Promise.race([attempt, passed]);
  clearTimeout(timer);
}
