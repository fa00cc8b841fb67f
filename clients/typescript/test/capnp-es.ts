// capnp-es with code that it generates from schema/ for this run of the tests.

import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import { Data, List, Message, Struct } from "capnp-es";
import { compileAll } from "capnp-es/compiler";
import type { Json } from "../conformance/exact-json.js";

type StructClass = Parameters<typeof Message.initRoot>[0];
type Fields = Record<string, unknown>;

const SCHEMAS = fileURLToPath(new URL("../../../../schema/", import.meta.url));
/** Below the package, so that what is generated finds capnp-es; its files lie with the others that a build makes. */
const GENERATED = new URL("../capnp-es/", import.meta.url);

/** What the compiler says about the schemas, a CodeGeneratorRequest; undefined where it is not on this machine. */
export function compiledSchemas(): Buffer | undefined {
  const schemas = ["protocol", "batch"].map((name) => `${SCHEMAS}${name}.capnp`);
  try {
    return execFileSync("capnp", ["compile", "-o-", `--src-prefix=${SCHEMAS}`, ...schemas]);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** The classes that capnp-es generates, by the names of their structs. */
export async function generate(compiled: Buffer): Promise<Record<string, StructClass>> {
  const { files } = await compileAll(compiled, { js: true, ts: false, dts: false });
  mkdirSync(GENERATED, { recursive: true });
  const classes = {};
  for (const [path, code] of files) {
    const target = new URL(basename(path), GENERATED);
    writeFileSync(target, code);
    Object.assign(classes, await import(target.href));
  }
  return classes;
}

export function readRoot(bytes: Uint8Array, of: StructClass): Struct {
  return new Message(bytes, false).getRoot(of);
}

/** The names of a struct's fields; one without content (Void) can only be set. */
export function fieldNames(struct: Struct): string[] {
  const members = Object.entries(Object.getOwnPropertyDescriptors(Object.getPrototypeOf(struct)));
  const accessors = members.filter(([, { value }]) => value === undefined).map(([name]) => name);
  return accessors.filter((name) => !name.startsWith("_"));
}

export function get(struct: Struct, name: string): unknown {
  return (struct as unknown as Fields)[name];
}

/** Whether a field is the one of its union that is set. */
export function isSet(struct: Struct, name: string): boolean {
  return get(struct, generated("is", name)) === true;
}

/** Make room for a field; undefined where it has no content. */
export function init(struct: Struct, name: string, length?: number): unknown {
  return call(struct, "init", name, length);
}

function call(struct: Struct, verb: string, name: string, ...args: unknown[]): unknown {
  const method = get(struct, generated(verb, name)) as ((...args: unknown[]) => unknown) | undefined;
  return method?.apply(struct, args);
}

/** The name of what is generated besides a field: `_initEntries`, `_hasBody`, `_isHello`. */
function generated(verb: string, name: string): string {
  return `_${verb}${name.charAt(0).toUpperCase()}${name.slice(1)}`;
}

/** What was read, as plain values: an object for a struct, an array for a list, bytes for Data (null: absent). */
export function plain(value: unknown): unknown {
  if (value instanceof Data) return value.toUint8Array();
  if (value instanceof List) return value.toArray().map(plain);
  if (!(value instanceof Struct)) return value;
  return Object.fromEntries(fieldNames(value).map((name) => [name, plainField(value, name)]));
}

function plainField(struct: Struct, name: string): unknown {
  // First: a getter of Data that is absent puts empty Data into the message.
  const isThere = call(struct, "has", name);
  const value = get(struct, name);
  return value instanceof Data && isThere === false ? null : plain(value);
}

/** Set every field that `content` names. */
export function fill(struct: Struct, content: { [name: string]: Json }): void {
  for (const [name, value] of Object.entries(content)) {
    if (!Array.isArray(value)) {
      (struct as unknown as Fields)[name] = like(get(struct, name), value);
      continue;
    }
    const list = init(struct, name, value.length) as List<unknown>;
    value.forEach((item, index) => {
      const old = list.get(index);
      if (old instanceof Struct) fill(old, item as { [name: string]: Json });
      else list.set(index, like(old, item));
    });
  }
}

/** An integer in the type of the one that it replaces. */
function like(old: unknown, value: Json): unknown {
  return typeof old === "number" ? Number(value) : value;
}
