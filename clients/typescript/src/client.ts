// Client: the connection to a broker that comes back, and everything that is made from it.
//
// Read on: `session` (the connection that comes back), `connection` (one connection), `producer` (out), `consumer` with
// `subscription` (in).

import { randomBytes } from "node:crypto";
import { Consumer, type ConsumerOptions } from "./consumer.js";
import { invalid, LinnError } from "./errors.js";
import { checkedLogin, type Login } from "./login.js";
import { Batch } from "./message.js";
import type { ConnectionEvent } from "./outage.js";
import { Producer, type ProducerOptions } from "./producer.js";
import type { Tls } from "./secure.js";
import { Session, TIMER_MS_MAX } from "./session.js";
import type { Struct } from "./struct.js";
import { addressesOf } from "./url.js";
import { nodeZstd, type Zstd } from "./zstd.js";

export interface ClientOptions {
  /** What the broker's log calls this client. */
  name?: string;
  /** For one attempt to connect and be welcomed. Default: 5,000. */
  connectTimeoutMs?: number;
  /** For a request until its answer, and for a publish until its confirmation, including waits for a connection.
   * Default: 30,000. */
  requestTimeoutMs?: number;
  /** Attempts to connect again before what waits is failed, and times that a batch or a request is sent again. Default:
   * Infinity, as many as it takes. */
  retriesMax?: number;
  /** The wait before the second attempt to connect; it doubles from one to the next, less up to half of it at random.
   * Default: 50. */
  backoffMs?: number;
  /** The longest such wait. Default: 2,000. */
  backoffMaxMs?: number;
  /** Called when the connection is lost, every 30 s while there is none, and when there is one again. Default: prints
   * the event's text with `console.warn`. */
  onConnection?: (event: ConnectionEvent) => void;
  /** Who the client is, for a broker that asks: a Password or a Token. Default: the connection says it, by the client's
   * certificate or by a Unix socket. */
  login?: Login;
  /** Authorities and the client's certificate, for a linns:// URL. Default: the authorities that Node trusts. */
  tls?: Tls;
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
  /** A predicate over labels and routing key: only these records. Default: all. */
  where?: string;
  /** Of a queue: only records that are not settled. */
  unsettled?: boolean;
}

/** Batches from the offset on that was asked for, and the partition's bounds. */
export interface Fetched {
  readonly batches: Batch[];
  /** The first offset that can be read. */
  readonly startOffset: bigint;
  /** The offset behind the last that can be read. */
  readonly highWatermark: bigint;
  /** Where to go on: no record that was asked for lies between the last batch and there. */
  readonly nextOffset: bigint;
}

/** A topic, as `describe` has it. An unknown one has the kind "". */
export type TopicInfo = Struct<"TopicInfo">;

const NAME = "linn-typescript";
const CONNECT_TIMEOUT_MS = 5_000;
const REQUEST_TIMEOUT_MS = 30_000;
const BACKOFF_MS = 50;
const BACKOFF_MAX_MS = 2_000;
const FETCH_BYTES_MAX = 1 << 20;

/** Connect to a broker, once. URLs: linn://HOST[:PORT] (5466), linn://[V6][:PORT], linn+unix:///PATH, and linns:// for
 * TLS; linn://HOST,HOST names several brokers of a cluster. A connection that is lost later is made again for as long as the client is open.
 *
 * Rejects with listener.address_invalid, connection.failed, connection.lost, tls.failed, tls.required, auth.failed,
 * protocol.version_unsupported, protocol.malformed (what answered is no broker), message.invalid (an option makes no
 * sense). */
export async function connect(url: string, options: ClientOptions = {}): Promise<Client> {
  const addresses = addressesOf(url);
  if (options.tls !== undefined && addresses[0]!.tlsHost === undefined) {
    throw new LinnError("listener.address_invalid", `${url} is a URL without TLS, and there is tls: use linns://`);
  }
  const session = await Session.open(url, addresses, {
    name: options.name ?? NAME,
    login: checkedLogin(options.login),
    tls: options.tls ?? {},
    zstd: options.zstd ?? nodeZstd(),
    connectTimeoutMs: checked("connectTimeoutMs", options.connectTimeoutMs ?? CONNECT_TIMEOUT_MS),
    requestTimeoutMs: checked("requestTimeoutMs", options.requestTimeoutMs ?? REQUEST_TIMEOUT_MS),
    retriesMax: checked("retriesMax", options.retriesMax ?? Infinity, Infinity),
    backoffMs: checked("backoffMs", options.backoffMs ?? BACKOFF_MS),
    backoffMaxMs: checked("backoffMaxMs", options.backoffMaxMs ?? BACKOFF_MAX_MS),
    onConnection: options.onConnection ?? (({ text }) => console.warn(text)),
  });
  return new Client(session);
}

/** Throws message.invalid. */
function checked(name: string, value: number, most = TIMER_MS_MAX): number {
  if (typeof value === "number" && value >= 0 && value <= most) return value;
  throw invalid(`${name} must be a number from 0 to ${most}, not ${String(value)}`);
}

/** Of a partition, as the protocol numbers them; 0 is a time. */
const PLACES = { earliest: 1, latest: 2 };

/** Made by `connect`. */
export class Client {
  readonly #session: Session;

  constructor(session: Session) {
    this.#session = session;
  }

  /** What the broker calls itself. */
  get broker(): string {
    return this.#session.welcome.broker;
  }

  /** Who the client is to the broker; "anonymous" where the broker takes anybody. */
  get user(): string {
    return this.#session.welcome.user;
  }

  /** The version of the protocol that both speak. */
  get version(): number {
    return this.#session.welcome.version;
  }

  /** Why there is no connection now; undefined while there is one. */
  get error(): LinnError | undefined {
    return this.#session.error;
  }

  /** A producer for a topic or an exchange. Throws message.invalid, message.unsupported (zstd, and none at hand). */
  producer(target: { topic: string } | { exchange: string }, options: ProducerOptions = {}): Producer {
    const [kind, name] = Object.entries(target)[0] ?? [];
    if (typeof name !== "string" || (kind !== "topic" && kind !== "exchange")) {
      throw invalid("a producer needs the name of a topic or of an exchange, not both");
    }
    const world = {
      session: this.#session,
      now: () => Date.now(),
      random: () => randomBytes(16),
    };
    return new Producer(world, name, kind === "exchange", options);
  }

  /** A consumer of a topic. Rejects with topic.unknown, delivery.wrong_kind, request.timeout, connection.lost after
   * `retriesMax` attempts. */
  consumer(topic: string, options: ConsumerOptions = {}): Promise<Consumer> {
    return Consumer.open(this.#session, topic, options);
  }

  /** Read a partition from an offset on, at one's own pace.
   *
   * Rejects with topic.unknown, topic.partition_unknown, log.offset_out_of_range, delivery.wrong_kind (`unsettled`
   * records of a stream), batch.corrupt, connection.lost, request.timeout. */
  async fetch(topic: string, partition: number, offset: bigint | number, options: FetchOptions = {}): Promise<Fetched> {
    const { bytesMin = 1, bytesMax = FETCH_BYTES_MAX, waitMs = 0, where = "", unsettled = false } = options;
    const bounds = { bytesMin, bytesMax, waitMaxMs: waitMs };
    const content = { topic, partition, offset: BigInt(offset), ...bounds, where, unsettled };
    const { message, batches } = await this.#session.request({ member: "fetch", content }, "fetched", {
      extraMs: waitMs,
    });
    const delivery = { partition, deliveryId: 0n, attempt: 0 };
    const found: Batch[] = [];
    for (const records of batches) {
      records.verify();
      const skipped = records.indexAt(BigInt(offset));
      if (skipped < records.count) found.push(new Batch(topic, delivery, records, skipped, undefined));
    }
    const { startOffset, highWatermark, nextOffset } = message.content;
    return { batches: found, startOffset, highWatermark, nextOffset };
  }

  /** The offset of the start, of the end, or of the first batch with a timestamp not before `place`, in milliseconds
   * since 1970. */
  async findOffset(topic: string, partition: number, place: "earliest" | "latest" | bigint | number): Promise<bigint> {
    const isTime = typeof place !== "string";
    const content = { topic, partition, timestampMs: isTime ? BigInt(place) : 0n, place: isTime ? 0 : PLACES[place] };
    const { message } = await this.#session.request({ member: "findOffset", content }, "foundOffset");
    return message.content.offset;
  }

  /** Kind, partitions and bounds of these topics; of all, where none is named. */
  async describe(...topics: string[]): Promise<TopicInfo[]> {
    const request = { member: "describe", content: { topics } } as const;
    return (await this.#session.request(request, "description")).message.content.topics;
  }

  /** Carry out a verb of administration, docs/reference/protocol.md; its result.
   *
   * Where the connection is lost before the answer it may or may not have been carried out: it is not asked again.
   * Numbers in the result are JavaScript's: offsets beyond 2^53 lose their last digits. */
  async administer(verb: string, args: Readonly<Record<string, unknown>> = {}): Promise<unknown> {
    const content = { verb, arguments: JSON.stringify(args) };
    const { message } = await this.#session.request({ member: "administer", content }, "administered", {
      repeats: false,
    });
    return JSON.parse(message.content.result);
  }

  /** Say goodbye, close the connection, and fail whatever waits. Flush producers and close consumers before. */
  close(): Promise<void> {
    return this.#session.close();
  }
}
