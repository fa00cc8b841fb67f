// A broker's URL: linn://HOST[:PORT], linn://[V6][:PORT], the same with linns:// for TLS, or linn+unix:///PATH.
// Several brokers of a cluster are separated by commas: linn://HOST[:PORT],HOST[:PORT].

import type { NetConnectOpts } from "node:net";
import { LinnError } from "./errors.js";

/** L-I-N-N on a telephone. */
const PORT = 5466;
const TCP = /^linns?:\/\/(?:\[([0-9a-f:.]+(?:%[\w.-]+)?)\]|([^\s/:@?#[\],]+))(?::(\d{1,5}))?\/?$/i;
const UNIX = /^linn\+unix:\/\/(\/[^?#]+)$/;

/** Where to connect to, and the name that the broker's certificate must have; without one there is no TLS. */
export type Address = NetConnectOpts & { tlsHost?: string };

/** The most addresses in one URL: an attempt to connect tries all of them, one after another. */
export const ADDRESSES_MAX = 32;

/** The addresses of a URL, in its order, of which there is one at least. Throws as `addressOf`. */
export function addressesOf(url: string): Address[] {
  const [, scheme, rest] = /^(linns?:\/\/)(.*,.*)$/is.exec(url) ?? [];
  if (scheme === undefined || rest === undefined || url.includes("@")) return [addressOf(url)];
  const places = rest.split(",");
  if (places.length > ADDRESSES_MAX) {
    throw new LinnError("listener.address_invalid", `a URL has at most ${ADDRESSES_MAX} addresses`);
  }
  return places.map((place) => addressOf(scheme + place));
}

/** Where to connect to: an address as brokers tell it to clients. Throws listener.address_invalid. */
export function placeOf(address: string, isTls: boolean): Address {
  return address.startsWith("unix:") ? { path: address.slice(5) } : addressOf(`${isTls ? "linns" : "linn"}://${address}`);
}

/** Where to connect to: a URL with one address. Throws listener.address_invalid, which repeats no password. */
export function addressOf(url: string): Address {
  if (url.includes("@") && !/^linn\+unix:\/\/\//i.test(url)) {
    throw new LinnError(
      "listener.address_invalid",
      "a URL of linn has no user and no password: leave out all up to the '@'",
    );
  }
  const unix = UNIX.exec(url);
  const tcp = TCP.exec(url);
  try {
    if (unix !== null) return { path: decodeURIComponent(unix[1]!) };
    const port = Number(tcp?.[3] ?? PORT);
    if (tcp !== null && port > 0 && port <= 65_535) {
      const host = (tcp[1] ?? tcp[2])!;
      return /^linns:/i.test(url) ? { host, port, tlsHost: host } : { host, port };
    }
  } catch (error) {
    if (!(error instanceof URIError)) throw error;
  }
  throw new LinnError(
    "listener.address_invalid",
    `${JSON.stringify(url)} is not linn://HOST[:PORT], linns://HOST[:PORT] or linn+unix:///PATH, with three slashes`,
  );
}
