// The channel binding of a certificate: RFC 5929, tls-server-end-point. Node does not tell by which algorithm a
// certificate is signed, so its outermost fields are walked over; OpenSSL has checked it before.

import { createHash } from "node:crypto";

/** The hash of the binding by the object identifier of a signature (RFC 4055, 5758). SHA-256 stands in for MD5 and
 * SHA-1 (RFC 5929, 4.1). */
const HASHES: Readonly<Record<string, string>> = {
  "2a864886f70d010104": "sha256",
  "2a864886f70d010105": "sha256",
  "2a864886f70d01010e": "sha224",
  "2a864886f70d01010b": "sha256",
  "2a864886f70d01010c": "sha384",
  "2a864886f70d01010d": "sha512",
  "2a8648ce3d0401": "sha256",
  "2a8648ce3d040301": "sha224",
  "2a8648ce3d040302": "sha256",
  "2a8648ce3d040303": "sha384",
  "2a8648ce3d040304": "sha512",
};
const PSS = "2a864886f70d01010a";
const PSS_HASHES: Readonly<Record<string, string>> = {
  "608648016503040204": "sha224",
  "608648016503040201": "sha256",
  "608648016503040202": "sha384",
  "608648016503040203": "sha512",
};
/** In the parameters of RSASSA-PSS, the field of the hash. */
const HASH_FIELD = 0xa0;

interface Value {
  content: Buffer;
  /** What follows it. */
  rest: Buffer;
}

/** The binding of a server's certificate, in DER; undefined where its signature names no hash, as Ed25519: there is
 * none then. Throws a RangeError where it is no certificate. */
export function serverEndPoint(der: Buffer): Buffer | undefined {
  const algorithm = next(next(next(der).content).rest).content;
  const { content: identifier, rest: parameters } = next(algorithm);
  const name = identifier.toString("hex");
  const hash = name === PSS ? pssHash(parameters) : HASHES[name];
  return hash === undefined ? undefined : createHash(hash).update(der).digest();
}

/** RFC 4055, 3.1; SHA-1, the default, counts as SHA-256. */
function pssHash(parameters: Buffer): string | undefined {
  if (parameters.length === 0) return "sha256";
  const { content } = next(parameters);
  if (content[0] !== HASH_FIELD) return "sha256";
  const algorithm = next(next(content).content);
  return PSS_HASHES[next(algorithm.content).content.toString("hex")];
}

/** The first value of some. */
function next(der: Buffer): Value {
  let size = der.readUInt8(1);
  let start = 2;
  if (size & 0x80) {
    const bytes = size & 0x7f;
    size = der.readUIntBE(2, bytes);
    start += bytes;
  }
  if (der.length < start + size) throw new RangeError("a certificate ends too early");
  return { content: der.subarray(start, start + size), rest: der.subarray(start + size) };
}
