// Columns in Arrow's layout: n + 1 Int32 offsets, the bytes, and a bitmap where some items are null.

import { malformed } from "./errors.js";
import type { Field } from "./flat-message.js";

/** Items of variable size. */
export class BinaryColumn {
  private constructor(
    readonly offsets: Int32Array,
    readonly data: Uint8Array,
    readonly validity: Field,
  ) {}

  /** A view of fields that a peer wrote, every offset checked. Throws batch.malformed. */
  static read(offsets: Field, data: Field, validity: Field, count: number, what: string): BinaryColumn {
    const ends = readOffsets(offsets, count, what);
    const bytes = data ?? NOTHING;
    if (ends[count] !== bytes.length) throw malformed(`the offsets of ${what} do not end where their bytes do`);
    if (validity !== undefined && validity.length !== Math.ceil(count / 8)) {
      throw malformed(`the validity of ${what} does not fit ${count} items`);
    }
    return new BinaryColumn(ends, bytes, validity);
  }

  /** An item, as a view; null where it is null. */
  get(index: number): Uint8Array | null {
    const { offsets, data, validity } = this;
    if (validity !== undefined && ((validity[index >> 3]! >> (index & 7)) & 1) === 0) return null;
    return data.subarray(offsets[index]!, offsets[index + 1]!);
  }
}

const NOTHING = new Uint8Array(0);

/** Offsets of `count` items: they begin with 0 and never decrease. Throws batch.malformed. */
export function readOffsets(field: Field, count: number, what: string): Int32Array {
  if (field === undefined || field.length !== 4 * (count + 1)) throw malformed(`the offsets of ${what} do not fit`);
  // A copy, where the bytes are not aligned.
  const bytes = field.byteOffset % 4 === 0 ? field : field.slice();
  const offsets = new Int32Array(bytes.buffer, bytes.byteOffset, count + 1);
  let before = 0;
  if (offsets[0] !== 0) throw malformed(`the offsets of ${what} do not begin with 0`);
  for (const offset of offsets) {
    if (offset < before) throw malformed(`the offsets of ${what} decrease`);
    before = offset;
  }
  return offsets;
}

/** The three fields of a column: offsets, bytes, and a bitmap where an item is null. */
export function writeColumn(items: readonly (Uint8Array | null)[]): [Uint8Array, Uint8Array, Field] {
  const present = items.map((item) => item ?? NOTHING);
  const offsets = offsetsOf(present.map((item) => item.length));
  const validity = items.includes(null) ? bitmapOf(items.map((item) => item !== null)) : undefined;
  return [offsets, Buffer.concat(present), validity];
}

/** Offsets of items of these sizes, as bytes. */
export function offsetsOf(sizes: readonly number[]): Uint8Array {
  const offsets = new Int32Array(sizes.length + 1);
  let end = 0;
  sizes.forEach((size, index) => (offsets[index + 1] = end += size));
  return new Uint8Array(offsets.buffer);
}

function bitmapOf(bits: readonly boolean[]): Uint8Array {
  const bitmap = new Uint8Array(Math.ceil(bits.length / 8));
  bits.forEach((bit, index) => {
    if (bit) bitmap[index >> 3]! |= 1 << (index & 7);
  });
  return bitmap;
}
