// The test vectors of linn, schema/vectors.

import { readFileSync } from "node:fs";
import { parse, type Json } from "../conformance/exact-json.js";

export type Entry = { [name: string]: Json };

const FOLDER = new URL("../../../../schema/vectors/", import.meta.url);
const manifest = parse(readFileSync(new URL("manifest.json", FOLDER), "utf8")) as Entry;

export const BATCHES = manifest["batches"] as Entry[];
export const FRAMES = manifest["frames"] as Entry[];

export function bytesOf(entry: Entry): Buffer {
  return readFileSync(new URL(entry["file"] as string, FOLDER));
}

export function batchNamed(name: string): Buffer {
  return bytesOf({ file: `batches/${name}.bin` });
}

export function base64(bytes: Uint8Array | null): string | null {
  return bytes === null ? null : Buffer.from(bytes).toString("base64");
}
