// Connection: one connection to a broker, from hello to its end.
//
// Laws: messages go out in the order of the calls; each caller is told exactly once how its request ended, before
// anything that the broker sent later is looked at; nothing is read that nobody bounds: answers by their requests,
// pushes by credit.

import { connect as connectSocket, type Socket } from "node:net";
import { LIMITS, type RecordBatch } from "./batch.js";
import { encodeFrame, type Message, type MessageOf, type Request } from "./codec.js";
import { Receiver, type Event } from "./receiver.js";
import { again, clientClosed, connectionLost, goneBy, LinnError, protocolError } from "./errors.js";
import { authFailed, beginLogin, type Channel, type Exchange, type Login } from "./login.js";
import { SaslError } from "./scram.js";
import { bindingOf, isOfTls, secured, tlsFailed, type Tls } from "./secure.js";
import type { Struct } from "./struct.js";
import type { Address } from "./url.js";
import type { Zstd } from "./zstd.js";

const VERSION = 1;
/** Of any message of the broker's: a description of 100,000 partitions, or eight of the largest batches. */
const FRAME_BYTES_MAX = 64 << 20;
/** Of a message before the welcome: a broker that has proved nothing yet takes no more memory. */
const GREETING_BYTES_MAX = 64 << 10;
/** A login's messages in each direction, twice what any takes. */
const LOGIN_MESSAGES_MAX = 8;
/** What may wait for the socket before producers hold back: four of their batches. */
const OUTGOING_BYTES_MAX = 1 << 20;
/** Keepalive intervals without a byte from the broker before the connection is given up. */
const SILENT_INTERVALS_MAX = 3;
/** A client logs in with its next token so long before the end of the one in use, or after half of the time left. */
const RENEWED_AHEAD_MS = 30_000;
/** Until a token is asked for again that was not there yet. */
const TOKEN_TRIED_AGAIN_MS = 1_000;
/** The longest wait until then: a clock that is set is followed. */
const CLOCK_CHECK_MS = 60_000;
/** For what waits to be sent when a client closes. */
const CLOSE_TIMEOUT_MS = 5_000;

export type Welcome = Struct<"Welcome">;

/** Told, once and synchronously, how a request ended. */
export interface Caller {
  answered(message: Message, batches: RecordBatch[]): void;
  failed(error: LinnError): void;
}

/** Takes what the broker sends on its own for one subscription. */
export interface PushHandler {
  pushed(message: Message, batches: RecordBatch[]): void;
  /** The connection is over. */
  lost(error: LinnError): void;
}

export interface ConnectionOptions {
  name: string;
  connectTimeoutMs: number;
  login: Login | undefined;
  tls: Tls;
  zstd: Zstd | undefined;
  /** The longest interval of signs of life; the broker may ask for a shorter one. Default: the broker's. */
  keepaliveMsMax?: number;
}

export class Connection {
  /** Why the connection is over; undefined while it is not. */
  error: LinnError | undefined;
  /** Told when the connection is over, behind all others. */
  onEnd: ((error: LinnError) => void) | undefined;
  readonly subscriptions = new Map<number, PushHandler>();
  #welcome: Welcome | undefined;
  readonly #socket: Socket;
  readonly #receiver: Receiver;
  readonly #callers = new Map<bigint, Caller>();
  #lastCorrelation = 0n;
  #whenReady: (() => void)[] = [];
  #keepalive: NodeJS.Timeout | undefined;
  #renewal: NodeJS.Timeout | undefined;
  #hasSent = false;
  #hasReceived = true;
  #silentTicks = 0;
  #drains = false;
  #isClosing = false;

  private constructor(
    readonly peer: string,
    socket: Socket,
    readonly zstd: Zstd | undefined,
  ) {
    this.#socket = socket;
    this.#receiver = new Receiver(GREETING_BYTES_MAX, LIMITS, zstd);
    socket.on("data", (chunk: Buffer) => this.#received(chunk));
    socket.on("drain", () => this.#callReady());
    socket.on("error", (error) => {
      // In TLS 1.3 a client learns only now that its certificate is not accepted.
      const isRefusal = this.#welcome === undefined && isOfTls(error);
      this.lose(isRefusal ? tlsFailed(peer, error) : connectionLost(`${peer}: ${error.message}`));
    });
    socket.on("close", () => this.lose(connectionLost(`${peer} closed the connection`)));
  }

  /** Connect, with the producer ids of an earlier connection if there was one, log in if the broker asks for it, and be
   * welcomed. Throws connection.failed, connection.lost, tls.failed, auth.failed, protocol.malformed, message.invalid (a
   * login's token), or what the broker says. */
  static async open(
    peer: string,
    address: Address,
    options: ConnectionOptions,
    producerId = 0n,
    producerKey = 0n,
  ): Promise<Connection> {
    const limit = deadline(options.connectTimeoutMs, `${peer} did not answer within ${options.connectTimeoutMs} ms`);
    const { tlsHost, ...place } = address;
    const channel: Channel = { isPrivate: tlsHost !== undefined || "path" in place, binding: undefined };
    let socket = connectSocket(place);
    try {
      await Promise.race([connected(socket, peer), limit.passed]);
      if (tlsHost !== undefined) {
        const secure = await Promise.race([secured(socket, tlsHost, options.tls, peer), limit.passed]);
        channel.binding = bindingOf(secure);
        socket = secure;
      }
      const connection = new Connection(peer, socket, options.zstd);
      // A login may wait for other things than the connection, which must not go on when that is over.
      const ended = new Promise<never>((_, reject) => (connection.onEnd = reject));
      const greeted = connection.#greet(options, channel, producerId, producerKey);
      await Promise.race([greeted, ended, limit.passed]);
      return connection;
    } catch (error) {
      socket.destroy();
      throw error;
    } finally {
      limit.cancel();
    }
  }

  async #greet(
    { name: client, login, keepaliveMsMax = Infinity }: ConnectionOptions,
    channel: Channel,
    producerId: bigint,
    producerKey: bigint,
  ): Promise<void> {
    const features = this.zstd === undefined ? [] : ["zstd"];
    const logsIn = login !== undefined;
    const content = { versionMin: VERSION, versionMax: VERSION, features, client, producerId, producerKey, logsIn };
    let { message } = await this.#answerTo({ member: "hello", content });
    let exchange: Exchange | undefined;
    if (message.member === "challenge") {
      exchange = beginLogin(login, message.content.mechanisms, channel);
      message = await this.#logIn(exchange);
    }
    if (message.member !== "welcome") throw protocolError(`the broker answered hello with ${message.member}`);
    if (message.content.version !== VERSION) {
      throw protocolError(`the broker speaks version ${message.content.version}`, "protocol.version_unsupported");
    }
    this.#receiver.allowFrames(FRAME_BYTES_MAX);
    this.#welcome = message.content;
    const keepaliveMs = Math.min(message.content.keepaliveMs, keepaliveMsMax);
    if (keepaliveMs > 0) this.#keepalive = setInterval(() => this.#tick(keepaliveMs), keepaliveMs / 2).unref();
    if (exchange !== undefined) this.#renewInTime(exchange);
  }

  /** Log in; the broker's answer to the last message. Throws auth.failed. */
  async #logIn(exchange: Exchange): Promise<Message> {
    const { mechanism } = exchange;
    let data = await exchange.begin();
    try {
      for (let messages = 0; messages < LOGIN_MESSAGES_MAX; messages++) {
        const { message } = await this.#answerTo({ member: "authenticate", content: { mechanism, data } });
        if (message.member === "welcome") exchange.end(message.content.login);
        if (message.member !== "challenge") return message;
        data = await exchange.answer(message.content.data);
      }
    } catch (error) {
      if (!(error instanceof SaslError)) throw error;
      throw authFailed(`${this.peer} can't be trusted: ${error.message}`);
    }
    throw authFailed(`${this.peer} does not end the login`);
  }

  #renewInTime(login: Exchange): void {
    const leftMs = login.endsMs - Date.now();
    if (leftMs === Infinity) return;
    // By a clock that is ahead, every token has ended: then not faster than it is tried again.
    const inMs = leftMs > 0 ? leftMs - Math.min(RENEWED_AHEAD_MS, leftMs / 2) : TOKEN_TRIED_AGAIN_MS;
    this.#renewAt(login, Date.now() + inMs);
  }

  #renewAt(login: Exchange, atMs: number): void {
    const leftMs = atMs - Date.now();
    const then = leftMs > CLOCK_CHECK_MS ? () => this.#renewAt(login, atMs) : () => void this.#renew(login);
    this.#renewal = setTimeout(then, Math.max(0, Math.min(leftMs, CLOCK_CHECK_MS))).unref();
  }

  /** Log in with the next token, if there is one yet: where there is none in time, the broker ends the connection. */
  async #renew(login: Exchange): Promise<void> {
    const endsMs = login.endsMs;
    // A function that fails may have more luck the next time.
    const data = await Promise.resolve(login.begin()).catch(() => undefined);
    if (this.error !== undefined) return;
    if (data === undefined || login.endsMs <= endsMs) {
      this.#renewAt(login, Date.now() + TOKEN_TRIED_AGAIN_MS);
      return;
    }
    this.ask(NOBODY, { member: "authenticate", content: { mechanism: login.mechanism, data } });
    this.#renewInTime(login);
  }

  /** What the broker said of itself and its limits. */
  get welcome(): Welcome {
    return this.#welcome!;
  }

  /** Whether a batch may be compressed. */
  get compress(): Zstd["compress"] | undefined {
    const agreed = this.welcome.features.includes("zstd") ? this.zstd : undefined;
    return agreed?.compress && ((content) => agreed.compress!(content));
  }

  // --- sending ---

  /** Whether more requests may be made now; see `whenReady`. */
  get ready(): boolean {
    return (
      this.error === undefined &&
      !this.#drains &&
      this.#socket.writableLength < OUTGOING_BYTES_MAX &&
      this.#callers.size < this.welcome.inflightMax
    );
  }

  /** Whether the broker takes no more requests here, but for settlements: it is stopping. */
  get drains(): boolean {
    return this.#drains;
  }

  /** Whether the connection is over, or the broker is stopping. */
  get isEnding(): boolean {
    return this.error !== undefined || this.#drains;
  }

  /** Call `callback` once when `ready` may have become true, or the connection is over. */
  whenReady(callback: () => void): void {
    this.#whenReady.push(callback);
  }

  /** Send a request; its correlation. On a connection that is over the caller is told so at once. */
  ask(caller: Caller, message: Request, batches: readonly Uint8Array[] = []): bigint {
    if (this.error !== undefined) {
      caller.failed(goneBy(this.error));
      return 0n;
    }
    this.#lastCorrelation += 1n;
    this.#callers.set(this.#lastCorrelation, caller);
    this.#send(message, this.#lastCorrelation, batches);
    return this.#lastCorrelation;
  }

  /** Send a message that has no answer; on a connection that is over it is dropped. */
  tell(message: Request, batches: readonly Uint8Array[] = []): void {
    if (this.error === undefined) this.#send(message, 0n, batches);
  }

  /** Have what `send` sends arrive together, so that the broker does nothing else in between. */
  together<T>(send: () => T): T {
    this.#socket.cork();
    try {
      return send();
    } finally {
      this.#socket.uncork();
    }
  }

  /** The caller of a request does not want to be told any more. */
  forget(correlation: bigint): void {
    if (this.#callers.has(correlation)) this.#callers.set(correlation, NOBODY);
  }

  /** Send a request and wait for its answer, which is of the kind that the protocol says; at most `timeoutMs`. */
  async request<M extends Message["member"]>(
    message: Request,
    answer: M,
    timeoutMs?: number,
  ): Promise<{ message: Extract<Message, { member: M }>; batches: RecordBatch[] }> {
    const { message: found, batches } = await this.#answerTo(message, timeoutMs);
    if (found.member !== answer) throw protocolError(`the broker answered ${message.member} with ${found.member}`);
    return { message: found as Extract<Message, { member: M }>, batches };
  }

  /** Send a request and wait for its answer, of whatever kind; at most `timeoutMs`. */
  async #answerTo(message: Request, timeoutMs?: number): Promise<{ message: Message; batches: RecordBatch[] }> {
    let correlation = 0n;
    const limit = timeoutMs === undefined ? undefined : timeLimit(message.member, this.peer, timeoutMs);
    const answered = new Promise<{ message: Message; batches: RecordBatch[] }>((resolve, reject) => {
      correlation = this.ask(
        { answered: (found, batches) => resolve({ message: found, batches }), failed: reject },
        message,
      );
    });
    try {
      return await (limit ? Promise.race([answered, limit.passed]) : answered);
    } finally {
      limit?.cancel();
      this.forget(correlation);
    }
  }

  #send(message: Request, correlation: bigint, batches: readonly Uint8Array[]): void {
    this.#hasSent = true;
    this.#socket.cork();
    this.#socket.write(encodeFrame(message, correlation, batches.length));
    for (const batch of batches) this.#socket.write(batch);
    this.#socket.uncork();
  }

  // --- receiving ---

  #received(chunk: Buffer): void {
    this.#hasReceived = true;
    try {
      for (const event of this.#receiver.push(chunk)) {
        if (this.error !== undefined) return;
        this.#handle(event);
      }
    } catch (error) {
      if (!(error instanceof LinnError)) throw error;
      this.lose(error);
    }
    this.#callReady();
  }

  #handle({ correlation, message, batches }: Event): void {
    if (correlation === 0n || message.member === "ping") {
      this.#handlePush(correlation, message, batches);
      return;
    }
    const caller = this.#callers.get(correlation);
    if (caller === undefined) {
      throw protocolError(`the broker answered request ${correlation}, which is not outstanding`);
    }
    this.#callers.delete(correlation);
    if (message.member === "failed") {
      if (message.content.code === "broker.stopping") this.#drains = true;
      caller.failed(refusalOf(message));
    } else caller.answered(message, batches);
  }

  #handlePush(correlation: bigint, message: Message, batches: RecordBatch[]): void {
    switch (message.member) {
      case "ping":
        this.#send({ member: "pong", content: null }, correlation, []);
        break;
      case "goodbye":
        this.#drains = true;
        break;
      case "failed":
        throw refusalOf(message);
      case "deliver":
      case "assigned":
      case "leaseEnded":
      case "ended":
        // A push may cross with the end of its subscription.
        this.subscriptions.get(message.content.subscription)?.pushed(message, batches);
    }
  }

  #callReady(): void {
    if (this.#whenReady.length === 0 || (this.error === undefined && !this.ready)) return;
    const callbacks = this.#whenReady;
    this.#whenReady = [];
    for (const callback of callbacks) callback();
  }

  // --- life ---

  #tick(keepaliveMs: number): void {
    if (!this.#hasSent || !this.#hasReceived) this.ask(NOBODY, { member: "ping", content: null });
    this.#hasSent = false;
    this.#silentTicks = this.#hasReceived ? 0 : this.#silentTicks + 1;
    this.#hasReceived = false;
    if (this.#silentTicks > 2 * SILENT_INTERVALS_MAX) {
      this.lose(connectionLost(`${this.peer} has been silent for ${SILENT_INTERVALS_MAX * keepaliveMs} ms`));
    }
  }

  /** End the connection and tell everybody; only the first error counts. */
  lose(error: LinnError): void {
    if (this.error !== undefined) return;
    this.error = this.#isClosing ? clientClosed("the client was closed") : error;
    clearInterval(this.#keepalive);
    clearTimeout(this.#renewal);
    this.#socket.destroy();
    const callers = [...this.#callers.values()];
    this.#callers.clear();
    // Before hello is answered the reason is all there is to say; later it is that the connection is gone.
    for (const caller of callers) caller.failed(this.#welcome ? goneBy(this.error) : again(this.error));
    for (const handler of this.subscriptions.values()) handler.lost(this.error);
    this.subscriptions.clear();
    this.onEnd?.(this.error);
    this.#callReady();
  }

  /** Say goodbye and close. */
  async close(): Promise<void> {
    if (this.error !== undefined) return;
    this.tell({ member: "goodbye", content: { reason: "the client is done" } });
    this.#isClosing = true;
    await new Promise<void>((resolve) => {
      this.#socket.end(resolve);
      setTimeout(resolve, CLOSE_TIMEOUT_MS).unref();
    });
    this.lose(clientClosed("the client was closed"));
  }
}

const NOBODY: Caller = { answered: () => {}, failed: () => {} };

function refusalOf(message: MessageOf<"failed">): LinnError {
  const { code, text, retriable } = message.content;
  return new LinnError(code, text, retriable);
}

/** Throws connection.failed where nobody answers. */
function connected(socket: Socket, peer: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const failed = (error: Error): void => {
      // Where a name has several addresses, the error is about all of them and says nothing itself.
      const text = error instanceof AggregateError ? error.errors.map(String).join("; ") : error.message;
      reject(new LinnError("connection.failed", `${peer}: ${text}`, true, { cause: error }));
    };
    socket.setNoDelay(true);
    socket.once("error", failed);
    socket.once("connect", () => {
      socket.off("error", failed);
      resolve();
    });
  });
}

/** A promise that is rejected when the time is over. Cancel it. */
function deadline(ms: number, text: string, code = "connection.failed"): { passed: Promise<never>; cancel(): void } {
  let timer: NodeJS.Timeout | undefined;
  const passed = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new LinnError(code, text)), ms);
  });
  passed.catch(() => {});
  return { passed, cancel: () => clearTimeout(timer) };
}

function timeLimit(what: string, peer: string, ms: number): { passed: Promise<never>; cancel(): void } {
  return deadline(ms, `${what}: no answer from ${peer} within ${Math.round(ms)} ms`, "request.timeout");
}
