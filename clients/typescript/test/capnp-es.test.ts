// The client's own reader and writer of Cap'n Proto against capnp-es: the same bytes must say the same to both.
//
// The last tests hold what README.md says about capnp-es.

import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { Message, type Struct } from "capnp-es";
import { exact } from "../conformance/exact-json.js";
import { CODEC, FIELD_COUNT, LIMITS, NUMBER_BYTES, RecordBatch } from "../src/batch.js";
import { decodeFrame, encodeFrame, type Request } from "../src/codec.js";
import { checkHead, decodeFields } from "../src/flat-message.js";
import { decompress } from "../src/zstd.js";
import { compiledSchemas, fieldNames, fill, generate, get, init, isSet, plain, readRoot } from "./capnp-es.js";
import { base64, BATCHES, bytesOf, FRAMES, type Entry } from "./vectors.js";
import { ZSTD } from "./zstd.js";

const COMPILED = compiledSchemas();
const WHOLE = FRAMES.filter((entry) => entry["error"] === undefined);
const DAMAGED = FRAMES.filter((entry) => entry["error"] !== undefined);
const BODY_FIELD_COUNT = 13;
const LABEL_KINDS = ["text", "int", "float", "bool"];

describe("capnp-es", { skip: COMPILED === undefined && "no capnp compiler (Debian: capnproto)" }, () => {
  let classes: Awaited<ReturnType<typeof generate>>;

  before(async () => {
    classes = await generate(COMPILED!);
  });

  /** A control message as capnp-es reads it, in the manifest's words. */
  function frameSays(bytes: Uint8Array): Entry {
    const frame = readRoot(bytes, classes["Frame"]!);
    const members = fieldNames(frame).filter((name) => isSet(frame, name));
    assert.ok(members.length <= 1);
    return {
      member: members[0] ?? "unknown",
      correlation: exact(get(frame, "correlation")),
      batches: exact(get(frame, "batches")),
      fields: members[0] === undefined ? {} : exact(plain(get(frame, members[0])) ?? {}),
    };
  }

  /** The control message of an entry of the manifest as capnp-es writes it. */
  function frameWritten({ member, correlation, batches, fields }: Entry): Buffer {
    const message = new Message();
    const frame = message.initRoot(classes["Frame"]!);
    fill(frame, { correlation: correlation!, batches: batches! });
    const content = init(frame, member as string);
    if (content === undefined) fill(frame, { [member as string]: true });
    else fill(content as Struct, fields as Entry);
    return Buffer.from(message.toArrayBuffer());
  }

  for (const entry of WHOLE) {
    test(`reads ${String(entry["file"])} as linn does`, () => {
      const bytes = bytesOf(entry);
      assert.deepEqual(frameSays(bytes), misread(linnSays(bytes)));
    });
    if (entry["member"] === "unknown") continue;
    test(`reads what linn writes for ${String(entry["file"])}`, () => {
      const { correlation, batches, message } = decodeFrame(bytesOf(entry));
      const bytes = encodeFrame(message as Request, correlation, batches);
      assert.deepEqual(frameSays(bytes), misread(linnSays(bytes)));
    });
    test(`writes what linn reads as ${String(entry["file"])}`, () => {
      const { member, correlation, batches, fields } = entry;
      assert.deepEqual(linnSays(frameWritten(entry)), { member, correlation, batches, fields });
    });
  }

  for (const entry of BATCHES.filter(({ error }) => error === undefined)) {
    test(`reads ${String(entry["file"])} as linn does`, () => {
      const bytes = bytesOf(entry);
      const batch = new RecordBatch(bytes, LIMITS, ZSTD);
      batch.load();
      const { numbers, columns } = flatSays(readRoot(bytes, classes["RecordBatch"]!));
      assert.deepEqual(numbers, exact(batch.header));
      assert.deepEqual(columns.slice(0, FIELD_COUNT), linnFields(bytes, NUMBER_BYTES, FIELD_COUNT));
      assert.ok(columns.slice(FIELD_COUNT).every((column) => column === null), "the broker's own columns stay there");

      const [, routes, routeIndex] = decodeFields(batch.message, FIELD_COUNT) as (Buffer | undefined)[];
      const pairs = routes === undefined ? [NO_PAIR] : routesSay(readRoot(routes, classes["Routes"]!));
      for (let index = 0; index < batch.count; index++) {
        const pair = { routingKey: batch.routingKey(index), labels: batch.labels(index) };
        assert.deepEqual(pair, pairs[routeIndex?.readUInt16LE(2 * index) ?? 0]);
      }

      const body = bodyOf(batch);
      const said = flatSays(readRoot(body, classes["Body"]!));
      assert.deepEqual(said, { numbers: {}, columns: linnFields(body, 0, BODY_FIELD_COUNT) });
    });
  }

  // --- what README.md says ---

  test("reads damaged frames that linn refuses", () => {
    const read = DAMAGED.filter((entry) => {
      try {
        frameSays(bytesOf(entry));
        return true;
      } catch {
        return false;
      }
    });
    assert.deepEqual(
      read.map(({ file }) => file),
      ["longer", "text-end", "text-out", "text-utf-8", "text-surrogate", "list-shared"].map(
        (name) => `frames/damaged-${name}.bin`,
      ),
    );
  });

  test("takes 24 MB for the entries that a frame of 64 bytes claims, which linn refuses", () => {
    const bytes = Buffer.alloc(64);
    bytes.set(frameWritten({ member: "published", correlation: 0n, batches: 0n, fields: { placements: [] } }));
    bytes.writeUInt32LE(bytes.length / 8 - 1, 4);
    bytes.writeUInt32LE(1_000_000 << 2, 48); // The list's tag: so many structs,
    bytes.writeUInt32LE(0, 52); // of no size.
    assert.throws(() => decodeFrame(bytes), { code: "protocol.malformed" });
    const message = new Message(bytes, false);
    const published = get(message.getRoot(classes["Frame"]!), "published") as Struct;
    assert.equal((get(published, "placements") as unknown[]).length, 1_000_000);
    assert.ok(message.toArrayBuffer().byteLength > 24_000_000);
  });

  test("drops a text's byte order mark", () => {
    const bytes = encodeFrame({ member: "goodbye", content: { reason: "\ufeffdone" } });
    assert.deepEqual(frameSays(bytes)["fields"], { reason: "done" });
  });

  test("writes to the message that it reads", () => {
    const message = new Message(bytesOf({ file: "frames/null.bin" }), false);
    const whole = Buffer.from(message.toArrayBuffer());
    plain(get(message.getRoot(classes["Frame"]!), "published"));
    assert.notDeepEqual(Buffer.from(message.toArrayBuffer()), whole);
  });
});

/** What capnp-es makes of what linn reads: of an Int32's default it takes the low half only. */
function misread(said: Entry): Entry {
  if (said["member"] !== "publish") return said;
  const fields = said["fields"] as Entry;
  const partition = BigInt.asIntN(32, (fields["partition"] as bigint) ^ 0xffff0000n);
  return { ...said, fields: { ...fields, partition } };
}

function linnSays(bytes: Uint8Array): Entry {
  const { correlation, batches, message } = decodeFrame(bytes);
  return { member: message.member, correlation, batches: BigInt(batches), fields: exact(message.content ?? {}) };
}

/** The numbers of a flat message's root by their names, and its fields in order. */
function flatSays(root: Struct): { numbers: Entry; columns: (string | null)[] } {
  const entries = Object.entries(plain(root) as object);
  const isColumn = (value: unknown): value is Uint8Array | null => value === null || value instanceof Uint8Array;
  return {
    numbers: exact(Object.fromEntries(entries.filter(([, value]) => !isColumn(value)))) as Entry,
    columns: entries.flatMap(([, value]) => (isColumn(value) ? [base64(value)] : [])),
  };
}

function linnFields(message: Buffer, numberBytes: number, count: number): (string | null)[] {
  checkHead(message, numberBytes);
  return decodeFields(message, count).map((field) => base64(field ?? null));
}

const NO_PAIR = { routingKey: "", labels: {} };

function routesSay(routes: Struct): (typeof NO_PAIR)[] {
  return (get(routes, "pairs") as Struct[]).map((pair) => {
    const labels = (get(pair, "labels") as Struct[]).map((label) => {
      const value = get(label, "value") as Struct & { which(): number };
      return [get(label, "name"), get(value, LABEL_KINDS[value.which()]!)] as const;
    });
    return { routingKey: get(pair, "routingKey") as string, labels: Object.fromEntries(labels) };
  });
}

function bodyOf(batch: RecordBatch): Buffer {
  const body = decodeFields(batch.message, FIELD_COUNT)[0] as Buffer;
  return batch.header.codec === CODEC.none ? body : decompress(ZSTD, body, batch.header.bodyBytes);
}
