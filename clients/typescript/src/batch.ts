// RecordBatch: the unit in which messages are sent, stored and delivered. See docs/reference/batch-format.md.
//
// Laws: what a peer sent is checked before it is read, and a batch that fails is refused whole; items are read when
// they are asked for, as views of the batch's bytes.

import { BinaryColumn, readOffsets } from "./column.js";
import { crc32c } from "./crc32c.js";
import { LinnError, malformed } from "./errors.js";
import { checkHead, decodeFields, NUMBERS_AT, type Field } from "./flat-message.js";
import type { Headers, LabelValue } from "./record.js";
import { decodeRoutes, NO_PAIR, type Pair } from "./routes.js";
import { formatId, idPlus } from "./uuid.js";
import { decompress, noZstd, type Zstd } from "./zstd.js";

export const NUMBER_BYTES = 112;
const FIELD = {
  body: 0,
  routes: 1,
  routeIndex: 2,
  keyHashes: 3,
  priorities: 4,
  delaysMs: 5,
  ttlsMs: 6,
  ids: 7,
  offsetDeltas: 8,
} as const;
export const FIELD_COUNT = 9;
const OFFSET_SPAN_MAX = 2 ** 31 - 1;
const BODY_FIELD_COUNT = 13;
const [STAMP_CRC_AT, CRC_AT, SEALED_AT] = [44, 48, 52];
export const CODEC = { none: 0, zstd: 1 } as const;
/** In `attributes`: the broker chose the partition, so that the sequences of its producer have gaps there. */
export const SCATTERED = 4;
const NATIVE = 0;
/** Bytes per record of each field; the first two, body and routes, are no columns. */
const COLUMN_WIDTHS = [0, 0, 2, 4, 1, 4, 4, 16, 4];
const NAMES = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** What a reader allows. */
export interface BatchLimits {
  /** Of the batch, and of its body when decompressed. */
  batchBytesMax: number;
  recordsMax: number;
}

export const LIMITS: BatchLimits = { batchBytesMax: 8 << 20, recordsMax: 1 << 20 };

/** The numbers of a batch, by their names in the schema. Those of 64 bits are bigint. */
export interface BatchHeader {
  readonly baseOffset: bigint;
  readonly appendTimeMs: bigint;
  readonly durableOffset: bigint;
  readonly leaderEpoch: number;
  readonly stampCrc: number;
  readonly crc: number;
  readonly count: number;
  readonly firstTimestampMs: bigint;
  readonly maxTimestampMs: bigint;
  readonly producerId: bigint;
  readonly firstSequence: number;
  readonly producerEpoch: number;
  readonly attributes: number;
  readonly codec: number;
  readonly format: number;
  readonly pairCount: number;
  readonly bodyBytes: number;
  readonly idHigh: bigint;
  readonly idLow: bigint;
  readonly transaction: bigint;
  readonly offsetSpan: number;
}

function readHeader(message: Buffer): BatchHeader {
  return {
    baseOffset: message.readBigInt64LE(16),
    appendTimeMs: message.readBigInt64LE(24),
    durableOffset: message.readBigInt64LE(32),
    leaderEpoch: message.readInt32LE(40),
    stampCrc: message.readUInt32LE(STAMP_CRC_AT),
    crc: message.readUInt32LE(CRC_AT),
    count: message.readUInt32LE(52),
    firstTimestampMs: message.readBigInt64LE(56),
    maxTimestampMs: message.readBigInt64LE(64),
    producerId: message.readBigInt64LE(72),
    firstSequence: message.readUInt32LE(80),
    producerEpoch: message.readUInt16LE(84),
    attributes: message.readUInt16LE(86),
    codec: message.readUInt8(88),
    format: message.readUInt8(89),
    pairCount: message.readUInt16LE(90),
    bodyBytes: message.readUInt32LE(92),
    idHigh: message.readBigUInt64LE(96),
    idLow: message.readBigUInt64LE(104),
    transaction: message.readBigUInt64LE(112),
    offsetSpan: message.readUInt32LE(120),
  };
}

/** The CRC of what a producer seals: all but the stamp and the CRC itself. */
function sealedCrc(message: Buffer): number {
  return crc32c(message, SEALED_AT, message.length, crc32c(message, 0, NUMBERS_AT));
}

/** Write the CRC of a finished message in its place. */
export function seal(message: Buffer): void {
  message.writeUInt32LE(sealedCrc(message), CRC_AT);
}

/** The columns that only readers need. */
interface Body {
  timestampsMs: Buffer | undefined;
  keys: BinaryColumn | undefined;
  values: BinaryColumn;
  headers: { offsets: Int32Array; names: BinaryColumn; values: BinaryColumn } | undefined;
}

/** One batch. Its bytes must not be changed while it is in use. */
export class RecordBatch {
  readonly header: BatchHeader;
  readonly message: Buffer;
  readonly #limits: BatchLimits;
  readonly #zstd: Zstd | undefined;
  readonly #baseId: bigint;
  #verified: Field[] | undefined;
  #pairs: Pair[] | undefined;
  #body: Body | undefined;

  /** Look at the numbers of a message. The rest is checked by `verify`, or when it is read.
   *
   * Throws batch.malformed, batch.too_large. */
  constructor(bytes: Uint8Array, limits: BatchLimits = LIMITS, zstd?: Zstd) {
    const message = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    if (message.length > limits.batchBytesMax) throw tooLarge(`a batch of ${message.length} bytes`);
    checkHead(message, NUMBER_BYTES);
    this.message = message;
    this.header = readHeader(message);
    this.#limits = limits;
    this.#zstd = zstd;
    this.#baseId = (this.header.idHigh << 64n) | this.header.idLow;
  }

  /** Check the seal, and the fields that lie outside of the body.
   *
   * Throws batch.corrupt (the seal does not fit), batch.malformed, batch.too_large. */
  verify(): void {
    this.#verified ??= this.#verify();
  }

  /** Whether `verify` has found nothing. */
  get isVerified(): boolean {
    return this.#verified !== undefined;
  }

  get #fields(): Field[] {
    this.verify();
    return this.#verified!;
  }

  #verify(): Field[] {
    const { count, bodyBytes, pairCount, crc } = this.header;
    if (sealedCrc(this.message) !== crc) throw corrupt("the CRC of a batch does not match");
    if (bodyBytes > this.#limits.batchBytesMax) throw tooLarge(`a batch whose body has ${bodyBytes} bytes`);
    if (count === 0 || count > this.#limits.recordsMax) throw malformed(`a batch says that it holds ${count} records`);
    const fields = decodeFields(this.message, FIELD_COUNT);
    const has = (place: number): boolean => fields[place] !== undefined;
    if (has(FIELD.routes) !== pairCount > 0) throw malformed("a batch's routes do not fit pairCount");
    if (has(FIELD.routeIndex) !== pairCount > 1) throw malformed("a batch's route index does not fit pairCount");
    COLUMN_WIDTHS.forEach((width, place) => {
      const column = fields[place];
      if (width > 0 && column !== undefined && column.length !== width * count) {
        throw malformed(`column ${place} does not fit ${count} records`);
      }
    });
    this.#checkOffsets(fields[FIELD.offsetDeltas] as Buffer | undefined);
    return fields;
  }

  #checkOffsets(deltas: Buffer | undefined): void {
    const { count, offsetSpan } = this.header;
    if (offsetSpan < count || offsetSpan > OFFSET_SPAN_MAX || (deltas !== undefined) !== offsetSpan > count) {
      throw malformed(`the offsets of a batch of ${count} records do not fit its span of ${offsetSpan}`);
    }
    let next = 0;
    for (let at = 0; deltas !== undefined && at < deltas.length; at += 4) {
      const delta = deltas.readUInt32LE(at);
      if (delta < next || delta >= offsetSpan) throw malformed("a batch's offsets do not ascend, or exceed its span");
      next = delta + 1;
    }
  }

  /** Check the leader's stamp, for bytes that a log has stored. Throws batch.corrupt. */
  checkStamp(): void {
    if (crc32c(this.message, NUMBERS_AT, STAMP_CRC_AT) !== this.header.stampCrc) {
      throw corrupt("the CRC of a batch's stamp does not match");
    }
  }

  /** Whether a leader has stamped it: a producer leaves the stamp's bytes zero. */
  get isStamped(): boolean {
    return this.message.subarray(NUMBERS_AT, CRC_AT).some((byte) => byte !== 0);
  }

  /** Check all of it now, each record too. Throws as `verify`, and message.unsupported (zstd, and none at hand). */
  checkAll(): void {
    this.load();
    for (let index = 0; index < this.count; index++) this.headers(index);
  }

  /** Check all but the names of headers. Throws as `checkAll`. */
  load(): void {
    this.#loadedBody();
    this.#loadedPairs();
  }

  get count(): number {
    return this.header.count;
  }

  /** The offset behind the last one that the batch covers. */
  get endOffset(): bigint {
    return this.header.baseOffset + BigInt(this.header.offsetSpan);
  }

  /** The offset of a record; `endOffset` for the index behind the last. Throws as `verify` where the batch has gaps. */
  offset(index: number): bigint {
    return index === this.count ? this.endOffset : this.header.baseOffset + BigInt(this.#delta(index));
  }

  /** The number of records before an offset. Throws as `verify` where the batch has gaps. */
  indexAt(offset: bigint): number {
    const delta = Number(offset - this.header.baseOffset);
    if (this.header.offsetSpan === this.count) return Math.min(Math.max(0, delta), this.count);
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.#delta(middle) < delta) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #delta(index: number): number {
    return this.header.offsetSpan === this.count ? index : this.#uint32(FIELD.offsetDeltas, index);
  }

  // --- records ---

  value(index: number): Uint8Array | null {
    return this.#loadedBody().values.get(index);
  }

  key(index: number): Uint8Array | null {
    return this.#loadedBody().keys?.get(index) ?? null;
  }

  timestampMs(index: number): bigint {
    return this.#loadedBody().timestampsMs?.readBigInt64LE(8 * index) ?? this.header.firstTimestampMs;
  }

  /** In order; names may repeat. Throws batch.malformed where a name is not UTF-8. */
  headers(index: number): Headers {
    const { headers } = this.#loadedBody();
    if (headers === undefined) return [];
    const found: [string, Uint8Array | null][] = [];
    for (let entry = headers.offsets[index]!; entry < headers.offsets[index + 1]!; entry++) {
      found.push([decodeName(headers.names.get(entry)!), headers.values.get(entry)]);
    }
    return found;
  }

  routingKey(index: number): string {
    return this.#pair(index).routingKey;
  }

  labels(index: number): Record<string, LabelValue> {
    return Object.fromEntries(this.#pair(index).labels);
  }

  /** A UUID. */
  id(index: number): string {
    const ids = this.#fields[FIELD.ids];
    if (ids === undefined) return formatId(idPlus(this.#baseId, index));
    return formatId(BigInt("0x" + Buffer.from(ids.subarray(16 * index, 16 * index + 16)).toString("hex")));
  }

  priority(index: number): number {
    return this.#fields[FIELD.priorities]?.[index] ?? 0;
  }

  delayMs(index: number): number {
    return this.#uint32(FIELD.delaysMs, index);
  }

  ttlMs(index: number): number {
    return this.#uint32(FIELD.ttlsMs, index);
  }

  #uint32(place: number, index: number): number {
    return (this.#fields[place] as Buffer | undefined)?.readUInt32LE(4 * index) ?? 0;
  }

  #pair(index: number): Pair {
    const which = (this.#fields[FIELD.routeIndex] as Buffer | undefined)?.readUInt16LE(2 * index) ?? 0;
    return this.#loadedPairs()[which]!;
  }

  // --- what is decoded once ---

  #loadedPairs(): Pair[] {
    if (this.#pairs === undefined) {
      const [, routes, index] = this.#fields as Buffer[];
      const pairs = routes === undefined ? [NO_PAIR] : decodeRoutes(routes, this.header.pairCount);
      for (let record = 0; index !== undefined && record < this.count; record++) {
        if (index.readUInt16LE(2 * record) >= pairs.length) {
          throw malformed("a record names a (routing key, labels) pair that the batch does not hold");
        }
      }
      this.#pairs = pairs;
    }
    return this.#pairs;
  }

  #loadedBody(): Body {
    return (this.#body ??= readBody(this.#bodyBytes(), this.count));
  }

  #bodyBytes(): Buffer {
    const { codec, format, bodyBytes } = this.header;
    const field = this.#fields[FIELD.body] as Buffer | undefined;
    if (field === undefined) throw malformed("a batch has no body");
    if (format !== NATIVE) throw malformed(`the body is of format ${format}, which this reader does not know`);
    if (codec === CODEC.zstd) return this.#zstd === undefined ? noZstd() : decompress(this.#zstd, field, bodyBytes);
    if (codec !== CODEC.none) throw malformed(`codec ${codec} is unknown`);
    if (field.length !== bodyBytes) throw malformed("a batch's body is not of the size that it says");
    return field;
  }
}

function readBody(bytes: Buffer, count: number): Body {
  checkHead(bytes, 0);
  const fields = decodeFields(bytes, BODY_FIELD_COUNT);
  const [ends, values, times, keyEnds, keys, keyBits, bits, headerEnds, nameEnds, names, headerValueEnds] = fields;
  if (times !== undefined && times.length !== 8 * count) throw malformed(`the timestamps do not fit ${count} records`);
  let headers: Body["headers"];
  if (headerEnds !== undefined) {
    const offsets = readOffsets(headerEnds, count, "headers");
    const entries = offsets[count]!;
    headers = {
      offsets,
      names: BinaryColumn.read(nameEnds, names, undefined, entries, "header names"),
      values: BinaryColumn.read(headerValueEnds, fields[11], fields[12], entries, "header values"),
    };
  }
  return {
    timestampsMs: times as Buffer | undefined,
    keys: keyEnds === undefined ? undefined : BinaryColumn.read(keyEnds, keys, keyBits, count, "keys"),
    values: BinaryColumn.read(ends, values, bits, count, "values"),
    headers,
  };
}

function decodeName(name: Uint8Array): string {
  try {
    return NAMES.decode(name);
  } catch (error) {
    throw new LinnError("batch.malformed", "the name of a header is not UTF-8", false, { cause: error });
  }
}

function corrupt(text: string): LinnError {
  return new LinnError("batch.corrupt", text);
}

function tooLarge(text: string): LinnError {
  return new LinnError("batch.too_large", text);
}
