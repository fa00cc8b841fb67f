// Logins of a client: a user's password, or a token.
//
// Law: no secret is in an error, or where a login is printed.

import { pbkdf2, randomBytes } from "node:crypto";
import { promisify } from "node:util";
import { invalid, LinnError } from "./errors.js";
import { preparedPassword } from "./saslprep.js";
import { NONCE_BYTES, SaslError, ScramClient, type Salting } from "./scram.js";

const BEARER = "OAUTHBEARER";
/** Salted passwords that are kept: one for each broker of a cluster that has its own. */
const SALTED_MAX = 4;
const KEY_BYTES = 32;
/** In threads of Node's own: the event loop goes on. */
const computeKey = promisify(pbkdf2);

/** What a login may know of its connection. */
export interface Channel {
  /** Whether nobody on the way can read it: TLS, or a Unix socket. */
  isPrivate: boolean;
  /** The channel binding of the broker's certificate; undefined where there is none. */
  binding: Buffer | undefined;
}

/** One login on one connection. Its methods throw SaslError where the broker can't be trusted. */
export interface Exchange {
  readonly mechanism: string;
  /** When the login ends, in milliseconds since 1970, as its first message says; Infinity: unknown, or never. */
  readonly endsMs: number;
  /** The first message; of a token, the next one each time. */
  begin(): string | Promise<string>;
  /** The answer to a message of the broker's. */
  answer(data: string): Promise<string>;
  /** Check the broker's last message. */
  end(data: string): void;
}

/** A user's name and password. The password is not sent: both sides prove that they know it (SCRAM-SHA-256). */
export class Password {
  readonly #secret: string;
  readonly #salted = new Map<string, Promise<Buffer>>();

  /** Throws message.invalid. */
  constructor(
    readonly user: string,
    secret: string,
  ) {
    if (!isText(user) || !isText(secret)) throw invalid("a login needs the name of a user and a password");
    this.#secret = secret;
  }

  /** Begin a login; for the client. Throws SaslError: the broker takes no passwords. */
  exchange(offered: readonly string[], { binding }: Channel): Exchange {
    const scram = new ScramClient(this.user, randomBytes(NONCE_BYTES).toString("base64"), offered, binding);
    return {
      mechanism: scram.mechanism,
      endsMs: Infinity,
      begin: () => scram.first(),
      answer: async (data) => scram.final(await this.#salt(scram.salting(data))),
      end: (data) => scram.check(data),
    };
  }

  /** The salted password: computed, or as it was at the last login, so that a new connection takes no time. */
  #salt({ salt, iterations }: Salting): Promise<Buffer> {
    const name = `${iterations} ${salt.toString("base64")}`;
    let salted = this.#salted.get(name);
    if (salted === undefined) {
      salted = computeKey(preparedPassword(this.#secret), salt, iterations, KEY_BYTES, "sha256");
      this.#salted.set(name, salted);
      const [oldest] = this.#salted.keys();
      if (this.#salted.size > SALTED_MAX) this.#salted.delete(oldest!);
    }
    return salted;
  }
}

/** A token of an identity provider: its text, or a function that returns the present one. The function is called at each
 * connection, and shortly before the end of a token: with a later one the client logs in again on the same connection. */
export class Token {
  readonly #token: string | (() => string | Promise<string>);

  /** Throws message.invalid. */
  constructor(token: string | (() => string | Promise<string>)) {
    if (typeof token !== "function" && !isText(token)) throw invalid("a token is text, or a function that returns it");
    this.#token = token;
  }

  /** Begin a login; for the client. Throws SaslError: the broker takes no tokens, or others could read this one. */
  exchange(offered: readonly string[], { isPrivate }: Channel): Exchange {
    if (!offered.includes(BEARER)) throw new SaslError("the broker takes no tokens on this connection");
    if (!isPrivate) throw new SaslError("a token is sent only in TLS, and over Unix sockets");
    let endsMs = Infinity;
    return {
      mechanism: BEARER,
      get endsMs() {
        return endsMs;
      },
      begin: async () => {
        const token = await this.#present();
        // There is no next one of a text.
        if (typeof this.#token === "function") endsMs = endOf(token);
        return `n,,\x01auth=Bearer ${token}\x01\x01`;
      },
      answer: () => Promise.reject(new SaslError("a token has one message")),
      end: () => {},
    };
  }

  async #present(): Promise<string> {
    const text: unknown = typeof this.#token === "function" ? await present(this.#token) : this.#token;
    if (typeof text !== "string" || !/^[\x20-\x7e]+$/.test(text)) throw invalid("a token is printable ASCII");
    return text;
  }
}

export type Login = Password | Token;

/** Throws message.invalid where the option is no login. */
export function checkedLogin(login: unknown): Login | undefined {
  if (login === undefined || login instanceof Password || login instanceof Token) return login;
  throw invalid("login must be a Password or a Token");
}

/** Begin the login that a broker asks for. Throws auth.failed: there is none, or the broker does not take it. */
export function beginLogin(login: Login | undefined, offered: readonly string[], channel: Channel): Exchange {
  if (login === undefined) {
    throw authFailed("the broker requires a login: connect(url, { login: new Password(...) or new Token(...) })");
  }
  try {
    return login.exchange(offered, channel);
  } catch (error) {
    if (!(error instanceof SaslError)) throw error;
    throw authFailed(`${error.message}; it takes ${offered.join(", ") || "nothing"}`);
  }
}

export function authFailed(text: string): LinnError {
  return new LinnError("auth.failed", text);
}

/** A program that can't get a token now may get one later. */
async function present(token: () => string | Promise<string>): Promise<string> {
  try {
    return await token();
  } catch (error) {
    throw new LinnError("connection.failed", "no token: the function of the login failed", true, { cause: error });
  }
}

/** The `exp` of a JSON Web Token (RFC 7519, 4.1.4). The broker checks tokens: here it only says when the next is due. */
function endOf(token: string): number {
  try {
    const claims: unknown = JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString());
    const ends = (claims as { exp?: unknown } | null)?.exp;
    return typeof ends === "number" && Math.abs(ends) < 1e12 ? ends * 1000 : Infinity;
  } catch {
    return Infinity;
  }
}

function isText(text: unknown): text is string {
  return typeof text === "string" && text !== "" && text.isWellFormed();
}
