// What the table in layout.ts says, as types: the fields of each struct with the types that they have in TypeScript.

import type { STRUCTS } from "./layout.js";

export type StructName = keyof typeof STRUCTS;

/** [kind, place or index, default or struct]. */
export type Entry =
  | readonly ["bool" | "u16" | "u32" | "i32" | "u64" | "i64" | "f64", number, number?]
  | readonly ["text" | "texts" | "i32s" | "u32s" | "i64s", number]
  | readonly ["structs", number, StructName];

type Value<E> = E extends readonly ["structs", number, infer Name extends StructName]
  ? Struct<Name>[]
  : E extends readonly [infer Kind, ...unknown[]]
    ? Kind extends "text"
      ? string
      : Kind extends "texts"
        ? string[]
        : Kind extends "i32s" | "u32s"
          ? number[]
          : Kind extends "i64s"
            ? bigint[]
            : Kind extends "bool"
              ? boolean
              : Kind extends "u64" | "i64"
                ? bigint
                : number
    : never;

type FieldsOf<Name extends StructName> = (typeof STRUCTS)[Name]["fields"];

/** A struct's fields as plain values. Numbers of 64 bits are bigint. */
export type Struct<Name extends StructName> = {
  -readonly [Field in keyof FieldsOf<Name>]: Value<FieldsOf<Name>[Field]>;
};

/** A struct to be written: what is left out has its default. */
export type StructInput<Name extends StructName> = {
  -readonly [Field in keyof FieldsOf<Name>]?: FieldsOf<Name>[Field] extends readonly [
    "structs",
    number,
    infer Inner extends StructName,
  ]
    ? StructInput<Inner>[]
    : Value<FieldsOf<Name>[Field]>;
};
