// The conformance agent of this client: docs/how-to/write-a-client.md.
//
// Reads one JSON command per line on stdin, and writes one JSON answer per line on stdout.

import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { Decompress } from "fzstd";
import { buildBatch, checkRecord } from "../src/batch-builder.js";
import { decodeFrame } from "../src/codec.js";
import { Batch, connect, LinnError, Password, RecordBatch, Token } from "../src/index.js";
import type {
  Acks,
  Client,
  ClientOptions,
  Consumer,
  Delivery,
  LabelValue,
  Producer,
  RecordInput,
  Start,
  Verdict,
} from "../src/index.js";
import { LIMITS } from "../src/batch.js";
import { parseId } from "../src/uuid.js";
import { nodeZstd, noZstd, type Zstd } from "../src/zstd.js";
import { exact, parse, stringify, type Json } from "./exact-json.js";

type Fields = { [name: string]: Json };

/** Node's own, where it has one; else a library that only decompresses, as an application would bring it. */
const ZSTD: Zstd = nodeZstd() ?? { decompress };
const STARTS = new Map<bigint, Start>([
  [-2n, "earliest"],
  [-1n, "latest"],
]);

/** By pieces: a frame whose content is shorter than it says must not look as long. */
function decompress(frame: Uint8Array): Uint8Array {
  const pieces: Uint8Array[] = [];
  new Decompress((piece) => pieces.push(piece.slice())).push(frame, true);
  return Buffer.concat(pieces);
}

function text(bytes: Uint8Array | null): string | null {
  return bytes === null ? null : Buffer.from(bytes).toString("base64");
}

function octets(encoded: Json | undefined): Uint8Array | null {
  return typeof encoded === "string" ? Buffer.from(encoded, "base64") : null;
}

function recordOf(said: Fields): RecordInput {
  const headers = Object.entries((said["headers"] ?? {}) as Fields).map(
    ([name, value]) => [name, octets(value)] as const,
  );
  const record: RecordInput = {
    value: octets(said["value"]),
    key: octets(said["key"]),
    routingKey: (said["routing_key"] ?? "") as string,
    labels: (said["labels"] ?? {}) as Record<string, LabelValue>,
    headers,
    priority: Number(said["priority"] ?? 0n),
    delayMs: Number(said["delay_ms"] ?? 0n),
    ttlMs: Number(said["ttl_ms"] ?? 0n),
  };
  if (typeof said["timestamp_ms"] === "bigint") record.timestampMs = said["timestamp_ms"];
  if (typeof said["id"] === "string") record.id = said["id"];
  return record;
}

function recordSays(batch: RecordBatch, index: number): Fields {
  const headers = batch.headers(index).map(([name, value]) => [name, text(value)]);
  return {
    value: text(batch.value(index)),
    key: text(batch.key(index)),
    routing_key: batch.routingKey(index),
    labels: batch.labels(index),
    headers: Object.fromEntries(headers) as Fields,
    timestamp_ms: batch.timestampMs(index),
    id: batch.id(index),
    priority: BigInt(batch.priority(index)),
    delay_ms: BigInt(batch.delayMs(index)),
    ttl_ms: BigInt(batch.ttlMs(index)),
    offset: batch.offset(index),
  };
}

function deliveredSays(batch: Batch, index: number): Fields {
  return {
    ...recordSays(batch.records, index),
    partition: BigInt(batch.partition),
    attempt: BigInt(batch.delivery.attempt),
    delivery_id: batch.delivery.deliveryId,
  };
}

/** One consumer, and the deliveries that it was handed. */
interface Reading {
  consumer: Consumer;
  deliveries: Map<string, Delivery>;
}

class Agent {
  #client: Client | undefined;
  readonly #producers = new Map<string, Producer>();
  readonly #readings: Reading[] = [];

  get #connected(): Client {
    if (this.#client === undefined) throw new LinnError("connection.lost", "not connected");
    return this.#client;
  }

  async perform(command: Fields): Promise<Fields> {
    switch (command["op"]) {
      case "connect":
        return this.#connect(command);
      case "publish":
        return this.#publish(command);
      case "subscribe":
        return this.#subscribe(command);
      case "next":
        return this.#next(command);
      case "settle":
        return this.#settle(command);
      case "fetch":
        return this.#fetch(command);
      case "decode":
        return decode(command);
      case "encode":
        return encode(command);
      case "frame":
        return frame(command);
      case "close":
        return this.close();
      default:
        throw new LinnError("protocol.request_unknown", `no op ${String(command["op"])}`);
    }
  }

  async #connect(command: Fields): Promise<Fields> {
    const { url, user, password, token, ca } = command as Record<string, string>;
    const options: ClientOptions = { zstd: ZSTD, name: "linn-typescript-agent" };
    if (user !== undefined) options.login = new Password(user, password!);
    if (token !== undefined) options.login = new Token(token);
    if (ca !== undefined) options.tls = { ca };
    this.#client = await connect(url!, options);
    return { broker: this.#client.broker, version: BigInt(this.#client.version) };
  }

  async #publish(command: Fields): Promise<Fields> {
    const acks = (command["acks"] ?? "all") as Acks;
    const exchange = command["exchange"] as string | undefined;
    const target = exchange === undefined ? { topic: command["topic"] as string } : { exchange };
    const key = JSON.stringify([target, acks, command["zstd"] === true]);
    const options = { acks, ...(command["zstd"] === true ? { codec: "zstd" as const } : {}) };
    const producer = this.#producers.get(key) ?? this.#connected.producer(target, options);
    this.#producers.set(key, producer);
    const records = (command["records"] as Fields[]).map(recordOf);
    const placement = await producer.publishBatch(records, {
      partition: Number(command["partition"] ?? -1n),
      mandatory: command["mandatory"] === true,
    });
    if (placement === undefined) return { placements: [] };
    const { partition, baseOffset, copies } = placement;
    return { placements: [{ partition: BigInt(partition), base_offset: baseOffset, copies: BigInt(copies) }] };
  }

  async #subscribe(command: Fields): Promise<Fields> {
    const start = (command["start"] ?? -2n) as bigint;
    const consumer = await this.#connected.consumer(command["topic"] as string, {
      group: (command["group"] ?? "") as string,
      ...(command["credit"] === undefined ? {} : { prefetch: Number(command["credit"]) }),
      renewalMaxMs: 0, // The agent refers to all deliveries for as long as it lives.
      start: STARTS.get(start) ?? start,
      where: (command["where"] ?? "") as string,
      shared: (command["shared"] ?? "") as string,
      name: (command["name"] ?? "") as string,
    });
    this.#readings.push({ consumer, deliveries: new Map() });
    return { subscription: BigInt(this.#readings.length), kind: consumer.kind };
  }

  #reading(command: Fields): Reading {
    const reading = this.#readings[Number(command["subscription"]) - 1];
    if (reading === undefined) throw new LinnError("delivery.subscription_unknown", "no such subscription");
    return reading;
  }

  async #next(command: Fields): Promise<Fields> {
    const { consumer, deliveries } = this.#reading(command);
    const most = Number(command["records_max"]);
    const records: Fields[] = [];
    let timeoutMs = Number(command["timeout_ms"]);
    for (; records.length < most; timeoutMs = 0) {
      const message = await consumer.next(timeoutMs);
      if (message === undefined) break;
      const { delivery } = message.batch;
      deliveries.set(`${delivery.partition}/${delivery.deliveryId}`, delivery);
      records.push(deliveredSays(message.batch, message.index));
    }
    return { records };
  }

  async #settle(command: Fields): Promise<Fields> {
    const { consumer, deliveries } = this.#reading(command);
    const partition = Number(command["partition"]);
    const deliveryId = (command["delivery_id"] ?? 0n) as bigint;
    const delivery = deliveries.get(`${partition}/${deliveryId}`) ?? {
      partition,
      deliveryId,
      attempt: 0,
    };
    const [first, end] = [command["first"] as bigint, command["end"] as bigint];
    try {
      const [ms, reason] = [Number(command["ms"] ?? 0n), (command["reason"] ?? "") as string];
      await consumer.settle(delivery, first, end, command["verdict"] as Verdict, ms, reason);
      return { refused: [] };
    } catch (error) {
      if (!(error instanceof LinnError) || error.code === "message.invalid") throw error;
      return { refused: [{ entry: 0n, code: error.code, text: error.message }] };
    }
  }

  async #fetch(command: Fields): Promise<Fields> {
    const { batches, startOffset, highWatermark, nextOffset } = await this.#connected.fetch(
      command["topic"] as string,
      Number(command["partition"] ?? 0n),
      (command["offset"] ?? 0n) as bigint,
      {
        bytesMax: Number(command["bytes_max"] ?? 1_048_576n),
        where: (command["where"] ?? "") as string,
        unsettled: command["unsettled"] === true,
      },
    );
    const records = batches.flatMap((batch) => Array.from(batch, ({ index }) => deliveredSays(batch, index)));
    return { records, start_offset: startOffset, high_watermark: highWatermark, next_offset: nextOffset };
  }

  async close(): Promise<Fields> {
    const client = this.#client;
    this.#client = undefined;
    this.#producers.clear();
    this.#readings.length = 0;
    await client?.close();
    return {};
  }
}

async function decode(command: Fields): Promise<Fields> {
  const batch = new RecordBatch(await readFile(command["path"] as string), LIMITS, ZSTD);
  batch.verify();
  if (batch.isStamped) batch.checkStamp();
  batch.checkAll();
  const records = Array.from({ length: batch.count }, (_, index) => recordSays(batch, index));
  return { records, header: exact(batch.header) };
}

async function encode(command: Fields): Promise<Fields> {
  const records = (command["records"] as Fields[]).map((said) => checkRecord(recordOf(said), 0));
  const baseId = typeof command["base_id"] === "string" ? parseId(command["base_id"]) : 0n;
  const zstd = command["zstd"] === true ? (ZSTD.compress ?? noZstd()) : undefined;
  return { batch: text(buildBatch(records, { baseId, zstd })) };
}

async function frame(command: Fields): Promise<Fields> {
  const { correlation, batches, message } = decodeFrame(await readFile(command["path"] as string));
  return { member: message.member, correlation, batches: BigInt(batches), fields: exact(message.content ?? {}) };
}

async function main(): Promise<void> {
  const agent = new Agent();
  for await (const line of createInterface({ input: process.stdin })) {
    let answer: Fields;
    try {
      answer = { ok: await agent.perform(parse(line) as Fields) };
    } catch (error) {
      if (!(error instanceof LinnError)) throw error;
      answer = { error: { code: error.code, text: error.message } };
    }
    process.stdout.write(stringify(answer) + "\n");
  }
  await agent.close();
}

await main();
