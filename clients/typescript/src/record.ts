// Record: one message, with everything that it may carry.

/** A label's value keeps its type: a bigint is a 64-bit integer, a number always a float. 1n and 1 are two labels. */
export type LabelValue = string | bigint | number | boolean;
export type Labels = Readonly<Record<string, LabelValue>>;
/** In order; names may repeat. */
export type Headers = readonly (readonly [name: string, value: Uint8Array | null])[];

/** A message to be published. Text is a JavaScript string without lone surrogates. */
export interface RecordInput {
  /** The content; null: a tombstone. */
  value: Uint8Array | string | null;
  /** What partitioning goes by. */
  key?: Uint8Array | string | null;
  /** What direct and topic exchanges go by. */
  routingKey?: string;
  /** What exchanges can see besides. */
  labels?: Labels | ReadonlyMap<string, LabelValue>;
  /** What only readers see. */
  headers?: Headers | Readonly<Record<string, Uint8Array | string | null>>;
  /** A UUID; drawn by the client where there is none. */
  id?: string;
  /** When it was made, ms since 1970; now, where there is none. */
  timestampMs?: number | bigint;
  /** 0 to 255, higher first where a topic orders by priority. */
  priority?: number;
  /** Not to be delivered before this long after it was stored. */
  delayMs?: number;
  /** Not to be delivered later than this long after it was stored; 0: no limit. */
  ttlMs?: number;
}
