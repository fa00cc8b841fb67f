// Control messages to bytes and back, one Frame at a time.

import { protocolError } from "./errors.js";
import { MEMBERS, STRUCTS } from "./layout.js";
import { Damage, MessageReader, readNumber } from "./message-reader.js";
import { MessageWriter } from "./message-writer.js";
import type { Entry, Struct, StructInput, StructName } from "./struct.js";

type Members = (typeof MEMBERS)[number];
export type Member = Members[0];
type NameOf<M extends Member> = Extract<Members, readonly [M, unknown]>[1];
type Content<Name> = Name extends StructName ? Struct<Name> : null;
type ContentInput<Name> = Name extends StructName ? StructInput<Name> : null;

/** A control message: a member of Frame and its fields; null where it has none, or where this version does not know
 * it. */
export type Message = { [M in Member]: { member: M; content: Content<NameOf<M>> } }[Member] | Unknown;
export type MessageOf<M extends Member> = Extract<Message, { member: M }>;
interface Unknown {
  member: "unknown";
  content: null;
}
/** A message to be sent: what is left out has its default. */
export type Request = { [M in Member]: { member: M; content: ContentInput<NameOf<M>> } }[Member];

export interface Frame {
  correlation: bigint;
  /** How many record batches follow. */
  batches: number;
  message: Message;
}

/** Frame's own layout, which never changes: docs/reference/protocol.md. */
const FRAME_WORDS = 2;
const FRAME_POINTERS = 1;
const CORRELATION: Entry = ["u64", 0];
const BATCHES: Entry = ["u16", 8];
const MEMBER: Entry = ["u16", 10];
const NUMBERS = new Map<string, number>(MEMBERS.map(([member], number) => [member, number]));

/** A message as it goes on the wire. */
export function encodeFrame(message: Request, correlation = 0n, batches = 0): Buffer {
  const number = NUMBERS.get(message.member)!;
  const writer = new MessageWriter();
  const root = writer.root(FRAME_WORDS, FRAME_POINTERS);
  writer.number(CORRELATION, root, correlation);
  writer.number(BATCHES, root, batches);
  writer.number(MEMBER, root, number);
  const name = MEMBERS[number]![1];
  if (name !== null) {
    const { words, pointers } = STRUCTS[name];
    writer.fill(name, writer.struct(root.pointersAt, words, pointers), message.content as StructInput<StructName>);
  }
  return writer.finish();
}

/** One whole control message. Throws protocol.malformed where the bytes are not one. */
export function decodeFrame(bytes: Uint8Array): Frame {
  try {
    const reader = new MessageReader(bytes);
    const root = reader.root();
    const [member, name] = MEMBERS[readNumber(MEMBER, root) as number] ?? ["unknown", null];
    const content = name === null ? null : reader.read(name, reader.inner(root, 0));
    return {
      correlation: readNumber(CORRELATION, root) as bigint,
      batches: readNumber(BATCHES, root) as number,
      message: { member, content } as Message,
    };
  } catch (error) {
    if (error instanceof Damage) throw protocolError(`a control message can't be read: ${error.message}`);
    throw error;
  }
}
