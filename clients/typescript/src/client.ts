// Client: one connection to a broker, and everything that is made from it.
//
// Law: a connection that is lost is not made again. Everything that waits fails with connection.lost, and so does
// what is asked for later; the application connects anew, and knows what it had not settled.

import { randomBytes } from "node:crypto";
import { Consumer, type ConsumerOptions } from "./consumer.js";
import { invalid, LinnError } from "./errors.js";
import { Link } from "./link.js";
import { Batch } from "./message.js";
import { Producer, type ProducerOptions } from "./producer.js";
import type { Struct } from "./struct.js";
import { addressOf } from "./url.js";
import { nodeZstd, type Zstd } from "./zstd.js";

export interface ClientOptions {
  /** What the broker's log calls this client. */
  name?: string;
  /** For connecting and being welcomed. */
  connectTimeoutMs?: number;
  /** For an answer. */
  requestTimeoutMs?: number;
  /** Where Node has no zstd of its own (before 22.15). */
  zstd?: Zstd;
}

export interface FetchOptions {
  /** Wait for this many bytes, */
  bytesMin?: number;
  /** about, and at least one batch where there is one. */
  bytesMax?: number;
  /** at most so long. */
  waitMs?: number;
}

/** Batches from the offset on that was asked for, and the partition's bounds. */
export interface Fetched {
  readonly batches: Batch[];
  /** The first offset that can be read. */
  readonly startOffset: bigint;
  /** The offset behind the last that can be read. */
  readonly highWatermark: bigint;
}

/** A topic, as `describe` has it. An unknown one has the kind "". */
export type TopicInfo = Struct<"TopicInfo">;

const NAME = "linn-typescript";
const CONNECT_TIMEOUT_MS = 5_000;
const REQUEST_TIMEOUT_MS = 30_000;
const FETCH_BYTES_MAX = 1 << 20;

/** Connect to a broker. URLs: linn://HOST[:PORT] (5466), linn://[V6]:PORT, linn+unix:///PATH.
 *
 * Rejects with listener.address_invalid, connection.failed, connection.lost, protocol.version_unsupported,
 * protocol.malformed (what answered is no broker). */
export async function connect(url: string, options: ClientOptions = {}): Promise<Client> {
  const { name = NAME, connectTimeoutMs = CONNECT_TIMEOUT_MS, zstd = nodeZstd() } = options;
  const link = await Link.open(url, addressOf(url), { name, connectTimeoutMs, zstd });
  return new Client(link, options.requestTimeoutMs ?? REQUEST_TIMEOUT_MS);
}

/** Made by `connect`. */
export class Client {
  readonly #link: Link;
  readonly #requestTimeoutMs: number;

  constructor(link: Link, requestTimeoutMs: number) {
    this.#link = link;
    this.#requestTimeoutMs = requestTimeoutMs;
  }

  /** What the broker calls itself. */
  get broker(): string {
    return this.#link.welcome.broker;
  }

  /** The version of the protocol that both speak. */
  get version(): number {
    return this.#link.welcome.version;
  }

  /** Why the connection is over; undefined while it is not. */
  get error(): LinnError | undefined {
    return this.#link.error;
  }

  /** A producer for a topic or an exchange. Throws message.invalid, message.unsupported (zstd, and none at hand). */
  producer(target: { topic: string } | { exchange: string }, options: ProducerOptions = {}): Producer {
    const [kind, name] = Object.entries(target)[0] ?? [];
    if (typeof name !== "string" || (kind !== "topic" && kind !== "exchange")) {
      throw invalid("a producer has either a topic or an exchange, by name");
    }
    const world = {
      link: this.#link,
      requestTimeoutMs: this.#requestTimeoutMs,
      now: () => Date.now(),
      random: () => randomBytes(16),
    };
    return new Producer(world, name, kind === "exchange", options);
  }

  /** A consumer of a topic. Rejects with topic.unknown, delivery.wrong_kind, connection.lost, request.timeout. */
  consumer(topic: string, options: ConsumerOptions = {}): Promise<Consumer> {
    return Consumer.open(this.#link, topic, options, this.#requestTimeoutMs);
  }

  /** Read a partition from an offset on, at one's own pace.
   *
   * Rejects with topic.unknown, topic.partition_unknown, log.offset_out_of_range, batch.corrupt, connection.lost,
   * request.timeout. */
  async fetch(topic: string, partition: number, offset: bigint | number, options: FetchOptions = {}): Promise<Fetched> {
    const { bytesMin = 1, bytesMax = FETCH_BYTES_MAX, waitMs = 0 } = options;
    const content = { topic, partition, offset: BigInt(offset), bytesMin, bytesMax, waitMaxMs: waitMs };
    const timeoutMs = this.#requestTimeoutMs + waitMs;
    const { message, batches } = await this.#link.request({ member: "fetch", content }, "fetched", timeoutMs);
    const delivery = { partition, deliveryId: 0n, attempt: 0 };
    const found: Batch[] = [];
    for (const records of batches) {
      records.verify();
      const skipped = BigInt(offset) - records.header.baseOffset;
      if (skipped < records.count) {
        found.push(new Batch(topic, delivery, records, skipped > 0n ? Number(skipped) : 0, undefined));
      }
    }
    return { batches: found, startOffset: message.content.startOffset, highWatermark: message.content.highWatermark };
  }

  /** The offset of the first batch with a timestamp not before `timestampMs`; -1: the end, -2: the start. */
  async findOffset(topic: string, partition: number, timestampMs: bigint | number): Promise<bigint> {
    const content = { topic, partition, timestampMs: BigInt(timestampMs) };
    const { message } = await this.#link.request(
      { member: "findOffset", content },
      "foundOffset",
      this.#requestTimeoutMs,
    );
    return message.content.offset;
  }

  /** Kind, partitions and bounds of these topics; of all, where none is named. */
  async describe(...topics: string[]): Promise<TopicInfo[]> {
    const request = { member: "describe", content: { topics } } as const;
    return (await this.#link.request(request, "description", this.#requestTimeoutMs)).message.content.topics;
  }

  /** Carry out a verb of administration, docs/reference/protocol.md; its result.
   *
   * Numbers in the result are JavaScript's: offsets beyond 2^53 lose their last digits. */
  async administer(verb: string, args: Readonly<Record<string, unknown>> = {}): Promise<unknown> {
    const content = { verb, arguments: JSON.stringify(args) };
    const { message } = await this.#link.request(
      { member: "administer", content },
      "administered",
      this.#requestTimeoutMs,
    );
    return JSON.parse(message.content.result);
  }

  /** Say goodbye and close the connection. Flush producers and close consumers before. */
  close(): Promise<void> {
    return this.#link.close();
  }
}
