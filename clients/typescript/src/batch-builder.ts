// How a batch is made: records by column, joined once and sealed.
//
// Law: equal records with equal options give equal bytes, in every client of linn.

import { CODEC, NUMBER_BYTES, SCATTERED, seal } from "./batch.js";
import { offsetsOf, writeColumn } from "./column.js";
import { invalid } from "./errors.js";
import { encodeFlat, type Field } from "./flat-message.js";
import { keyHash } from "./partitioner.js";
import type { RecordInput } from "./record.js";
import { distinctPairs, encodeRoutes, NO_PAIR, pairBytes, pairOf, type Pair } from "./routes.js";
import { idPlus, parseId } from "./uuid.js";
import type { Zstd } from "./zstd.js";

const INT64_MIN = -(1n << 63n);
const INT64_MAX = (1n << 63n) - 1n;
const UINT32_MAX = 0xffffffff;
const LOW = (1n << 64n) - 1n;
/** What a batch costs per record besides its bytes, about. */
const RECORD_BYTES = 16;

/** A record that can be carried: checked, its texts as bytes. */
export interface CheckedRecord {
  readonly value: Uint8Array | null;
  readonly key: Uint8Array | null;
  readonly pair: Pair;
  readonly headers: readonly (readonly [Uint8Array, Uint8Array | null])[];
  readonly id: bigint | undefined;
  readonly timestampMs: bigint;
  readonly priority: number;
  readonly delayMs: number;
  readonly ttlMs: number;
  /** Bytes of value, key and headers, as a broker counts them against a message's limit. */
  readonly size: number;
}

/** Check one record, so that a wrong one fails alone. Throws message.invalid. */
export function checkRecord(record: RecordInput, nowMs: number): CheckedRecord {
  const value = bytesOf(record.value, "a value");
  const key = bytesOf(record.key ?? null, "a key");
  const headers = headersOf(record.headers);
  const headerBytes = headers.reduce((sum, [name, content]) => sum + name.length + (content?.length ?? 0), 0);
  return {
    value,
    key,
    pair: pairOf(record.routingKey, record.labels),
    headers,
    id: record.id === undefined ? undefined : parseId(record.id),
    timestampMs: int64(record.timestampMs ?? nowMs),
    priority: whole(record.priority ?? 0, "priority", 255),
    delayMs: whole(record.delayMs ?? 0, "delayMs", UINT32_MAX),
    ttlMs: whole(record.ttlMs ?? 0, "ttlMs", UINT32_MAX),
    size: (value?.length ?? 0) + (key?.length ?? 0) + headerBytes,
  };
}

/** Bytes that a record adds to a batch, about. */
export function recordBytes(record: CheckedRecord): number {
  return record.size + RECORD_BYTES + RECORD_BYTES * record.headers.length + pairBytes(record.pair);
}

function bytesOf(content: unknown, what: string): Uint8Array | null {
  if (content === null || content instanceof Uint8Array) return content;
  if (typeof content === "string") return utf8(content, what);
  throw invalid(`${what} must be a Uint8Array, a string or null, not ${typeof content}`);
}

function utf8(text: string, what: string): Uint8Array {
  if (!text.isWellFormed()) throw invalid(`${what} is not valid Unicode`);
  return Buffer.from(text);
}

const NO_HEADERS: CheckedRecord["headers"] = [];

function headersOf(headers: RecordInput["headers"]): CheckedRecord["headers"] {
  if (headers === undefined) return NO_HEADERS;
  const entries: Iterable<readonly [unknown, unknown]> =
    Symbol.iterator in headers ? (headers as Iterable<readonly [unknown, unknown]>) : Object.entries(headers);
  return Array.from(entries, ([name, value]) => {
    if (typeof name !== "string") throw invalid("a header's name must be text");
    return [utf8(name, "a header's name"), bytesOf(value, `header ${JSON.stringify(name)}`)];
  });
}

function whole(number: number, what: string, most: number): number {
  if (Number.isInteger(number) && number >= 0 && number <= most) return number;
  throw invalid(`${what} must be a whole number from 0 to ${most}, not ${number}`);
}

function int64(time: number | bigint): bigint {
  if (typeof time !== "bigint" && !Number.isInteger(time)) {
    throw invalid(`timestampMs must be a whole number, not ${time}`);
  }
  const exact = BigInt(time);
  if (exact < INT64_MIN || exact > INT64_MAX) throw invalid("timestampMs does not fit into 64 bits");
  return exact;
}

/** What tells an idempotent producer's batch from all others. */
export interface Numbers {
  readonly producerId: bigint;
  readonly epoch: number;
  /** Of the first record. */
  readonly firstSequence: number;
  /** Whether the broker chooses the partition. */
  readonly scattered: boolean;
}

export interface BuildOptions {
  /** Id of the first record; the others count on from it, unless they bring ids of their own. */
  baseId: bigint;
  /** Compresses the body. */
  zstd?: Zstd["compress"] | undefined;
  /** Whether to hash the keys, for a broker that chooses the partitions by them. */
  keyHashes?: boolean;
  numbers?: Numbers | undefined;
}

/** A batch of at least one record, sealed. Throws message.invalid, batch.too_large. */
export function buildBatch(records: readonly CheckedRecord[], options: BuildOptions): Buffer {
  if (records.length === 0) throw invalid("a batch holds at least one record");
  const { distinct, index } = distinctPairs(records.map((record) => record.pair));
  const pairs = distinct.length === 1 && distinct[0] === NO_PAIR ? [] : distinct;
  const body = encodeBody(records);
  const encoded = options.zstd === undefined ? body : options.zstd(body);
  const hashed = options.keyHashes === true && records.some((record) => record.key !== null);
  const message = encodeFlat(NUMBER_BYTES, [
    encoded,
    pairs.length > 0 ? encodeRoutes(pairs) : undefined,
    pairs.length > 1 ? bytesOfArray(Uint16Array.from(index)) : undefined,
    hashed ? bytesOfArray(Uint32Array.from(records, (record) => keyHash(record.key))) : undefined,
    unlessZero(Uint8Array.from(records, (record) => record.priority)),
    unlessZero(Uint32Array.from(records, (record) => record.delayMs)),
    unlessZero(Uint32Array.from(records, (record) => record.ttlMs)),
    idsOf(records, options.baseId),
  ]);
  writeNumbers(message, records, pairs.length, options, body.length);
  seal(message);
  return message;
}

function writeNumbers(
  message: Buffer,
  records: readonly CheckedRecord[],
  pairCount: number,
  options: BuildOptions,
  bodyBytes: number,
): void {
  const times = records.map((record) => record.timestampMs);
  message.writeUInt32LE(records.length, 52);
  message.writeBigInt64LE(times[0]!, 56);
  message.writeBigInt64LE(
    times.reduce((most, time) => (time > most ? time : most)),
    64,
  );
  if (options.numbers !== undefined) {
    const { producerId, epoch, firstSequence, scattered } = options.numbers;
    message.writeBigInt64LE(producerId, 72);
    message.writeUInt32LE(firstSequence, 80);
    message.writeUInt16LE(epoch, 84);
    message.writeUInt16LE(scattered ? SCATTERED : 0, 86);
  }
  message.writeUInt8(options.zstd === undefined ? CODEC.none : CODEC.zstd, 88);
  message.writeUInt16LE(pairCount, 90);
  message.writeUInt32LE(bodyBytes, 92);
  message.writeBigUInt64LE(options.baseId >> 64n, 96);
  message.writeBigUInt64LE(options.baseId & LOW, 104);
  message.writeUInt32LE(records.length, 120);
}

function encodeBody(records: readonly CheckedRecord[]): Buffer {
  const first = records[0]!.timestampMs;
  const times = records.some((record) => record.timestampMs !== first)
    ? bytesOfArray(BigInt64Array.from(records, (record) => record.timestampMs))
    : undefined;
  const keys = records.some((record) => record.key !== null)
    ? writeColumn(records.map((record) => record.key))
    : [undefined, undefined, undefined];
  const [ends, values, valueBits] = writeColumn(records.map((record) => record.value));
  return encodeFlat(0, [ends, values, times, ...keys, valueBits, ...headerFields(records)]);
}

function headerFields(records: readonly CheckedRecord[]): Field[] {
  if (records.every((record) => record.headers.length === 0)) return Array<Field>(6).fill(undefined);
  const entries = records.flatMap((record) => record.headers);
  const [nameEnds, names] = writeColumn(entries.map(([name]) => name));
  const offsets = offsetsOf(records.map((record) => record.headers.length));
  return [offsets, nameEnds, names, ...writeColumn(entries.map(([, value]) => value))];
}

function idsOf(records: readonly CheckedRecord[], baseId: bigint): Field {
  if (records.every((record) => record.id === undefined)) return undefined;
  const ids = records.map((record, index) => (record.id ?? idPlus(baseId, index)).toString(16).padStart(32, "0"));
  return Buffer.from(ids.join(""), "hex");
}

function unlessZero(numbers: Uint8Array | Uint32Array): Field {
  return numbers.some((number: number) => number !== 0) ? bytesOfArray(numbers) : undefined;
}

function bytesOfArray(array: ArrayBufferView): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}
