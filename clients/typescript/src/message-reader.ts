// Reads Cap'n Proto messages that a peer sent: control messages and routes. See https://capnproto.org/encoding.html.
//
// Laws: nothing outside of the message is read, whatever its pointers claim; the time and memory that reading takes
// is in proportion to the message's bytes, because each word is paid for out of an allowance; a text is UTF-8 and
// ends in NUL. What is wrong is thrown as a Damage, which callers turn into the error that fits.

import { isUtf8 } from "node:buffer";
import { STRUCTS } from "./layout.js";
import type { Entry, Struct, StructName } from "./struct.js";

export class Damage extends Error {}

const WORD = 8;
const SEGMENTS_MAX = 64;
/** Of any list: what a client may settle at once. */
const ENTRIES_MAX = 65_536;
/** The deepest message, a description, has four levels. */
const NESTING_MAX = 8;
const STRUCT = 0;
const LIST = 1;
const FAR = 2;
/** Kinds of lists, by their items. */
const [BYTES, WORDS_4, WORDS_8, POINTERS, STRUCTS_LIST] = [2, 4, 5, 6, 7] as const;
const BITS_OF_ITEMS = [0, 1, 8, 16, 32, 64, 64];

/** A pointer whose target is known: the half with the kind, the half with the size, and where the target begins. */
interface Pointer {
  low: number;
  high: number;
  segment: DataView;
  target: number;
}

/** Where a struct's numbers and pointers lie. */
interface Place {
  segment: DataView;
  numbersAt: number;
  numberBytes: number;
  pointersAt: number;
  pointerCount: number;
}

/** One message, with its segment table. */
export class MessageReader {
  readonly #segments: DataView[] = [];
  #wordsLeft: number;

  /** Throws Damage where the bytes are not one message, exactly. `entriesMax` bounds each list. */
  constructor(
    message: Uint8Array,
    readonly entriesMax: number = ENTRIES_MAX,
  ) {
    if (message.length < 2 * WORD) throw new Damage(`a message of ${message.length} bytes`);
    const view = viewOf(message);
    const count = view.getUint32(0, true) + 1;
    if (count > SEGMENTS_MAX) throw new Damage(`a message of ${count} segments`);
    let at = WORD * Math.ceil((count + 1) / 2);
    if (at > message.length) throw new Damage("a segment table that is cut short");
    for (let index = 0; index < count; index++) {
      const size = WORD * view.getUint32(4 + 4 * index, true);
      if (at + size > message.length) throw new Damage("a message that is cut short");
      this.#segments.push(viewOf(message.subarray(at, at + size)));
      at += size;
    }
    if (at !== message.length) throw new Damage("bytes behind a message");
    // Twice the words: overlapping pointers can't make a message much larger than it is.
    this.#wordsLeft = 2 * Math.ceil(message.length / WORD) + 64;
  }

  /** The root struct's place; throws Damage where there is none. */
  root(): Place {
    const place = this.#struct(this.#follow(this.#segments[0]!, 0));
    if (place === undefined) throw new Damage("a message without a root struct");
    return place;
  }

  /** The struct that a struct's pointer leads to; undefined where it is null. */
  inner(place: Place, index: number): Place | undefined {
    return this.#struct(this.#pointer(place, index));
  }

  /** The fields of a struct; those that it ends before, or of a struct that is null, have their defaults. */
  read<Name extends StructName>(name: Name, place: Place | undefined, depth = 0): Struct<Name> {
    if (depth > NESTING_MAX) throw new Damage("a message that is nested too deeply");
    const found: Record<string, unknown> = {};
    for (const [field, entry] of Object.entries(STRUCTS[name].fields) as [string, Entry][]) {
      found[field] = this.#field(entry, place, depth);
    }
    return found as Struct<Name>;
  }

  #field(entry: Entry, place: Place | undefined, depth: number): unknown {
    switch (entry[0]) {
      case "text":
        return this.#text(place && this.#pointer(place, entry[1]));
      case "texts":
        return this.#texts(place && this.#pointer(place, entry[1]));
      case "i32s":
        return this.#numbers(place && this.#pointer(place, entry[1]), 4, (segment, at) => segment.getInt32(at, true));
      case "u32s":
        return this.#numbers(place && this.#pointer(place, entry[1]), 4, (segment, at) => segment.getUint32(at, true));
      case "i64s":
        return this.#numbers(place && this.#pointer(place, entry[1]), 8, (segment, at) =>
          segment.getBigInt64(at, true),
        );
      case "structs":
        return this.#structs(entry[2], place && this.#pointer(place, entry[1]), depth);
      default:
        return readNumber(entry, place);
    }
  }

  // --- pointers ---

  #pointer(place: Place, index: number): Pointer | undefined {
    return index < place.pointerCount ? this.#follow(place.segment, place.pointersAt + WORD * index) : undefined;
  }

  /** The pointer at a place that is inside its segment, behind any far pointers; undefined where it is null. */
  #follow(segment: DataView, at: number): Pointer | undefined {
    if (at + WORD > segment.byteLength) throw new Damage("a pointer that leads out of its segment");
    const low = segment.getInt32(at, true);
    const high = segment.getUint32(at + 4, true);
    if (low === 0 && high === 0) return undefined;
    if ((low & 3) === FAR) return this.#far(low, high);
    return { low, high, segment, target: at + WORD + WORD * (low >> 2) };
  }

  #far(low: number, segmentId: number): Pointer {
    const segment = this.#segment(segmentId);
    const at = WORD * (low >>> 3);
    this.#pay(1);
    if ((low & 4) === 0) {
      const found = at + WORD <= segment.byteLength && (segment.getInt32(at, true) & 3) !== FAR;
      const pointer = found ? this.#follow(segment, at) : undefined;
      if (pointer === undefined) throw new Damage("a far pointer that leads to none");
      return pointer;
    }
    if (at + 2 * WORD > segment.byteLength) throw new Damage("a far pointer that leads out of its segment");
    const landing = segment.getInt32(at, true);
    const tag = segment.getInt32(at + WORD, true);
    if ((landing & 7) !== FAR || (tag & ~3) !== 0) throw new Damage("a far pointer that leads to no landing pad");
    return {
      low: tag,
      high: segment.getUint32(at + WORD + 4, true),
      segment: this.#segment(segment.getUint32(at + 4, true)),
      target: WORD * (landing >>> 3),
    };
  }

  #segment(id: number): DataView {
    const segment = this.#segments[id];
    if (segment === undefined) throw new Damage("a far pointer to a segment that is not there");
    return segment;
  }

  #struct(pointer: Pointer | undefined): Place | undefined {
    if (pointer === undefined) return undefined;
    if ((pointer.low & 3) !== STRUCT) throw new Damage("no struct where one should be");
    const numberBytes = WORD * (pointer.high & 0xffff);
    const pointerCount = pointer.high >>> 16;
    this.#claim(pointer, numberBytes + WORD * pointerCount);
    return {
      segment: pointer.segment,
      numbersAt: pointer.target,
      numberBytes,
      pointersAt: pointer.target + numberBytes,
      pointerCount,
    };
  }

  /** Check that a target lies in its segment, and pay for it. */
  #claim(pointer: Pointer, bytes: number): void {
    if (pointer.target < 0 || pointer.target + bytes > pointer.segment.byteLength) {
      throw new Damage("a pointer that leads out of its segment");
    }
    this.#pay(Math.ceil(bytes / WORD));
  }

  #pay(words: number): void {
    this.#wordsLeft -= words;
    if (this.#wordsLeft < 0) throw new Damage("pointers that lead to the same bytes again and again");
  }

  // --- lists ---

  /** The number of items of a list of this kind; -1 where the pointer is null. */
  #items(pointer: Pointer | undefined, kind: number): number {
    if (pointer === undefined) return -1;
    if ((pointer.low & 3) !== LIST || (pointer.high & 7) !== kind)
      throw new Damage("no list of the kind that should be");
    const count = pointer.high >>> 3;
    this.#claim(pointer, Math.ceil((count * BITS_OF_ITEMS[kind]!) / 8));
    return count;
  }

  #bounded(count: number): number {
    if (count > this.entriesMax) throw new Damage(`a list of ${count} entries`);
    return count;
  }

  #text(pointer: Pointer | undefined): string {
    const size = this.#items(pointer, BYTES);
    if (pointer === undefined) return "";
    const { segment, target } = pointer;
    if (size < 1 || segment.getUint8(target + size - 1) !== 0) throw new Damage("a text without its NUL");
    const bytes = Buffer.from(segment.buffer, segment.byteOffset + target, size - 1);
    if (!isUtf8(bytes)) throw new Damage("a text that is not UTF-8");
    return bytes.toString("utf8");
  }

  #texts(pointer: Pointer | undefined): string[] {
    const count = this.#bounded(this.#items(pointer, POINTERS));
    const found: string[] = [];
    for (let index = 0; index < count; index++) {
      found.push(this.#text(this.#follow(pointer!.segment, pointer!.target + WORD * index)));
    }
    return found;
  }

  #numbers<N>(pointer: Pointer | undefined, size: 4 | 8, read: (segment: DataView, at: number) => N): N[] {
    const count = this.#bounded(this.#items(pointer, size === 4 ? WORDS_4 : WORDS_8));
    const found: N[] = [];
    for (let index = 0; index < count; index++) found.push(read(pointer!.segment, pointer!.target + size * index));
    return found;
  }

  #structs(name: StructName, pointer: Pointer | undefined, depth: number): unknown[] {
    if (pointer === undefined) return [];
    if ((pointer.low & 3) !== LIST || (pointer.high & 7) !== STRUCTS_LIST) {
      throw new Damage("no list of structs where one should be");
    }
    const words = pointer.high >>> 3;
    this.#claim(pointer, WORD + WORD * words);
    const { segment, target } = pointer;
    const tag = segment.getUint32(target, true);
    const count = this.#bounded(tag >>> 2);
    const numberBytes = WORD * segment.getUint16(target + 4, true);
    const pointerCount = segment.getUint16(target + 6, true);
    const size = numberBytes + WORD * pointerCount;
    if ((tag & 3) !== STRUCT || count * size > WORD * words) throw new Damage("a list of structs that do not fit it");
    if (size === 0) this.#pay(count);
    const found: unknown[] = [];
    for (let index = 0; index < count; index++) {
      const numbersAt = target + WORD + size * index;
      const place = { segment, numbersAt, numberBytes, pointersAt: numbersAt + numberBytes, pointerCount };
      found.push(this.read(name, place, depth + 1));
    }
    return found;
  }
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** A number of a struct; its default where the struct ends before it. */
export function readNumber(entry: Entry, place: Place | undefined): number | bigint | boolean {
  const [kind, at] = entry;
  const start = kind === "bool" ? at >> 3 : at;
  const inside = place !== undefined && start + BYTES_OF[kind as keyof typeof BYTES_OF] <= place.numberBytes;
  const fallback = typeof entry[2] === "number" ? entry[2] : 0;
  if (!inside) return kind === "bool" ? false : kind === "u64" || kind === "i64" ? BigInt(fallback) : fallback;
  const { segment, numbersAt } = place;
  switch (kind) {
    case "bool":
      return ((segment.getUint8(numbersAt + start) >> (at & 7)) & 1) === 1;
    case "u16":
      return segment.getUint16(numbersAt + at, true) ^ fallback;
    case "u32":
      return (segment.getUint32(numbersAt + at, true) ^ fallback) >>> 0;
    case "i32":
      return segment.getInt32(numbersAt + at, true) ^ fallback;
    case "u64":
      return segment.getBigUint64(numbersAt + at, true) ^ BigInt(fallback);
    case "i64":
      return segment.getBigInt64(numbersAt + at, true) ^ BigInt(fallback);
    case "f64":
      return segment.getFloat64(numbersAt + at, true);
    default:
      throw new Error(`no number: ${kind}`);
  }
}

const BYTES_OF = { bool: 1, u16: 2, u32: 4, i32: 4, u64: 8, i64: 8, f64: 8 };
