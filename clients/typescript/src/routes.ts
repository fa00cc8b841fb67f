// The distinct (routing key, labels) pairs of a batch: a Routes message. See docs/reference/batch-format.md.
//
// Law: equal pairs in equal order give equal bytes.

import { invalid, malformed } from "./errors.js";
import { STRUCTS } from "./layout.js";
import { Damage, MessageReader } from "./message-reader.js";
import { MessageWriter } from "./message-writer.js";
import type { Labels, LabelValue } from "./record.js";
import type { Struct } from "./struct.js";

const PAIRS_MAX = 65_535;
const LABELS_MAX = 256;
const TEXT_BYTES_MAX = 4_096;
const ROUTES_BYTES_MAX = 2 << 20;
const { Label, Pair: PairStruct, Routes } = STRUCTS;
const WORD = 8;
/** Kinds of a label's value, in the order of the schema's union. */
const KINDS = ["text", "int", "float", "bool"] as const;
const INT_MIN = -(1n << 63n);
const INT_MAX = (1n << 63n) - 1n;

/** Labels are sorted by name. */
export interface Pair {
  readonly routingKey: string;
  readonly labels: readonly (readonly [name: string, value: LabelValue])[];
}

export const NO_PAIR: Pair = { routingKey: "", labels: [] };

/** The pair of a record. Throws message.invalid where it can't be carried. */
export function pairOf(routingKey = "", labels?: Labels | ReadonlyMap<string, LabelValue>): Pair {
  if (routingKey === "" && labels === undefined) return NO_PAIR;
  const entries: [string, LabelValue][] = labels instanceof Map ? [...labels] : Object.entries(labels ?? {});
  if (routingKey === "" && entries.length === 0) return NO_PAIR;
  checkText(routingKey, "a routing key");
  if (entries.length > LABELS_MAX) throw invalid(`${entries.length} labels on one message, more than ${LABELS_MAX}`);
  for (const [name, value] of entries) {
    checkText(name, "a label's name");
    checkValue(name, value);
  }
  return { routingKey, labels: entries.sort(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b))) };
}

/** Bytes that a pair adds to the routes of a batch, about; none if another record has it too. */
export function pairBytes({ routingKey, labels }: Pair): number {
  if (routingKey === "" && labels.length === 0) return 0;
  const sizes = labels.map(([name, value]) => 56 + name.length + (typeof value === "string" ? value.length : 0));
  return sizes.reduce((sum, size) => sum + size, 32 + routingKey.length);
}

function checkText(text: unknown, what: string): void {
  if (typeof text !== "string") throw invalid(`${what} must be text, not ${typeof text}`);
  if (!text.isWellFormed()) throw invalid(`${what} is not valid Unicode`);
  const size = Buffer.byteLength(text);
  if (size > TEXT_BYTES_MAX) throw invalid(`${what} has ${size} bytes, more than ${TEXT_BYTES_MAX}`);
}

function checkValue(name: string, value: unknown): void {
  if (typeof value === "string") checkText(value, `label ${JSON.stringify(name)}`);
  else if (typeof value === "bigint") {
    if (value < INT_MIN || value > INT_MAX) throw invalid(`label ${JSON.stringify(name)} does not fit into 64 bits`);
  } else if (typeof value !== "number" && typeof value !== "boolean") {
    throw invalid(`label ${JSON.stringify(name)} must be text, bigint, number or boolean, not ${typeof value}`);
  }
}

/** The distinct pairs in the order in which records first have them, and which of them each record has. */
export function distinctPairs(pairs: readonly Pair[]): { distinct: Pair[]; index: number[] } {
  const places = new Map<string, number>();
  const distinct: Pair[] = [];
  let last: { pair: Pair; place: number } | undefined;
  const index = pairs.map((pair) => {
    // Most batches have one pair, or none.
    if (last?.pair === pair) return last.place;
    const identity = identityOf(pair);
    let place = places.get(identity);
    if (place === undefined) {
      place = distinct.push(pair) - 1;
      places.set(identity, place);
    }
    last = { pair, place };
    return place;
  });
  return { distinct, index };
}

/** Text that tells 1n from 1 and from true, and 0 from -0. */
function identityOf(pair: Pair): string {
  if (pair.labels.length === 0) return JSON.stringify(pair.routingKey);
  const labels = pair.labels.map(([name, value]) => {
    const exact = Object.is(value, -0) ? "-0" : String(value);
    return [name, typeof value, exact];
  });
  return JSON.stringify([pair.routingKey, labels]);
}

/** The bytes of a batch's `routes`. Throws message.invalid where they are over a limit. */
export function encodeRoutes(pairs: readonly Pair[]): Buffer {
  if (pairs.length > PAIRS_MAX) throw invalid(`${pairs.length} distinct (routing key, labels) pairs in one batch`);
  const writer = new MessageWriter();
  const root = writer.root(Routes.words, Routes.pointers);
  const targets = writer.structs(root.pointersAt, pairs.length, PairStruct.words, PairStruct.pointers);
  pairs.forEach((pair, place) => {
    const target = targets[place]!;
    writer.text(target.pointersAt + WORD * PairStruct.fields.routingKey[1], pair.routingKey);
    if (pair.labels.length > 0)
      writeLabels(writer, target.pointersAt + WORD * PairStruct.fields.labels[1], pair.labels);
  });
  const bytes = writer.finish();
  if (bytes.length > ROUTES_BYTES_MAX)
    throw invalid(`the routing keys and labels of a batch have ${bytes.length} bytes`);
  return bytes;
}

function writeLabels(writer: MessageWriter, pointerAt: number, labels: Pair["labels"]): void {
  const targets = writer.structs(pointerAt, labels.length, Label.words, Label.pointers);
  labels.forEach(([name, value], place) => {
    const target = targets[place]!;
    writer.text(target.pointersAt + WORD * Label.fields.name[1], name);
    const kind = kindOf(value);
    writer.number(Label.fields.which, target, KINDS.indexOf(kind));
    if (typeof value === "string") writer.text(target.pointersAt + WORD * Label.fields.text[1], value);
    else writer.number(Label.fields[kind as "int"], target, value);
  });
}

function kindOf(value: LabelValue): (typeof KINDS)[number] {
  switch (typeof value) {
    case "string":
      return "text";
    case "bigint":
      return "int";
    case "number":
      return "float";
    default:
      return "bool";
  }
}

/** The pairs in a batch's `routes`. Throws batch.malformed. */
export function decodeRoutes(bytes: Uint8Array, count: number): Pair[] {
  if (bytes.length > ROUTES_BYTES_MAX) throw malformed(`the routes of a batch have ${bytes.length} bytes`);
  let pairs: Struct<"Pair">[];
  try {
    const reader = new MessageReader(bytes, PAIRS_MAX);
    pairs = reader.read("Routes", reader.root()).pairs;
  } catch (error) {
    if (error instanceof Damage) throw malformed(`the routes of a batch can't be read: ${error.message}`);
    throw error;
  }
  if (pairs.length !== count) throw malformed(`the batch names ${count} pairs and holds ${pairs.length}`);
  return pairs.map(readPair);
}

function readPair(pair: Struct<"Pair">): Pair {
  if (pair.labels.length > LABELS_MAX) throw malformed(`${pair.labels.length} labels on one message`);
  readText(pair.routingKey);
  let before: Buffer | undefined;
  const labels = pair.labels.map((label): [string, LabelValue] => {
    const name = Buffer.from(readText(label.name));
    if (before !== undefined && Buffer.compare(before, name) >= 0) {
      throw malformed("the labels of a message are not sorted by name, or a name repeats");
    }
    before = name;
    const kind = KINDS[label.which];
    if (kind === undefined) throw malformed(`a label is of kind ${label.which}, which this version does not know`);
    return [label.name, kind === "text" ? readText(label.text) : label[kind]];
  });
  return { routingKey: pair.routingKey, labels };
}

function readText(text: string): string {
  if (Buffer.byteLength(text) > TEXT_BYTES_MAX) throw malformed(`a routing key or label over ${TEXT_BYTES_MAX} bytes`);
  return text;
}
