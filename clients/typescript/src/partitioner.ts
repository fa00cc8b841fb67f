// Which partition a key belongs to: murmur2, as Kafka's default partitioner and every client of linn has it.

import type { Struct } from "./struct.js";

const SEED = 0x9747b28c;
const M = 0x5bd1e995;

/** What a batch's `keyHashes` holds: murmur2 without the sign bit; 0 for a record without a key. */
export function keyHash(key: Uint8Array | null): number {
  if (key === null) return 0;
  const whole = key.length & ~3;
  const view = new DataView(key.buffer, key.byteOffset, key.byteLength);
  let hash = SEED ^ key.length;
  for (let at = 0; at < whole; at += 4) {
    let word = Math.imul(view.getInt32(at, true), M);
    word = Math.imul(word ^ (word >>> 24), M);
    hash = Math.imul(hash, M) ^ word;
  }
  if (key.length !== whole) {
    let rest = 0;
    for (let at = key.length - 1; at >= whole; at--) rest = (rest << 8) | key[at]!;
    hash = Math.imul(hash ^ rest, M);
  }
  hash = Math.imul(hash ^ (hash >>> 13), M);
  return (hash ^ (hash >>> 15)) & 0x7fffffff;
}

/** By which a client can place a key itself; "" is a broker that names none. */
const FORESEEN = ["murmur2", ""];

/** The partition of `key` in a topic, as `Client.describe` has it. -1, the broker's choice, where the topic has another
 * partitioner, or no partitions yet. */
export function partitionOf(key: Uint8Array, topic: Pick<Struct<"TopicInfo">, "partitioner" | "partitions">): number {
  const count = topic.partitions.length;
  return count > 0 && FORESEEN.includes(topic.partitioner) ? keyHash(key) % count : -1;
}
