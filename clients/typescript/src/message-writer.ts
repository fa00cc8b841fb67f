// Writes Cap'n Proto messages of one segment: control messages and routes.
//
// Law: objects lie in the order in which they were asked for, so that equal content gives equal bytes.

import { STRUCTS } from "./layout.js";
import type { Entry, StructInput, StructName } from "./struct.js";

const WORD = 8;
/** The segment table and the root pointer. */
const HEAD_BYTES = 2 * WORD;
const [STRUCT, LIST] = [0, 1];

/** A struct that is being written. Its places count from the start of the message. */
export interface Target {
  numbersAt: number;
  pointersAt: number;
}

export class MessageWriter {
  #buffer = Buffer.alloc(512);
  #end = HEAD_BYTES;

  /** The root struct; once, and first. */
  root(words: number, pointers: number): Target {
    return this.struct(WORD, words, pointers);
  }

  /** A struct behind what there is, which the pointer at `pointerAt` leads to. */
  struct(pointerAt: number, words: number, pointers: number): Target {
    const at = this.#allocate(words + pointers);
    this.#point(pointerAt, at, STRUCT, (words | (pointers << 16)) >>> 0);
    return { numbersAt: at, pointersAt: at + WORD * words };
  }

  /** A list of structs, which the pointer at `pointerAt` leads to. */
  structs(pointerAt: number, count: number, words: number, pointers: number): Target[] {
    const size = words + pointers;
    const at = this.#allocate(1 + count * size);
    this.#point(pointerAt, at, LIST, ((count * size) << 3) | 7);
    this.#buffer.writeUInt32LE((count << 2) >>> 0, at);
    this.#buffer.writeUInt16LE(words, at + 4);
    this.#buffer.writeUInt16LE(pointers, at + 6);
    return Array.from({ length: count }, (_, index) => {
      const numbersAt = at + WORD + WORD * size * index;
      return { numbersAt, pointersAt: numbersAt + WORD * words };
    });
  }

  text(pointerAt: number, text: string): void {
    const size = Buffer.byteLength(text) + 1;
    const at = this.#allocate(Math.ceil(size / WORD));
    this.#buffer.write(text, at, "utf8");
    this.#point(pointerAt, at, LIST, ((size << 3) | 2) >>> 0);
  }

  number(entry: Entry, target: Target, value: number | bigint | boolean): void {
    const [kind, place] = entry;
    const at = target.numbersAt + place;
    const fallback = typeof entry[2] === "number" ? entry[2] : 0;
    switch (kind) {
      case "bool":
        if (value) this.#buffer[target.numbersAt + (place >> 3)]! |= 1 << (place & 7);
        break;
      case "u16":
        this.#buffer.writeUInt16LE(Number(value) ^ fallback, at);
        break;
      case "u32":
        this.#buffer.writeUInt32LE((Number(value) ^ fallback) >>> 0, at);
        break;
      case "i32":
        this.#buffer.writeInt32LE(Number(value) ^ fallback, at);
        break;
      case "u64":
        this.#buffer.writeBigUInt64LE(BigInt(value) ^ BigInt(fallback), at);
        break;
      case "i64":
        this.#buffer.writeBigInt64LE(BigInt(value) ^ BigInt(fallback), at);
        break;
      case "f64":
        this.#buffer.writeDoubleLE(Number(value), at);
        break;
    }
  }

  /** All fields of a struct; those that are left out keep their defaults. */
  fill<Name extends StructName>(name: Name, target: Target, content: StructInput<Name>): void {
    for (const [field, entry] of Object.entries(STRUCTS[name].fields) as [string, Entry][]) {
      const value: unknown = content[field as keyof StructInput<Name>];
      if (value === undefined) continue;
      const pointerAt = target.pointersAt + WORD * entry[1];
      switch (entry[0]) {
        case "text":
          if (value !== "") this.text(pointerAt, value as string);
          break;
        case "texts":
          this.#texts(pointerAt, value as string[]);
          break;
        case "i32s":
        case "u32s":
        case "i64s":
          this.#numbers(pointerAt, entry[0], value as (number | bigint)[]);
          break;
        case "structs":
          this.#fillStructs(entry[2], pointerAt, value as StructInput<StructName>[]);
          break;
        default:
          this.number(entry, target, value as number);
      }
    }
  }

  #fillStructs(name: StructName, pointerAt: number, contents: StructInput<StructName>[]): void {
    if (contents.length === 0) return;
    const { words, pointers } = STRUCTS[name];
    const targets = this.structs(pointerAt, contents.length, words, pointers);
    contents.forEach((content, index) => this.fill(name, targets[index]!, content));
  }

  #texts(pointerAt: number, texts: string[]): void {
    if (texts.length === 0) return;
    const at = this.#allocate(texts.length);
    this.#point(pointerAt, at, LIST, (texts.length << 3) | 6);
    texts.forEach((text, index) => this.text(at + WORD * index, text));
  }

  #numbers(pointerAt: number, kind: "i32s" | "u32s" | "i64s", numbers: (number | bigint)[]): void {
    if (numbers.length === 0) return;
    const size = kind === "i64s" ? 8 : 4;
    const at = this.#allocate(Math.ceil((numbers.length * size) / WORD));
    this.#point(pointerAt, at, LIST, (numbers.length << 3) | (size === 8 ? 5 : 4));
    const item: Entry = [kind === "i32s" ? "i32" : kind === "u32s" ? "u32" : "i64", 0];
    numbers.forEach((number, index) => this.number(item, { numbersAt: at + size * index, pointersAt: 0 }, number));
  }

  /** The whole message. The writer is used up. */
  finish(): Buffer {
    this.#buffer.writeUInt32LE((this.#end - WORD) / WORD, 4);
    return this.#buffer.subarray(0, this.#end);
  }

  #allocate(words: number): number {
    const at = this.#end;
    this.#end += WORD * words;
    if (this.#end > this.#buffer.length) {
      const larger = Buffer.alloc(Math.max(this.#end, 2 * this.#buffer.length));
      this.#buffer.copy(larger);
      this.#buffer = larger;
    }
    return at;
  }

  #point(pointerAt: number, at: number, kind: number, high: number): void {
    const offset = (at - pointerAt - WORD) / WORD;
    this.#buffer.writeInt32LE((offset << 2) | kind, pointerAt);
    this.#buffer.writeUInt32LE(high >>> 0, pointerAt + 4);
  }
}
