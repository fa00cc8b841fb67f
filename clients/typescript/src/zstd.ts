// zstd for the bodies of batches. What compresses comes from outside: from Node where it has zstd, or from the
// application.
//
// Law: a frame says its size, which is checked before there is memory for it, and nothing follows it.

import * as zlib from "node:zlib";
import { LinnError, malformed } from "./errors.js";

/** What an application may bring where Node has no zstd (before 22.15). */
export interface Zstd {
  /** The content of one frame, which is `size` bytes. May throw anything where the frame is damaged. */
  decompress(frame: Uint8Array, size: number): Uint8Array;
  /** One frame that says its content's size. Left out: this client can read compressed batches and not write them. */
  compress?(content: Uint8Array): Uint8Array;
}

const MAGIC = 0xfd2fb528;
/** zstd's own advice for decoders: a frame that asks for more is refused, unless its content is as large. */
const WINDOW_BYTES_MAX = 8 << 20;

type NodeZstd = typeof zlib & {
  zstdDecompressSync?(frame: Uint8Array, options: { maxOutputLength: number }): Buffer;
  zstdCompressSync?(content: Uint8Array, options: { pledgedSrcSize: number }): Buffer;
};

/** Node's own zstd; undefined where it has none. */
export function nodeZstd(): Zstd | undefined {
  const { zstdDecompressSync, zstdCompressSync } = zlib as NodeZstd;
  if (zstdDecompressSync === undefined || zstdCompressSync === undefined) return undefined;
  return {
    decompress: (frame, size) => zstdDecompressSync(frame, { maxOutputLength: Math.max(1, size) }),
    compress: (content) => zstdCompressSync(content, { pledgedSrcSize: content.length }),
  };
}

/** Throws message.unsupported. */
export function noZstd(): never {
  throw new LinnError(
    "message.unsupported",
    "codec unsupported: zstd needs Node 22.15 or later, or a `zstd` that is given to `connect`",
  );
}

/** The content of the one frame that `frame` is, `size` bytes. Throws batch.malformed. */
export function decompress(zstd: Zstd, frame: Uint8Array, size: number): Buffer {
  checkFrame(Buffer.from(frame.buffer, frame.byteOffset, frame.byteLength), size);
  let content: Uint8Array;
  try {
    content = zstd.decompress(frame, size);
  } catch (error) {
    throw new LinnError("batch.malformed", "the body can't be decompressed", false, { cause: error });
  }
  if (content.length !== size) throw malformed("the body is not of the size that it says");
  return Buffer.from(content.buffer, content.byteOffset, content.byteLength);
}

/** Refuse a frame that does not say its size, says another one, asks for a huge window, or is not all of the bytes. */
function checkFrame(frame: Buffer, size: number): void {
  if (frame.length < 6 || frame.readUInt32LE(0) !== MAGIC) throw malformed("the body is not zstd");
  const descriptor = frame[4]!;
  const single = (descriptor & 0x20) !== 0;
  const sizeBytes = [single ? 1 : 0, 2, 4, 8][descriptor >> 6]!;
  let at = 5;
  const windowByte = frame[at]!;
  if (!single) at += 1;
  if ((descriptor & 3) !== 0) throw malformed("the compressed body asks for a dictionary");
  if (sizeBytes === 0 || at + sizeBytes > frame.length) throw malformed("the compressed body does not say its size");
  if (contentSize(frame, at, sizeBytes) !== BigInt(size)) throw malformed("the compressed body says another size");
  at += sizeBytes;
  const windowBase = 2 ** (10 + (windowByte >> 3));
  const window = single ? size : windowBase + (windowBase / 8) * (windowByte & 7);
  if (window > WINDOW_BYTES_MAX && window > size)
    throw malformed(`the compressed body asks for a window of ${window} bytes`);
  if (endOfBlocks(frame, at) + ((descriptor & 4) !== 0 ? 4 : 0) !== frame.length) {
    throw malformed("the compressed body is not one whole frame");
  }
}

function contentSize(frame: Buffer, at: number, bytes: number): bigint {
  if (bytes === 8) return frame.readBigUInt64LE(at);
  return BigInt(frame.readUIntLE(at, bytes)) + (bytes === 2 ? 256n : 0n);
}

/** The place behind the last block; beyond the frame where it is cut short. */
function endOfBlocks(frame: Buffer, start: number): number {
  let at = start;
  for (let last = false; !last;) {
    if (at + 3 > frame.length) return Infinity;
    const header = frame.readUIntLE(at, 3);
    last = (header & 1) === 1;
    const isRun = ((header >> 1) & 3) === 1;
    at += 3 + (isRun ? 1 : header >> 3);
  }
  return at;
}
