// The receiving half of a connection as a pure object: bytes in, messages with their batches out. No I/O.
//
// Law: the batches that a frame announces follow it directly; behind an error there are no more messages.

import { RecordBatch, type BatchLimits } from "./batch.js";
import { decodeFrame, type Frame, type Message } from "./codec.js";
import { protocolError } from "./errors.js";
import { FrameCutter } from "./framing.js";
import type { Zstd } from "./zstd.js";

/** Batches behind one frame. */
const BATCHES_MAX = 1_024;
/** All batches behind one frame together have at most so many times the bytes of the largest frame. */
const FRAMES_BYTES_FACTOR = 2;

/** One message of the broker's, whole. */
export interface Event {
  correlation: bigint;
  message: Message;
  batches: RecordBatch[];
}

export class Receiver {
  readonly #cutter: FrameCutter;
  readonly #limits: BatchLimits;
  readonly #zstd: Zstd | undefined;
  #waiting: Frame | undefined;
  #batches: RecordBatch[] = [];
  #batchBytes = 0;

  constructor(frameBytesMax: number, limits: BatchLimits, zstd: Zstd | undefined) {
    this.#cutter = new FrameCutter(frameBytesMax);
    this.#limits = limits;
    this.#zstd = zstd;
  }

  /** From now on, frames may have so many bytes. */
  allowFrames(frameBytesMax: number): void {
    this.#cutter.frameBytesMax = frameBytesMax;
  }

  /** The messages that are whole now. Throws protocol.malformed and the like, batch.malformed, batch.too_large. */
  *push(chunk: Buffer): Generator<Event> {
    for (const bytes of this.#cutter.push(chunk)) {
      if (this.#waiting === undefined) this.#begin(decodeFrame(bytes));
      else this.#addBatch(bytes);
      const event = this.#whole();
      if (event !== undefined) yield event;
    }
  }

  #begin(frame: Frame): void {
    if (frame.batches > BATCHES_MAX) throw protocolError(`${frame.batches} batches behind one frame`);
    this.#waiting = frame;
    this.#batches = [];
    this.#batchBytes = 0;
  }

  #addBatch(bytes: Buffer): void {
    this.#batchBytes += bytes.length;
    if (this.#batchBytes > FRAMES_BYTES_FACTOR * this.#cutter.frameBytesMax) {
      throw protocolError(`${this.#batchBytes} bytes of batches behind one frame`, "protocol.frame_too_large");
    }
    this.#batches.push(new RecordBatch(bytes, this.#limits, this.#zstd));
  }

  #whole(): Event | undefined {
    const frame = this.#waiting;
    if (frame === undefined || this.#batches.length < frame.batches) return undefined;
    this.#waiting = undefined;
    return { correlation: frame.correlation, message: frame.message, batches: this.#batches };
  }
}
