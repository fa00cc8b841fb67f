import assert from "node:assert/strict";
import { test } from "node:test";
import { LIMITS } from "../src/batch.js";
import { buildBatch, checkRecord } from "../src/batch-builder.js";
import { crc32c } from "../src/crc32c.js";
import { LinnError, RecordBatch, partitionOf, type RecordInput } from "../src/index.js";
import { exact, type Json } from "../conformance/exact-json.js";
import { base64, batchNamed, BATCHES, bytesOf, type Entry } from "./vectors.js";
import { ZSTD } from "./zstd.js";

function read(bytes: Uint8Array, zstd = ZSTD): RecordBatch {
  const batch = new RecordBatch(bytes, LIMITS, zstd);
  batch.verify();
  if (batch.isStamped) batch.checkStamp();
  batch.checkAll();
  return batch;
}

function recordSays(batch: RecordBatch, index: number): Entry {
  return {
    value: base64(batch.value(index)),
    key: base64(batch.key(index)),
    routing_key: batch.routingKey(index),
    labels: batch.labels(index),
    headers: batch.headers(index).map(([name, value]) => [name, base64(value)]),
    timestamp_ms: batch.timestampMs(index),
    id: batch.id(index),
    priority: BigInt(batch.priority(index)),
    delay_ms: BigInt(batch.delayMs(index)),
    ttl_ms: BigInt(batch.ttlMs(index)),
    offset: batch.offset(index),
  };
}

function built(records: RecordInput[], options = {}): Buffer {
  return buildBatch(
    records.map((record) => checkRecord(record, 0)),
    { baseId: 0n, ...options },
  );
}

function codeOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    assert.ok(error instanceof LinnError, String(error));
    return error.code;
  }
  return "";
}

for (const entry of BATCHES) {
  test(`${String(entry["file"])} is read as the manifest says`, () => {
    const bytes = bytesOf(entry);
    if (entry["error"] !== undefined) {
      assert.equal(
        codeOf(() => read(bytes)),
        entry["error"],
      );
      return;
    }
    const batch = read(bytes);
    assert.deepEqual(exact(batch.header), entry["header"]);
    const records = Array.from({ length: batch.count }, (_, index) => recordSays(batch, index));
    assert.deepEqual(records as Json, entry["records"]);
  });
}

test("no damage to a byte does anything but fail with a code of a batch", () => {
  const codes = new Set(["", "batch.malformed", "batch.corrupt", "batch.too_large"]);
  for (const name of ["labels", "headers", "keys", "zstd"]) {
    const whole = batchNamed(name);
    for (let place = 0; place < whole.length; place++) {
      const damaged = Buffer.from(whole);
      damaged[place]! ^= 0x81;
      // Also with a seal that fits, as a hostile producer would send it.
      if (place < 48 || place >= 52) {
        damaged.writeUInt32LE(crc32c(damaged, 52, damaged.length, crc32c(damaged, 0, 16)), 48);
      }
      const code = codeOf(() => read(damaged));
      assert.ok(codes.has(code), `${name}, byte ${place}: ${code}`);
    }
  }
});

test("a batch without its zstd is unsupported, and not malformed", () => {
  const batch = new RecordBatch(batchNamed("zstd"));
  assert.equal(
    codeOf(() => batch.load()),
    "message.unsupported",
  );
});

test("a decompressor's word is not taken for the size", () => {
  const liar = { decompress: (): Uint8Array => new Uint8Array(7) };
  assert.equal(
    codeOf(() => read(batchNamed("zstd"), liar)),
    "batch.malformed",
  );
});

test("what was compressed can be read", () => {
  const batch = new RecordBatch(built([{ value: "x" }], { zstd: storedFrame }), LIMITS, ZSTD);
  assert.equal(batch.header.codec, 1);
  assert.equal(base64(batch.value(0)), base64(Buffer.from("x")));
});

/** A zstd frame of one block that is not compressed. */
function storedFrame(content: Uint8Array): Uint8Array {
  const head = Buffer.from("28b52ffda00000000000000000", "hex").subarray(0, 12);
  head.writeUInt32LE(content.length, 5);
  head.writeUIntLE(content.length * 8 + 1, 9, 3);
  return Buffer.concat([head, content]);
}

test("keys are hashed as every client hashes them", () => {
  const keys = [Buffer.from("a"), null, Buffer.alloc(0), Buffer.from([0, 255])];
  const records = keys.map((key, index) => ({ value: `v${index}`, key, timestampMs: 1_700_000_000_000 }));
  const { header } = new RecordBatch(batchNamed("key-hashes"));
  const baseId = (header.idHigh << 64n) | header.idLow;
  assert.deepEqual(built(records, { baseId, keyHashes: true }), batchNamed("key-hashes"));
  // Kafka's own test has murmur2("21") = -973932308.
  const partitions = Array.from({ length: 100 }, () => ({ leader: 0, startOffset: 0n, highWatermark: 0n, leaderEpoch: 0 }));
  for (const partitioner of ["murmur2", ""]) {
    assert.equal(partitionOf(Buffer.from("21"), { partitioner, partitions }), (-973_932_308 & 0x7fffffff) % 100);
  }
});

test("the broker chooses where a client can't foresee it", () => {
  const partitions = [{ leader: 0, startOffset: 0n, highWatermark: 0n, leaderEpoch: 0 }];
  assert.equal(partitionOf(Buffer.from("21"), { partitioner: "murmur2", partitions }), 0);
  for (const partitioner of ["sticky", "by-region"]) {
    assert.equal(partitionOf(Buffer.from("21"), { partitioner, partitions }), -1);
  }
  assert.equal(partitionOf(Buffer.from("21"), { partitioner: "murmur2", partitions: [] }), -1, "none yet");
});

test("the CRC of nine digits is Castagnoli's", () => {
  assert.equal(crc32c(Buffer.from("123456789")), 0xe3069283);
  assert.equal(crc32c(Buffer.from("56789"), 0, 5, crc32c(Buffer.from("1234"))), 0xe3069283);
});

test("an id counts over 2^128 - 1 to 0", () => {
  const batch = new RecordBatch(built([{ value: "" }, { value: "" }], { baseId: (1n << 128n) - 1n }));
  assert.deepEqual(
    [batch.id(0), batch.id(1)],
    ["ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"],
  );
});

test("labels keep their names and types, whatever JavaScript does with them", () => {
  const labels = new Map<string, string | bigint | number | boolean>([
    ["__proto__", 1n],
    ["constructor", 1],
    ["\ufeffbom", "\ufeff"],
    ["nan", NaN],
  ]);
  const batch = new RecordBatch(
    built([
      { value: "", labels },
      { value: "", labels: { x: 0 } },
      { value: "", labels: { x: -0 } },
    ]),
  );
  assert.deepEqual(new Map(Object.entries(batch.labels(0))), labels);
  assert.equal(batch.header.pairCount, 3);
  assert.ok(Object.is(batch.labels(2)["x"], -0));
});

const WRONG: [string, object][] = [
  ["a value of another type", { value: 7 }],
  ["no value", {}],
  ["half a surrogate pair in a value", { value: "\ud800" }],
  ["half a surrogate pair in a routing key", { value: "", routingKey: "\udfff" }],
  ["a long routing key", { value: "", routingKey: "ä".repeat(2_049) }],
  ["a label of another type", { value: "", labels: { x: null } }],
  ["a label over 64 bits", { value: "", labels: { x: 1n << 63n } }],
  ["a header of another type", { value: "", headers: { h: 1 } }],
  ["an id that is none", { value: "", id: "7" }],
  ["a priority over 255", { value: "", priority: 256 }],
  ["half a millisecond", { value: "", delayMs: 0.5 }],
  ["a timestamp over 64 bits", { value: "", timestampMs: 1n << 63n }],
  ["a timestamp that is no number", { value: "", timestampMs: NaN }],
];

for (const [what, record] of WRONG) {
  test(`${what} can't be carried`, () => {
    assert.equal(
      codeOf(() => checkRecord(record as RecordInput, 0)),
      "message.invalid",
    );
  });
}
