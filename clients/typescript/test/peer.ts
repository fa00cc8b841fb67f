// A broker by script: it answers each request as the test says, over a real socket.

import { once } from "node:events";
import { createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { decodeFrame, encodeFrame, type Frame, type Message, type MessageOf, type Request } from "../src/codec.js";
import { FrameCutter } from "../src/framing.js";
import { RecordBatch } from "../src/index.js";

export interface Heard {
  frame: Frame;
  message: Message;
  batches: RecordBatch[];
}

/** Answers by the member of the request; undefined: no answer. */
export type Script = { [M in Message["member"]]?: (heard: Heard, peer: Peer) => Request | undefined };

export const WELCOME: Request = {
  member: "welcome",
  content: {
    version: 1,
    features: [],
    broker: "scripted",
    frameBytesMax: 1 << 24,
    batchBytesMax: 8 << 20,
    messageBytesMax: 1 << 20,
    keepaliveMs: 0,
    inflightMax: 100,
    subscriptionsMax: 10,
    producerId: 256n,
    producerKey: 7n,
  },
};

export class Peer {
  readonly heard: Heard[] = [];
  /** The latest connection: what is said goes there. */
  #socket: Socket | undefined;
  readonly #sockets = new Set<Socket>();
  #waiting: Heard | undefined;
  #wakers: (() => void)[] = [];
  #port = 0;

  private constructor(
    readonly server: Server,
    readonly script: Script,
  ) {}

  /** At a port of 127.0.0.1, or at a Unix socket. */
  static async open(script: Script = {}, path?: string): Promise<Peer> {
    const server = createServer();
    const peer = new Peer(server, { hello: () => WELCOME, ...script });
    server.on("connection", (socket) => peer.#serve(socket));
    if (path === undefined) server.listen(0, "127.0.0.1");
    else server.listen(path);
    await once(server, "listening");
    return peer;
  }

  get url(): string {
    const place = this.server.address() as AddressInfo | string;
    return typeof place === "string" ? `linn+unix://${place}` : `linn://127.0.0.1:${place.port}`;
  }

  #serve(socket: Socket): void {
    this.#socket = socket;
    this.#sockets.add(socket);
    socket.on("close", () => this.#sockets.delete(socket));
    this.#waiting = undefined;
    const cutter = new FrameCutter(1 << 24);
    socket.on("error", () => {});
    socket.on("data", (chunk: Buffer) => {
      for (const bytes of cutter.push(chunk)) this.#received(bytes);
    });
  }

  #received(bytes: Buffer): void {
    if (this.#waiting === undefined) {
      const frame = decodeFrame(bytes);
      this.#waiting = { frame, message: frame.message, batches: [] };
    } else this.#waiting.batches.push(new RecordBatch(bytes));
    const heard = this.#waiting;
    if (heard.batches.length < heard.frame.batches) return;
    this.#waiting = undefined;
    this.heard.push(heard);
    const answer = this.script[heard.message.member]?.(heard, this);
    if (answer !== undefined) this.say(answer, heard.frame.correlation);
    for (const wake of this.#wakers.splice(0)) wake();
  }

  say(message: Request, correlation = 0n, batches: Uint8Array[] = []): void {
    this.write(Buffer.concat([encodeFrame(message, correlation, batches.length), ...batches]));
  }

  write(bytes: Uint8Array): void {
    this.#socket!.write(bytes);
  }

  /** The messages of one kind that were heard, once there are so many. */
  async hears<M extends Message["member"]>(member: M, count = 1): Promise<(Heard & { message: MessageOfMember<M> })[]> {
    for (;;) {
      const found = this.heard.filter((heard) => heard.message.member === member);
      if (found.length >= count) return found as (Heard & { message: MessageOfMember<M> })[];
      await new Promise<void>((resolve) => this.#wakers.push(resolve));
    }
  }

  /** Close all connections. */
  hangUp(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Close all connections, and take no other. */
  async goAway(): Promise<void> {
    this.hangUp();
    this.#port = (this.server.address() as { port: number }).port;
    await new Promise((resolve) => this.server.close(resolve));
  }

  /** Take connections again, at the same port. */
  async comeBack(): Promise<void> {
    this.server.listen(this.#port, "127.0.0.1");
    await once(this.server, "listening");
  }

  async close(): Promise<void> {
    this.hangUp();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

type MessageOfMember<M extends Message["member"]> = M extends "unknown" ? Message : MessageOf<Exclude<M, "unknown">>;
