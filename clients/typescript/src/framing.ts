// Cuts a byte stream into Cap'n Proto messages. No I/O.
//
// Laws: any chunks of the same bytes give the same messages; a message's size is known and checked before there is
// memory for it, and memory is taken only for what has come.

import { protocolError } from "./errors.js";

const WORD = 8;
const SEGMENTS_MAX = 64;

export class FrameCutter {
  /** A message with more bytes is refused. */
  frameBytesMax: number;
  #chunks: Buffer[] = [];
  #held = 0;
  #needed = WORD;

  constructor(frameBytesMax: number) {
    this.frameBytesMax = frameBytesMax;
  }

  /** The messages that are whole now, each in memory of its own.
   *
   * Throws protocol.malformed, protocol.frame_too_large: the stream can't be cut any more. */
  *push(chunk: Buffer): Generator<Buffer> {
    this.#chunks.push(chunk);
    this.#held += chunk.length;
    while (this.#held >= this.#needed) {
      const bytes = this.#joined();
      const size = this.#sizeOf(bytes);
      if (bytes.length < size) {
        this.#needed = size;
        return;
      }
      this.#chunks = bytes.length > size ? [bytes.subarray(size)] : [];
      this.#held = bytes.length - size;
      this.#needed = WORD;
      // A copy: a small message that is kept would keep the whole chunk that it came in.
      yield Buffer.from(bytes.subarray(0, size));
    }
  }

  #joined(): Buffer {
    if (this.#chunks.length > 1) this.#chunks = [Buffer.concat(this.#chunks)];
    return this.#chunks[0]!;
  }

  /** Bytes of the message that begins here, or as many as are needed to know. */
  #sizeOf(bytes: Buffer): number {
    const count = bytes.readUInt32LE(0) + 1;
    if (count > SEGMENTS_MAX) throw protocolError(`a frame of ${count} segments: this is not linn's protocol`);
    let size = WORD * Math.ceil((count + 1) / 2);
    if (bytes.length < size) return size;
    let words = 0;
    for (let index = 0; index < count; index++) words += bytes.readUInt32LE(4 + 4 * index);
    size += WORD * words;
    if (size > this.frameBytesMax) {
      throw protocolError(`a frame of ${size} bytes, more than ${this.frameBytesMax}`, "protocol.frame_too_large");
    }
    if (words === 0) throw protocolError("an empty frame");
    return size;
  }
}
