import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeFrame, encodeFrame, type Request } from "../src/codec.js";
import { FrameCutter } from "../src/framing.js";
import { LinnError } from "../src/index.js";
import { exact } from "../conformance/exact-json.js";
import { bytesOf, FRAMES } from "./vectors.js";

const WHOLE = FRAMES.filter((entry) => entry["error"] === undefined);

for (const entry of FRAMES) {
  test(`${String(entry["file"])} is read as the manifest says`, () => {
    if (entry["error"] !== undefined) {
      assert.throws(() => decodeFrame(bytesOf(entry)), { code: entry["error"] });
      return;
    }
    const { correlation, batches, message } = decodeFrame(bytesOf(entry));
    assert.deepEqual(
      [message.member, correlation, BigInt(batches), exact(message.content ?? {})],
      [entry["member"], entry["correlation"], entry["batches"], entry["fields"]],
    );
    if (message.member === "unknown") return;
    const again = encodeFrame(message as Request, correlation, batches);
    assert.deepEqual(decodeFrame(again), { correlation, batches, message });
  });
}

test("no damage to a byte does anything but fail with protocol.malformed", () => {
  for (const entry of WHOLE) {
    const whole = bytesOf(entry);
    for (let place = 0; place < whole.length; place++) {
      for (const mask of [0x01, 0x80]) {
        const damaged = Buffer.from(whole);
        damaged[place]! ^= mask;
        try {
          decodeFrame(damaged);
        } catch (error) {
          assert.ok(error instanceof LinnError && error.code === "protocol.malformed", String(error));
        }
      }
    }
  }
});

test("a text keeps its byte order mark and its NULs", () => {
  const reason = "\ufeffa\0b";
  const { message } = decodeFrame(encodeFrame({ member: "goodbye", content: { reason } }));
  assert.deepEqual(message.content, { reason });
});

test("any chunks of the same bytes give the same frames", () => {
  const frames = WHOLE.map(bytesOf);
  const stream = Buffer.concat(frames);
  for (const size of [1, 3, 7, 64, 1_000, stream.length]) {
    const cutter = new FrameCutter(1 << 20);
    const found: Buffer[] = [];
    for (let at = 0; at < stream.length; at += size) found.push(...cutter.push(stream.subarray(at, at + size)));
    assert.deepEqual(found, frames, `chunks of ${size}`);
  }
});

function codeOf(head: string, frameBytesMax = 1 << 20): string {
  try {
    Array.from(new FrameCutter(frameBytesMax).push(Buffer.from(head, "hex")));
  } catch (error) {
    return (error as LinnError).code;
  }
  return "";
}

test("a frame is refused by its head, before there is memory for it", () => {
  assert.equal(codeOf("00000000ffffffff"), "protocol.frame_too_large");
  assert.equal(codeOf("0000000001000000", 15), "protocol.frame_too_large");
  assert.equal(codeOf("0000000001000000", 16), "");
  assert.equal(codeOf("0000000000000000"), "protocol.malformed");
  assert.equal(codeOf("ffffffff00000000"), "protocol.malformed");
  assert.equal(codeOf("4000000000000000"), "protocol.malformed");
  assert.equal(codeOf("3f00000000000000"), "", "64 segments are allowed");
});
