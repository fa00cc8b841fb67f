// Message ids: 128 bits, as a bigint for counting and as text for people.

import { invalid } from "./errors.js";

const MASK = (1n << 128n) - 1n;
const TEXT = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const VERSION_7 = 7n << 76n;
const VARIANT = 2n << 62n;
/** Bits that are left to count a batch's records in. */
const COUNTED = 30n;

/** `id` + `index`, modulo 2^128. */
export function idPlus(id: bigint, index: number): bigint {
  return (id + BigInt(index)) & MASK;
}

/** Throws message.invalid where the text is no UUID. */
export function parseId(text: string): bigint {
  if (!TEXT.test(text)) throw invalid(`no UUID: ${JSON.stringify(text)}`);
  return BigInt("0x" + text.replaceAll("-", ""));
}

export function formatId(id: bigint): string {
  const digits = id.toString(16).padStart(32, "0");
  return [digits.slice(0, 8), digits.slice(8, 12), digits.slice(12, 16), digits.slice(16, 20), digits.slice(20)].join(
    "-",
  );
}

/** An id for the first record of a batch, version 7, whose low bits are 0. `random` has 16 bytes. */
export function baseId(nowMs: number, random: Uint8Array): bigint {
  let bits = 0n;
  for (const byte of random) bits = (bits << 8n) | BigInt(byte);
  const high = bits & (0xfffn << 64n);
  const low = bits & ((1n << 62n) - 1n) & ~((1n << COUNTED) - 1n);
  return (BigInt(nowMs) << 80n) | VERSION_7 | high | VARIANT | low;
}
