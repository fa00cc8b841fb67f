// A client that loses its broker: it comes back for as long as it is open.

import assert from "node:assert/strict";
import { once } from "node:events";
import { afterEach, test } from "node:test";
import { buildBatch, checkRecord } from "../src/batch-builder.js";
import type { Request } from "../src/codec.js";
import { Client, connect, LinnError, type ClientOptions, type ConnectionEvent } from "../src/index.js";
import { Peer, WELCOME, type Heard, type Script } from "./peer.js";

const open: { close(): Promise<void> }[] = [];

afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
});

/** A client that is quick to connect again, and quiet. */
async function connected(peer: Peer, options: ClientOptions = {}): Promise<Client> {
  const client = await connect(peer.url, { backoffMs: 1, backoffMaxMs: 10, onConnection: () => {}, ...options });
  open.push(client);
  return client;
}

/** A client with a short timeout, and the moment at which it loses its connection. */
async function watched(peer: Peer): Promise<[Client, Promise<void>]> {
  let tell = (): void => {};
  const lost = new Promise<void>((resolve) => (tell = resolve));
  return [await connected(peer, { requestTimeoutMs: 100, onConnection: () => tell() }), lost];
}

async function peerWith(script: Script): Promise<Peer> {
  const peer = await Peer.open(script);
  open.push(peer);
  return peer;
}

function published(baseOffset: bigint): Request {
  return { member: "published", content: { placements: [{ partition: 0, baseOffset, copies: 1 }] } };
}

function subscribed(kind: number, leaseMs = 0): () => Request {
  return () => ({ member: "subscribed", content: { subscription: 1, kind, leaseMs } });
}

function failed(code: string, retriable = false): Request {
  return { member: "failed", content: { code, text: "as the script says", retriable } };
}

function batchAt(baseOffset: number, count: number): Buffer {
  const records = Array.from({ length: count }, (_, index) => checkRecord({ value: String(baseOffset + index) }, 0));
  const bytes = buildBatch(records, { baseId: 0n });
  bytes.writeBigInt64LE(BigInt(baseOffset), 16);
  return bytes;
}

function deliver(peer: Peer, deliveryId: bigint, bytes: Buffer[], attempt = 1): void {
  peer.say({ member: "deliver", content: { subscription: 1, partition: 0, deliveryId, attempt } }, 0n, bytes);
}

function firstValue({ batches }: Heard): string {
  return Buffer.from(batches[0]!.value(0)!).toString();
}

test("batches that were not confirmed are sent again in order, and confirmed", async () => {
  const peer = await peerWith({});
  const producer = (await connected(peer)).producer({ topic: "t" });
  const placements = ["a", "b", "c"].map((value) => producer.publishBatch([{ value }]));
  await peer.hears("publish", 3);
  await peer.goAway();
  placements.push(producer.publishBatch([{ value: "d" }]));
  let offset = 0n;
  peer.script.publish = () => published(offset++);
  await peer.comeBack();
  assert.deepEqual(
    (await Promise.all(placements)).map((placement) => placement!.baseOffset),
    [0n, 1n, 2n, 3n],
  );
  assert.deepEqual((await peer.hears("publish", 7)).map(firstValue), ["a", "b", "c", "a", "b", "c", "d"]);
});

test("of several addresses the first that answers is used, and another after a loss", async () => {
  const named = (broker: string): Script => ({
    hello: () => ({ ...WELCOME, content: { ...WELCOME.content, broker } }) as Request,
    publish: () => published(0n),
  });
  const [away, first, second] = [await peerWith({}), await peerWith(named("first")), await peerWith(named("second"))];
  const url = `linn://${[away, first, second].map((peer) => peer.url.replace("linn://", "")).join(",")}`;
  await away.goAway();
  const client = await connect(url, { backoffMs: 1, backoffMaxMs: 10, onConnection: () => {} });
  open.push(client);
  assert.equal(client.broker, "first");
  first.hangUp();
  await client.producer({ topic: "t" }).publish({ value: "a" });
  assert.equal(client.broker, "second");
  second.hangUp();
  await client.producer({ topic: "t" }).publish({ value: "b" });
  assert.equal(client.broker, "first");
});

test("what a broker refuses that is stopping goes to the next one", async () => {
  const answers = [failed("broker.stopping", true), published(5n)];
  const peer = await peerWith({ publish: () => answers.shift() });
  const client = await connected(peer);
  const placement = client.producer({ topic: "t" }).publish({ value: "a" });
  await peer.hears("publish");
  peer.script.describe = () => ({ member: "description", content: {} });
  const description = client.describe(); // No new request goes to the one that is stopping.
  peer.hangUp();
  assert.equal((await placement).offset, 5n);
  await description;
});

test("without a broker a publish fails when its own time is over, and says that it was never sent", async () => {
  const peer = await peerWith({});
  const [client, lost] = await watched(peer);
  await peer.goAway();
  await lost;
  const [publish, request] = [client.producer({ topic: "t" }).publish({ value: "" }), client.describe()];
  await Promise.all([
    assert.rejects(publish, { code: "request.timeout", message: /was not sent within 100 ms: .*ECONNREFUSED/ }),
    assert.rejects(request, { code: "request.timeout", message: /no connection within 100 ms: .*ECONNREFUSED/ }),
  ]);
});

test("a publish that was sent when the broker went says that it may be stored", async () => {
  const peer = await peerWith({});
  const client = await connected(peer, { requestTimeoutMs: 100 });
  const publish = client.producer({ topic: "t" }).publish({ value: "" });
  await peer.hears("publish");
  await peer.goAway();
  await assert.rejects(publish, { code: "request.timeout", message: /may or may not be stored/ });
});

test("a publish has its own time, also beside one that was made before", async () => {
  const peer = await peerWith({});
  const [hasty, lost] = await watched(peer);
  const client = await connected(peer, { requestTimeoutMs: 200 });
  const producer = client.producer({ topic: "t" });
  await peer.goAway();
  await lost;
  const first = assert.rejects(producer.publish({ value: "" }), { code: "request.timeout" });
  await assert.rejects(hasty.describe(), { code: "request.timeout" }); // After half of the time.
  const began = performance.now();
  const second = assert.rejects(producer.publish({ value: "" }), { code: "request.timeout" });
  await Promise.all([first, second]);
  assert.ok(performance.now() - began > 199);
});

test("a publish whose time is over is not sent any more", async () => {
  const peer = await peerWith({ publish: () => published(0n) });
  const [client, lost] = await watched(peer);
  const producer = client.producer({ topic: "t" });
  await peer.goAway();
  await lost;
  await assert.rejects(producer.publish({ value: "late" }), { code: "request.timeout" });
  await peer.comeBack();
  await producer.publish({ value: "next" });
  assert.deepEqual((await peer.hears("publish")).map(firstValue), ["next"]);
});

test("a reader goes on behind what it has read", async () => {
  const peer = await peerWith({
    subscribe: subscribed(2),
    describe: () => ({
      member: "description",
      content: { topics: [{ name: "s", kind: "stream", partitions: [{ highWatermark: 9n }, { highWatermark: 7n }] }] },
    }),
  });
  const consumer = await (await connected(peer)).consumer("s", { start: "latest" });
  deliver(peer, 0n, [batchAt(9, 2)]);
  const values = [await consumer.next()];
  await peer.goAway();
  await peer.comeBack();
  const [first, again] = await peer.hears("subscribe", 2);
  assert.deepEqual(first!.message.content.starts, [9n, 7n]);
  assert.deepEqual(again!.message.content.starts, [11n, 7n]);
  values.push(await consumer.next()); // It had arrived.
  deliver(peer, 0n, [batchAt(11, 1)]);
  values.push(await consumer.next());
  assert.deepEqual(
    values.map((message) => message!.offset),
    [9n, 10n, 11n],
  );
});

test("of a queue what was held comes again, and what is settled as before is refused", async () => {
  const peer = await peerWith({
    subscribe: subscribed(0, 30_000),
    settle: () => ({ member: "settled", content: {} }),
  });
  const consumer = await (await connected(peer)).consumer("q");
  deliver(peer, 9n, [batchAt(0, 3)]);
  const before = (await consumer.next())!;
  await peer.goAway();
  await assert.rejects(Promise.resolve(before.ack()), { code: "delivery.not_current" });
  await peer.comeBack();
  await peer.hears("subscribe", 2);
  deliver(peer, 9n, [batchAt(0, 3)], 2);
  const after = (await consumer.next())!;
  assert.deepEqual([after.offset, after.attempt], [0n, 2]);
  await after.ack();
});

test("a consumer that is made while the connection is lost is made on the next one", async () => {
  const answers = [undefined, subscribed(0, 30_000)()];
  const peer = await peerWith({ subscribe: () => answers.shift() });
  const opened = (await connected(peer)).consumer("q");
  await peer.hears("subscribe");
  peer.hangUp();
  await peer.hears("subscribe", 2);
  deliver(peer, 1n, [batchAt(4, 1)]);
  assert.equal((await (await opened).next())!.offset, 4n);
});

test("settlements that an outage made void interrupt no loop, and reach no other subscription", async () => {
  const peer = await peerWith({ subscribe: subscribed(0, 30_000) });
  const consumer = await (await connected(peer)).consumer("q");
  deliver(peer, 9n, [batchAt(0, 3)]);
  const before = (await consumer.next())!;
  void before.ack();
  consumer.flush();
  await peer.hears("settle");
  await peer.goAway();
  await peer.comeBack();
  await peer.hears("subscribe", 2);
  void before.nack();
  const settled = consumer.settle(before.batch.delivery, 0n, 1n, "ack", 0);
  await assert.rejects(Promise.resolve(settled), { code: "delivery.not_current" });
  deliver(peer, 9n, [batchAt(0, 3)], 2);
  assert.equal((await consumer.next())!.attempt, 2);
  assert.equal((await peer.hears("settle")).length, 1);
});

test("a loop waits through one outage after the other", async () => {
  const peer = await peerWith({ subscribe: subscribed(0, 30_000) });
  const consumer = await (await connected(peer)).consumer("q");
  const next = consumer.next();
  for (let time = 2; time < 5; time++) {
    await peer.goAway();
    await peer.comeBack();
    await peer.hears("subscribe", time);
  }
  deliver(peer, 1n, [batchAt(4, 1)]);
  assert.equal((await next)!.offset, 4n);
});

test("a subscription that is refused for now is asked for again", async () => {
  const peer = await peerWith({ subscribe: subscribed(0, 30_000) });
  const consumer = await (await connected(peer)).consumer("q");
  let refusals = 0;
  peer.script.subscribe = () => (++refusals < 4 ? failed("topic.full", true) : subscribed(0, 30_000)());
  peer.hangUp();
  await peer.hears("subscribe", 5);
  deliver(peer, 1n, [batchAt(4, 1)]);
  assert.equal((await consumer.next())!.offset, 4n);
});

test("a program is told of an outage when it begins and when it is over", async () => {
  const events: ConnectionEvent[] = [];
  const peer = await peerWith({ describe: () => ({ member: "description", content: {} }) });
  const client = await connected(peer, { onConnection: (event) => events.push(event) });
  await peer.goAway();
  await peer.comeBack();
  await client.describe();
  assert.deepEqual(
    events.map(({ state }) => state),
    ["lost", "restored"],
  );
  assert.match(events[0]!.text, /^the connection to linn:.* was lost: .*; connecting again$/);
  assert.match(events[1]!.text, /^connected to linn:.* again after [\d.]+ s$/);
  assert.equal(client.error, undefined);
});

test("with a number of retries what waits fails after so many, and the next call tries again", async () => {
  const peer = await peerWith({ subscribe: subscribed(0, 30_000), describe: () => undefined });
  const client = await connected(peer, { retriesMax: 2 });
  const consumer = await client.consumer("q");
  const producer = client.producer({ topic: "t" });
  const waiting = [consumer.next(), client.describe()];
  const publish = producer.publish({ value: "" });
  await peer.hears("publish");
  await peer.goAway();
  await Promise.all([
    ...waiting.map((one) => assert.rejects(one, { code: "connection.failed", retriable: true })),
    assert.rejects(publish, { code: "connection.lost", message: /may or may not be stored/ }),
  ]);
  assert.equal(client.error?.code, "connection.failed");
  peer.script.publish = () => published(3n);
  await peer.comeBack();
  assert.equal((await producer.publish({ value: "" })).offset, 3n);
  await peer.hears("subscribe", 2);
});

test("a message joins no batch that has failed", async () => {
  const peer = await peerWith({ publish: () => published(3n) });
  const client = await connected(peer, { retriesMax: 1 });
  const producer = client.producer({ topic: "t" });
  await peer.goAway();
  await assert.rejects(client.describe());
  await assert.rejects(producer.publish({ value: "lost" }), { code: "connection.failed" });
  await peer.comeBack();
  assert.equal((await producer.publish({ value: "next" })).offset, 3n);
});

test("a consumer that was not read while there was no broker throws nothing once there is one", async () => {
  const peer = await peerWith({
    subscribe: subscribed(0, 30_000),
    describe: () => ({ member: "description", content: {} }),
  });
  const client = await connected(peer, { retriesMax: 1 });
  const consumer = await client.consumer("q");
  await peer.goAway();
  await assert.rejects(client.describe(), { retriable: true });
  await peer.comeBack();
  await client.describe();
  await peer.hears("subscribe", 2);
  deliver(peer, 1n, [batchAt(4, 1)]);
  assert.equal((await consumer.next())!.offset, 4n);
});

test("a batch is sent again no more often than there are retries", async () => {
  const peer = await peerWith({ publish: (_, { hangUp }) => hangUp.call(peer) as undefined });
  const client = await connected(peer, { retriesMax: 2 });
  await assert.rejects(client.producer({ topic: "t" }).publish({ value: "" }), {
    code: "connection.lost",
    message: /may or may not be stored/,
  });
  assert.equal((await peer.hears("publish")).length, 3);
});

test("a broker of another version is not waited for", async () => {
  const peer = await peerWith({ subscribe: subscribed(0, 30_000) });
  const consumer = await (await connected(peer)).consumer("q");
  peer.script.hello = () => failed("protocol.version_unsupported");
  peer.hangUp();
  await assert.rejects(consumer.next(), { code: "protocol.version_unsupported" });
});

test("a client that is closed while it has no broker ends what waits", async () => {
  const peer = await peerWith({ subscribe: subscribed(0, 30_000) });
  const client = await connected(peer, { backoffMs: 60_000, backoffMaxMs: 60_000 });
  const consumer = await client.consumer("q");
  const waiting = [consumer.next(), client.describe(), client.producer({ topic: "t" }).publish({ value: "" })];
  await peer.goAway();
  const ends = Promise.allSettled(waiting);
  await client.close();
  for (const end of await ends) {
    assert.equal(end.status === "rejected" && (end.reason as LinnError).code, "client.closed");
  }
  await consumer.close();
});

test("closing a client ends its attempt to connect", async () => {
  const peer = await peerWith({});
  const client = await connected(peer, { connectTimeoutMs: 60_000 });
  peer.script.hello = () => undefined;
  peer.hangUp();
  await peer.hears("hello", 2);
  await client.close();
  peer.server.close();
  await once(peer.server, "close"); // Once all connections are closed.
});

test("options that make no sense are refused", async () => {
  for (const options of [{ retriesMax: -1 }, { backoffMs: NaN }, { requestTimeoutMs: Infinity }]) {
    await assert.rejects(connect("linn://127.0.0.1:1", options), { code: "message.invalid" });
  }
});
