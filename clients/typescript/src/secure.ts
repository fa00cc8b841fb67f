// TLS of a connection: who is trusted, and what the client shows.

import { readFileSync } from "node:fs";
import { isIP, type Socket } from "node:net";
import { checkServerIdentity, connect, type PeerCertificate, type TLSSocket } from "node:tls";
import { invalid, LinnError } from "./errors.js";
import { serverEndPoint } from "./x509.js";

/** For linns:// URLs. Files are in PEM, and are read at each connection. The host's name is always checked. */
export interface Tls {
  /** File of the authorities to trust. Default: those that Node trusts. */
  ca?: string;
  /** File of the client's own certificate, for a broker that asks for one. */
  certificate?: string;
  /** File of its private key. Default: it is in the same file. */
  key?: string;
}

/** Put a connected socket into TLS. Rejects with tls.failed, message.invalid (a file can't be read). */
export function secured(plain: Socket, host: string, tls: Tls, peer: string): Promise<TLSSocket> {
  const { ca, certificate, key = certificate } = tls;
  if (key !== undefined && certificate === undefined) throw invalid("tls: a key needs its certificate");
  const files = { ca: read("ca", ca), cert: read("certificate", certificate), key: read("key", key) };
  return new Promise((resolve, reject) => {
    const failed = (error: Error): void => reject(tlsFailed(peer, error));
    const ended = (): void => reject(new LinnError("connection.lost", `${peer} closed the connection during the TLS handshake`));
    try {
      const socket = connect({
        ...files,
        socket: plain,
        host,
        servername: isIP(host) ? "" : host,
        minVersion: "TLSv1.2",
        checkServerIdentity: (_, shown) => checkName(host, shown),
      });
      socket.once("error", failed);
      socket.once("close", ended);
      socket.once("secureConnect", () => {
        socket.off("error", failed);
        socket.off("close", ended);
        resolve(socket);
      });
    } catch (error) {
      reject(invalid(`tls: ${(error as Error).message}`));
    }
  });
}

/** The channel binding of the broker's certificate, to which a login is bound; undefined where it has none. */
export function bindingOf(socket: TLSSocket): Buffer | undefined {
  const shown = socket.getPeerX509Certificate();
  return shown === undefined ? undefined : serverEndPoint(shown.raw);
}

/** Only the alternative names count (RFC 9525): Node would take the common name of a certificate that has none. */
function checkName(host: string, shown: PeerCertificate): Error | undefined {
  if (shown.subjectaltname === undefined) return new Error(`the certificate has no alternative names, such as ${host}`);
  return checkServerIdentity(host, shown);
}

/** An error of TLS as one of linn's; a renewed certificate may end it. */
export function tlsFailed(peer: string, error: Error): LinnError {
  const isPlain = /wrong version number|packet length too long/.test(error.message);
  const text = isPlain ? "it does not speak TLS: its URL begins with linn://, not linns://" : error.message;
  return new LinnError("tls.failed", `no TLS connection with ${peer}: ${text}`, true, { cause: error });
}

/** Whether an error of a socket is one of TLS, such as the broker's refusal of the client's certificate. */
export function isOfTls(error: NodeJS.ErrnoException): boolean {
  return error.code?.startsWith("ERR_SSL") === true;
}

function read(option: string, file: string | undefined): Buffer | undefined {
  if (file === undefined) return undefined;
  try {
    return readFileSync(file);
  } catch (error) {
    throw invalid(`tls: ${option}: ${(error as Error).message}`);
  }
}
