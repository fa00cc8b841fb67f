// SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677): the client's side of one login. No I/O.
//
// Laws: the password does not leave the client, and the broker proves that it knows the user. Each message is taken
// once, and in order. Nonces are compared in full (CVE-2024-56128), and the broker can't make the client compute for
// long. With PLUS the proof covers the certificate of the TLS connection, so that a proxy in between can't use it.

import { createHash, createHmac, timingSafeEqual } from "node:crypto";

export const SCRAM = "SCRAM-SHA-256";
export const SCRAM_PLUS = "SCRAM-SHA-256-PLUS";
export const NONCE_BYTES = 18;
/** The least that RFC 7677 allows: a broker that asks for fewer wants the password to be guessed. */
const ITERATIONS_MIN = 4_096;
/** Some seconds of a core: a broker could keep the client busy with more. */
const ITERATIONS_MAX = 10_000_000;
/** Of a message: the longest name, nonces and a salt have less than a KiB. */
const MESSAGE_BYTES_MAX = 4 << 10;
const BINDING = "tls-server-end-point";

/** A login that the client ends. The text has nothing of the password. */
export class SaslError extends Error {}

/** What the salted password is computed with. */
export interface Salting {
  readonly salt: Buffer;
  readonly iterations: number;
}

/** `first`, `salting`, `final`, `check`, in this order. */
export class ScramClient {
  readonly mechanism: string;
  readonly #header: string;
  readonly #binding: Buffer;
  readonly #nonce: string;
  readonly #bare: string;
  #serverFirst = "";
  #wholeNonce = "";
  #signature: Buffer | undefined;

  /** `nonce`: random text; `offered`: the broker's mechanisms; `binding`: of its certificate, undefined where there is
   * none. Throws SaslError: the broker takes no passwords. */
  constructor(user: string, nonce: string, offered: readonly string[], binding: Buffer | undefined) {
    const plus = binding !== undefined && offered.includes(SCRAM_PLUS);
    if (!plus && !offered.includes(SCRAM)) throw new SaslError("the broker takes no passwords");
    this.mechanism = plus ? SCRAM_PLUS : SCRAM;
    // "y": this client could bind, and was told that the broker can't. A broker that can refuses it: a proxy has
    // changed what was offered.
    const flag = plus ? `p=${BINDING}` : binding === undefined ? "n" : "y";
    this.#header = `${flag},,`;
    this.#binding = plus ? binding : Buffer.alloc(0);
    this.#nonce = nonce;
    this.#bare = `n=${user.replaceAll("=", "=3D").replaceAll(",", "=2C")},r=${nonce}`;
  }

  first(): string {
    return this.#header + this.#bare;
  }

  /** Read the broker's answer; what to compute. Throws SaslError: the broker is not to be trusted. */
  salting(serverFirst: string): Salting {
    if (this.#serverFirst !== "") throw new SaslError("the broker sent its first message twice");
    checkMessage(serverFirst);
    const attributes = serverFirst.split(",").slice(0, 3);
    if (attributes.map((attribute) => attribute.slice(0, 2)).join() !== "r=,s=,i=") {
      throw new SaslError("the broker's answer is not SCRAM");
    }
    const [nonce, salt, count] = attributes.map((attribute) => attribute.slice(2)) as [string, string, string];
    if (!nonce.startsWith(this.#nonce) || nonce.length === this.#nonce.length) {
      throw new SaslError("the broker answered another login");
    }
    if (!/^\d{1,10}$/.test(count)) throw new SaslError("the broker's answer is not SCRAM");
    const iterations = Number(count);
    if (iterations < ITERATIONS_MIN || iterations > ITERATIONS_MAX) {
      const allowed = `${ITERATIONS_MIN} to ${ITERATIONS_MAX} iterations`;
      throw new SaslError(`the broker asks for ${iterations} iterations, and a client computes ${allowed}`);
    }
    const salting = { salt: decoded(salt), iterations };
    if (salting.salt.length === 0) throw new SaslError("the broker's answer is not SCRAM");
    this.#serverFirst = serverFirst;
    this.#wholeNonce = nonce;
    return salting;
  }

  /** The proof, made from the salted password. */
  final(salted: Buffer): string {
    const channel = Buffer.concat([Buffer.from(this.#header), this.#binding]).toString("base64");
    const withoutProof = `c=${channel},r=${this.#wholeNonce}`;
    const signed = `${this.#bare},${this.#serverFirst},${withoutProof}`;
    const clientKey = hmac(salted, "Client Key");
    const clientSignature = hmac(createHash("sha256").update(clientKey).digest(), signed);
    const proof = clientKey.map((byte, index) => byte ^ clientSignature[index]!);
    this.#signature = hmac(hmac(salted, "Server Key"), signed);
    return `${withoutProof},p=${Buffer.from(proof).toString("base64")}`;
  }

  /** Check the broker's own proof. Throws SaslError. */
  check(serverFinal: string): void {
    checkMessage(serverFinal);
    const theirs = serverFinal.startsWith("v=") ? decoded(serverFinal.slice(2).split(",")[0]!) : Buffer.alloc(0);
    const ours = this.#signature;
    if (ours === undefined || theirs.length !== ours.length || !timingSafeEqual(theirs, ours)) {
      throw new SaslError("the broker has not proved that it knows this user");
    }
  }
}

function checkMessage(text: string): void {
  const size = Buffer.byteLength(text);
  if (size > MESSAGE_BYTES_MAX) throw new SaslError(`the broker's message has ${size} bytes`);
  if (text.includes("\0")) throw new SaslError("the broker's message has a NUL");
}

/** Base64 in its one spelling. */
function decoded(text: string): Buffer {
  const bytes = Buffer.from(text, "base64");
  if (bytes.toString("base64") !== text) throw new SaslError("the broker's message is not Base64");
  return bytes;
}

function hmac(key: Buffer, data: string): Buffer {
  return createHmac("sha256", key).update(data).digest();
}
