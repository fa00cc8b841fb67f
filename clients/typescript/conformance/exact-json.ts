// JSON that keeps what JavaScript's own does not: 64-bit integers (bigint), and floats that are whole (1.0 stays a
// number).

export type Json = null | boolean | bigint | number | string | Json[] | { [name: string]: Json };

const TOKEN = /\s*(?:([[\]{},:])|(true|false|null)|(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|("(?:[^"\\]|\\.)*"))/y;

/** Throws SyntaxError. */
export function parse(text: string): Json {
  const parser = new Parser(text);
  const value = parser.value();
  if (text.slice(parser.at).trim() !== "") throw new SyntaxError(`text behind JSON, at ${parser.at}`);
  return value;
}

class Parser {
  at = 0;

  constructor(readonly text: string) {}

  #token(): string {
    TOKEN.lastIndex = this.at;
    const found = TOKEN.exec(this.text);
    if (found === null) throw new SyntaxError(`no JSON at ${this.at}`);
    this.at = TOKEN.lastIndex;
    return found[0].trim();
  }

  #take(expected: string): boolean {
    const before = this.at;
    if (this.#token() === expected) return true;
    this.at = before;
    return false;
  }

  value(): Json {
    const token = this.#token();
    if (token === "[") return this.#list();
    if (token === "{") return this.#object();
    if (/^-?\d+$/.test(token)) return BigInt(token);
    if (/^[\]},:]$/.test(token)) throw new SyntaxError(`no JSON at ${this.at}`);
    return JSON.parse(token) as string | number | boolean | null;
  }

  #list(): Json[] {
    const items: Json[] = [];
    if (this.#take("]")) return items;
    do items.push(this.value());
    while (this.#goesOn("]"));
    return items;
  }

  #object(): { [name: string]: Json } {
    const entries: [string, Json][] = [];
    if (this.#take("}")) return {};
    do {
      const name = this.value();
      if (typeof name !== "string" || !this.#take(":")) throw new SyntaxError(`no name at ${this.at}`);
      entries.push([name, this.value()]);
    } while (this.#goesOn("}"));
    return Object.fromEntries(entries);
  }

  #goesOn(end: string): boolean {
    const token = this.#token();
    if (token !== "," && token !== end) throw new SyntaxError(`neither , nor ${end} at ${this.at}`);
    return token === ",";
  }
}

/** On one line. */
export function stringify(value: Json): string {
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number") return floatText(value);
  if (Array.isArray(value)) return `[${value.map(stringify).join(",")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value)
      .map(([name, item]) => `${JSON.stringify(name)}:${stringify(item)}`)
      .join(",")}}`;
  }
  return JSON.stringify(value);
}

function floatText(value: number): string {
  if (Object.is(value, -0)) return "-0.0";
  const text = String(value);
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

/** A plain value whose numbers are all integers. */
export function exact(value: unknown): Json {
  if (typeof value === "number") return BigInt(value);
  if (Array.isArray(value)) return value.map(exact);
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, exact(item)]));
  }
  return value as Json;
}
