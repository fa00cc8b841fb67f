// A Cap'n Proto message whose root struct holds numbers and lists of bytes only, read in place: a batch, or its body.
//
// Law: one segment, the root struct first. A newer writer may have more numbers, never fewer; fields without a pointer are
// absent, and writers leave out the null pointers at the end.

import { LinnError, malformed } from "./errors.js";

const WORD = 8;
/** Where the root struct's numbers begin. */
export const NUMBERS_AT = 16;
const FIELD_BYTES_MAX = 2 ** 29 - 1;

export type Field = Uint8Array | undefined;

/** Room for a message of `numberBytes` with these fields, their pointers set and their bytes copied; the numbers
 * are 0. */
export function encodeFlat(numberBytes: number, all: readonly Field[]): Buffer {
  const fields = all.slice(0, all.findLastIndex((field) => field !== undefined) + 1);
  const pointersAt = NUMBERS_AT + numberBytes;
  let end = pointersAt + WORD * fields.length;
  for (const field of fields) end += field === undefined ? 0 : padded(field.length);
  const message = Buffer.alloc(end);
  message.writeUInt32LE((end - WORD) / WORD, 4);
  message.writeUInt16LE(numberBytes / WORD, 12);
  message.writeUInt16LE(fields.length, 14);
  let at = pointersAt + WORD * fields.length;
  fields.forEach((field, index) => {
    if (field === undefined) return;
    if (field.length > FIELD_BYTES_MAX) throw new LinnError("batch.too_large", `a field of ${field.length} bytes`);
    const pointerAt = pointersAt + WORD * index;
    message.writeUInt32LE((((at - pointerAt - WORD) / WORD) * 4 + 1) >>> 0, pointerAt);
    message.writeUInt32LE(field.length * 8 + 2, pointerAt + 4);
    message.set(field, at);
    at += padded(field.length);
  });
  return message;
}

/** Throws batch.malformed where the bytes are not one segment whose root has as many numbers, or more. */
export function checkHead(message: Buffer, numberBytes: number): void {
  if (message.length < NUMBERS_AT) throw malformed(`${message.length} bytes hold no message`);
  if (message.readUInt32LE(0) !== 0 || WORD + WORD * message.readUInt32LE(4) !== message.length) {
    throw malformed("a message that is not one segment that fills its frame");
  }
  if (message.readUInt32LE(8) !== 0 || WORD * message.readUInt16LE(12) < numberBytes) {
    throw malformed("the root struct is not first in its segment, or has too few numbers");
  }
}

/** The first fields of a message whose head was checked, as views; undefined where one is absent.
 *
 * Throws batch.malformed where a pointer leads anywhere but to bytes inside the message, or the fields overlap so much
 * that together they are longer than it. */
export function decodeFields(message: Buffer, fieldCount: number): Field[] {
  const pointersAt = NUMBERS_AT + WORD * message.readUInt16LE(12);
  const pointerCount = message.readUInt16LE(14);
  let bytesLeft = message.length - pointersAt - WORD * pointerCount;
  if (bytesLeft < 0) throw malformed("the root struct is cut short");
  const fields = Array<Field>(fieldCount).fill(undefined);
  for (let index = 0; index < Math.min(pointerCount, fieldCount); index++) {
    const pointerAt = pointersAt + WORD * index;
    const low = message.readInt32LE(pointerAt);
    const high = message.readUInt32LE(pointerAt + 4);
    if (low === 0 && high === 0) continue;
    if ((low & 3) !== 1 || (high & 7) !== 2) throw malformed(`field ${index} is not a list of bytes`);
    const start = pointerAt + WORD + WORD * (low >> 2);
    const size = high >>> 3;
    bytesLeft -= size;
    if (low < 0 || start + size > message.length || bytesLeft < 0) {
      throw malformed(`field ${index} leads out of the message`);
    }
    fields[index] = message.subarray(start, start + size);
  }
  return fields;
}

function padded(size: number): number {
  return WORD * Math.ceil(size / WORD);
}
