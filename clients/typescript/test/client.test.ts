import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { buildBatch, checkRecord } from "../src/batch-builder.js";
import type { Request } from "../src/codec.js";
import { Client, connect, LinnError, RecordBatch, Unroutable, type ClientOptions } from "../src/index.js";
import { indexesAmong, isAmong } from "../src/returned.js";
import { Peer, WELCOME, type Script } from "./peer.js";

const open: { close(): Promise<void> }[] = [];

afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
});

async function peerWith(script: Script = {}): Promise<Peer> {
  const peer = await Peer.open(script);
  open.push(peer);
  return peer;
}

async function connected(peer: Peer, options: ClientOptions = {}): Promise<Client> {
  const client = await connect(peer.url, { backoffMs: 1, onConnection: () => {}, ...options });
  open.push(client);
  return client;
}

function published(baseOffset: bigint, partition = 0): Request {
  return { member: "published", content: { placements: [{ partition, baseOffset, copies: 1 }] } };
}

function failed(code: string, retriable = false): Request {
  return { member: "failed", content: { code, text: "as the script says", retriable } };
}

/** A stamped batch of so many records, whose values are their offsets. */
function batchAt(baseOffset: number, count: number): Buffer {
  const records = Array.from({ length: count }, (_, index) => checkRecord({ value: String(baseOffset + index) }, 0));
  const bytes = buildBatch(records, { baseId: 0n });
  bytes.writeBigInt64LE(BigInt(baseOffset), 16);
  return bytes;
}

const QUEUE: Script = {
  subscribe: () => ({ member: "subscribed", content: { subscription: 1, kind: 0, leaseMs: 30_000 } }),
  settle: () => ({ member: "settled", content: {} }),
  unsubscribe: () => ({ member: "done", content: null }),
};
const READER: Script = {
  ...QUEUE,
  subscribe: () => ({ member: "subscribed", content: { subscription: 1, kind: 2, leaseMs: 0 } }),
};
const GROUP: Script = {
  ...QUEUE,
  subscribe: () => ({ member: "subscribed", content: { subscription: 1, kind: 1, leaseMs: 0 } }),
};

function deliver(peer: Peer, deliveryId: bigint, bytes: Buffer[], partition = 0): void {
  const content = { subscription: 1, partition, deliveryId, attempt: 1 };
  peer.say({ member: "deliver", content }, 0n, bytes);
}

/** Until what was said before has been read by the client. */
async function caughtUp(client: Client, peer: Peer): Promise<void> {
  peer.script.describe = () => ({ member: "description", content: {} });
  await client.describe();
}

function valueOf(message: { value: Uint8Array | null } | undefined): string {
  return Buffer.from(message!.value!).toString();
}

// --- connections -----------------------------------------------------------------------------------------------------

test("hello names the versions and no feature that this client lacks", async () => {
  const peer = await peerWith();
  await connected(peer, { name: "me" });
  const [hello] = await peer.hears("hello");
  const { versionMin, versionMax, client } = hello!.message.content;
  assert.deepEqual([versionMin, versionMax, client], [1, 1, "me"]);
});

test("a welcome of another version is refused", async () => {
  const peer = await peerWith({
    hello: () => ({ ...WELCOME, content: { ...WELCOME.content, version: 2 } }) as Request,
  });
  await assert.rejects(connect(peer.url), { code: "protocol.version_unsupported" });
});

test("a broker that does not answer hello is given up", async () => {
  const peer = await peerWith({ hello: () => undefined });
  await assert.rejects(connect(peer.url, { connectTimeoutMs: 50 }), { code: "connection.failed", retriable: true });
});

test("a broker's ping is answered with its correlation", async () => {
  const peer = await peerWith();
  await connected(peer);
  peer.say({ member: "ping", content: null }, 77n);
  const [pong] = await peer.hears("pong");
  assert.equal(pong!.frame.correlation, 77n);
});

test("a client that has nothing to say sends pings", async () => {
  const content = { ...WELCOME.content, keepaliveMs: 20 };
  const peer = await peerWith({
    hello: () => ({ member: "welcome", content }) as Request,
    ping: () => ({ member: "pong", content: null }),
  });
  await connected(peer);
  await peer.hears("ping", 2);
});

test("a broker that falls silent is given up", async () => {
  const content = { ...WELCOME.content, keepaliveMs: 10 };
  const peer = await peerWith({ hello: () => ({ member: "welcome", content }) as Request });
  const client = await connected(peer, { retriesMax: 0 });
  await assert.rejects(client.describe(), { code: "connection.lost" });
});

test("what is closed fails with an error that is not to be tried again", async () => {
  const peer = await peerWith(QUEUE);
  const client = await connected(peer);
  const producer = client.producer({ topic: "t" });
  const waiting = client.describe();
  await peer.hears("describe");
  const closing = client.close();
  const closed = { code: "client.closed", retriable: false };
  await assert.rejects(waiting, closed);
  await closing;
  await assert.rejects(client.describe(), closed);
  await assert.rejects(producer.publish({ value: "x" }), closed);
});

test("an answer that nobody asked for ends the connection", async () => {
  const peer = await peerWith();
  const client = await connected(peer, { retriesMax: 0 });
  const waiting = client.describe();
  peer.say({ member: "done", content: null }, 99n);
  await assert.rejects(waiting, { code: "connection.lost" });
  assert.equal(client.error?.code, "protocol.malformed");
});

test("an answer of the wrong kind fails its request", async () => {
  const peer = await peerWith({ describe: () => ({ member: "done", content: null }) });
  await assert.rejects((await connected(peer)).describe(), { code: "protocol.malformed" });
});

test("a failure that is about the connection is its end", async () => {
  const peer = await peerWith({ describe: (_, { say }) => say.call(peer, failed("limit.exceeded")) as undefined });
  const client = await connected(peer, { retriesMax: 0 });
  await assert.rejects(client.describe(), { code: "connection.lost" });
  assert.equal(client.error?.code, "limit.exceeded");
});

test("pushes that nobody takes, and members that nobody knows, are passed over", async () => {
  const peer = await peerWith();
  const client = await connected(peer);
  deliver(peer, 1n, [batchAt(0, 1)]);
  const unknown = Buffer.from("000000000300000000000000020000000000000000000000000060ea00000000", "hex");
  peer.write(unknown);
  await caughtUp(client, peer);
});

test("a request that is not answered in time fails, and its late answer is passed over", async () => {
  const peer = await peerWith();
  const client = await connected(peer, { requestTimeoutMs: 30 });
  await assert.rejects(client.describe(), { code: "request.timeout", retriable: true });
  const [late] = await peer.hears("describe");
  peer.say({ member: "description", content: {} }, late!.frame.correlation);
  await caughtUp(client, peer);
});

// --- publishing ------------------------------------------------------------------------------------------------------

test("messages of one turn share a batch, and each has its own offset", async () => {
  const peer = await peerWith({ publish: () => published(40n) });
  const producer = (await connected(peer)).producer({ topic: "t" });
  const receipts = await Promise.all(["a", "b", "c"].map((value) => producer.publish({ value })));
  assert.deepEqual(
    receipts.map((receipt) => receipt.offset),
    [40n, 41n, 42n],
  );
  const [publish] = await peer.hears("publish");
  assert.equal(peer.heard.filter((heard) => heard.message.member === "publish").length, 1);
  assert.deepEqual(
    receipts.map((receipt) => receipt.id),
    [0, 1, 2].map((index) => publish!.batches[0]!.id(index)),
  );
});

test("a message that can't be carried fails alone", async () => {
  const peer = await peerWith({ publish: () => published(0n) });
  const producer = (await connected(peer)).producer({ topic: "t" });
  const good = producer.publish({ value: "a" });
  await assert.rejects(producer.publish({ value: "b", priority: 300 }), { code: "message.invalid" });
  await assert.rejects(producer.publish({ value: Buffer.alloc((1 << 20) + 1) }), { code: "message.too_large" });
  assert.equal((await good).offset, 0n);
});

test("a message that the broker refuses fails alone, and the others have the offsets that they got", async () => {
  const refused = [
    { code: "message.too_large", text: "large", records: [1, 2] },
    { code: "message.unsupported", text: "odd", records: [3, 4] },
  ];
  const placements = [{ partition: 0, baseOffset: 40n, copies: 3, refused }];
  const peer = await peerWith({ publish: () => ({ member: "published", content: { placements } }) });
  const producer = (await connected(peer)).producer({ topic: "t" });
  const outcomes = await Promise.allSettled(["a", "b", "c", "d", "e"].map((value) => producer.publish({ value })));
  assert.deepEqual(
    outcomes.map((each) => (each.status === "fulfilled" ? each.value.offset : (each.reason as LinnError).code)),
    [40n, "message.too_large", 41n, "message.unsupported", 42n],
  );
  const batch = ["a", "b", "c", "d", "e"].map((value) => ({ value }));
  await assert.rejects(producer.publishBatch(batch), { code: "message.too_large", indexes: [1, 3] });
});

test("a message that has no room in the batch that waits takes none of it along", async () => {
  const peer = await peerWith({ publish: () => published(0n) });
  const producer = (await connected(peer)).producer({ topic: "t" }, { batchBytesMax: 1_000 });
  const values = ["a", "b", "x".repeat(1_000), "c"];
  await Promise.all(values.map((value) => producer.publish({ value })));
  const heard = await peer.hears("publish", 3);
  assert.deepEqual(
    heard.map(({ batches }) => batches[0]!.count),
    [2, 1, 1],
  );
});

test("a refusal does not say that nothing was stored of what was sent before without an answer", async () => {
  const partly: Request = {
    member: "published",
    content: {
      placements: [{ partition: -1, copies: 0, refused: [{ code: "message.too_large", text: "", records: [0, 1] }] }],
    },
  };
  for (const answer of [failed("message.too_large"), failed("topic.unknown"), partly]) {
    let asked = 0;
    const peer = await peerWith({
      publish: (_, { hangUp }) => {
        asked += 1;
        if (asked > 1) return answer;
        hangUp.call(peer);
        return undefined;
      },
    });
    const producer = (await connected(peer)).producer({ topic: "t" });
    await assert.rejects(producer.publish({ value: "a" }), { code: "connection.lost", message: /may or may not/ });
    await assert.rejects(producer.publish({ value: "a" }), ({ code }: LinnError) => code !== "connection.lost");
  }
});

test("a batch whose last attempt was not answered in time is not reported as refused", async () => {
  let asked = 0;
  const peer = await peerWith({ publish: () => (asked++ === 0 ? failed("topic.full", true) : undefined) });
  const producer = (await connected(peer, { requestTimeoutMs: 1_000 })).producer({ topic: "t" });
  await assert.rejects(producer.publish({ value: "a" }), { code: "request.timeout", message: /may or may not/ });
  assert.equal(asked, 2);
});

test("no more batches are on their way than in_flight_max, and they go in order", async () => {
  const peer = await peerWith();
  const producer = (await connected(peer)).producer({ topic: "t" }, { inFlightMax: 2 });
  const placements = [0, 1, 2, 3].map((number) => producer.publishBatch([{ value: String(number) }]));
  const first = await peer.hears("publish", 2);
  assert.equal(peer.heard.length, 3, "hello and two publishes");
  peer.say(published(0n), first[0]!.frame.correlation);
  const next = await peer.hears("publish", 3);
  peer.say(published(2n), next[2]!.frame.correlation);
  peer.say(published(1n), next[1]!.frame.correlation);
  const last = await peer.hears("publish", 4);
  peer.say(published(3n), last[3]!.frame.correlation);
  assert.deepEqual(
    (await Promise.all(placements)).map((placement) => placement!.baseOffset),
    [0n, 1n, 2n, 3n],
  );
  const values = last.map((heard) => Buffer.from(heard.batches[0]!.value(0)!).toString());
  assert.deepEqual(values, ["0", "1", "2", "3"]);
});

test("no more requests are on their way than the broker takes", async () => {
  const content = { ...WELCOME.content, inflightMax: 1 };
  const peer = await peerWith({ hello: () => ({ member: "welcome", content }) as Request });
  const producer = (await connected(peer)).producer({ topic: "t" });
  const placements = [producer.publishBatch([{ value: "a" }]), producer.publishBatch([{ value: "b" }])];
  const [first] = await peer.hears("publish");
  assert.equal(peer.heard.length, 2, "hello and one publish");
  peer.say(published(0n), first!.frame.correlation);
  const [, second] = await peer.hears("publish", 2);
  peer.say(published(1n), second!.frame.correlation);
  await Promise.all(placements);
});

test("a refusal says whether to try again, and the next publish is none the worse", async () => {
  const answers = [failed("topic.full", true), failed("topic.unknown"), published(7n)];
  const peer = await peerWith({ publish: () => answers.shift() });
  const producer = (await connected(peer, { retriesMax: 0 })).producer({ topic: "t" });
  await assert.rejects(producer.publish({ value: "" }), { code: "topic.full", retriable: true });
  await assert.rejects(producer.publish({ value: "" }), { code: "topic.unknown", retriable: false });
  assert.equal((await producer.publish({ value: "" })).offset, 7n);
});

test("without acks nothing is waited for", async () => {
  const peer = await peerWith();
  const producer = (await connected(peer)).producer({ exchange: "x" }, { acks: "none" });
  assert.equal(await producer.publishBatch([{ value: "" }]), undefined);
  assert.equal((await producer.publish({ value: "" })).offset, undefined);
  const [publish] = await peer.hears("publish", 2);
  assert.deepEqual(
    [publish!.frame.correlation, publish!.message.content.acks, publish!.message.content.toExchange],
    [0n, 0, true],
  );
});

test("a full buffer refuses, and says when there is room", async () => {
  const peer = await peerWith();
  const producer = (await connected(peer)).producer({ topic: "t" }, { bufferBytesMax: 100, inFlightMax: 1 });
  const first = producer.publish({ value: "x".repeat(100) });
  await assert.rejects(producer.publish({ value: "" }), { code: "limit.exceeded" });
  const room = producer.ready();
  const [publish] = await peer.hears("publish");
  peer.say(published(0n), publish!.frame.correlation);
  await room;
  await first;
});

test("a batch over the broker's limit is not sent", async () => {
  const content = { ...WELCOME.content, batchBytesMax: 2_000 };
  const peer = await peerWith({ hello: () => ({ member: "welcome", content }) as Request });
  const producer = (await connected(peer)).producer({ topic: "t" });
  const records = [{ value: "x".repeat(1_000) }, { value: "x".repeat(1_000) }];
  await assert.rejects(producer.publishBatch(records), { code: "batch.too_large" });
});

test("a partition that is named is the one that is sent, and else the broker chooses", async () => {
  const peer = await peerWith({ publish: () => published(0n, 2) });
  const producer = (await connected(peer)).producer({ topic: "t" });
  await producer.publishBatch([{ value: "", key: "k" }], { partition: 2 });
  await producer.publishBatch([{ value: "", key: "k" }]);
  await producer.publish({ value: "", key: "k" });
  const heard = await peer.hears("publish", 3);
  assert.deepEqual(
    heard.map(({ message }) => message.content.partition),
    [2, -1, -1],
  );
});

test("ten thousand batches fail without ado when the connection is gone", async () => {
  const peer = await peerWith();
  const client = await connected(peer, { retriesMax: 0 });
  const producer = client.producer({ topic: "t" }, { inFlightMax: 1 });
  const placements = Array.from({ length: 10_000 }, () => producer.publishBatch([{ value: "" }]));
  const outcomes = Promise.allSettled(placements);
  await peer.hears("publish");
  peer.hangUp();
  assert.ok((await outcomes).every((outcome) => outcome.status === "rejected"));
});

// --- mandatory -------------------------------------------------------------------------------------------------------

/** Of a mandatory publish: nothing was returned but these ranges. */
function returning(...returned: number[]): Request {
  return { member: "published", content: { placements: [{ partition: -1, baseOffset: -1n, copies: 1, returned }] } };
}

test("each mandatory message that no topic takes fails its own publish", async () => {
  const peer = await peerWith({ publish: () => returning(0, 1, 3, 5) });
  const producer = (await connected(peer)).producer({ exchange: "x" });
  const publishes = Array.from({ length: 6 }, () => producer.publish({ value: "" }, { mandatory: true }));
  const outcomes = await Promise.allSettled(publishes);
  assert.deepEqual(
    outcomes.map((outcome) => (outcome.status === "rejected" ? (outcome.reason as LinnError).code : outcome.status)),
    [0, 1, 2, 3, 4, 5].map((index) => ([0, 3, 4].includes(index) ? "exchange.unroutable" : "fulfilled")),
  );
  const [publish] = await peer.hears("publish");
  assert.equal(publish!.message.content.mandatory, true);
});

test("a batch says which of its records no topic takes", async () => {
  const answers = [returning(1, 3), returning(), returning(2, 99)];
  const peer = await peerWith({ publish: () => answers.shift() });
  const producer = (await connected(peer)).producer({ exchange: "x" });
  const records = ["a", "b", "c", "d"].map((value) => ({ value }));
  await assert.rejects(producer.publishBatch(records, { mandatory: true }), (error) => {
    assert.ok(error instanceof Unroutable && error instanceof LinnError);
    assert.deepEqual([error.code, error.retriable, error.indexes], ["exchange.unroutable", false, [1, 2]]);
    return true;
  });
  assert.equal((await producer.publishBatch(records, { mandatory: true }))!.copies, 1);
  // What a broker says beyond the batch names no record.
  await assert.rejects(producer.publishBatch(records, { mandatory: true }), { indexes: [2, 3] });
});

test("mandatory messages share no batch with others", async () => {
  const peer = await peerWith({ publish: () => published(0n) });
  const producer = (await connected(peer)).producer({ exchange: "x" });
  const options = [false, false, true, true, false].map((mandatory) => ({ mandatory }));
  await Promise.all(options.map((option) => producer.publish({ value: "" }, option)));
  const heard = await peer.hears("publish", 3);
  assert.deepEqual(
    heard.map(({ message, batches }) => [message.content.mandatory, batches[0]!.count]),
    [
      [false, 2],
      [true, 2],
      [false, 1],
    ],
  );
});

test("a topic is not asked, and without acks nobody can be", async () => {
  const peer = await peerWith({ publish: () => published(0n) });
  const client = await connected(peer);
  await client.producer({ topic: "t" }).publish({ value: "" }, { mandatory: true });
  const [publish] = await peer.hears("publish");
  assert.equal(publish!.message.content.mandatory, false);
  const careless = client.producer({ exchange: "x" }, { acks: "none" });
  await assert.rejects(careless.publish({ value: "" }, { mandatory: true }), { code: "message.invalid" });
  await assert.rejects(careless.publishBatch([{ value: "" }], { mandatory: true }), { code: "message.invalid" });
});

test("ranges of any number are looked up by halves", () => {
  const ranges = Array.from({ length: 2_000 }, (_, index) => 3 * Math.floor(index / 2) + (index % 2));
  for (let index = 0; index < 3_000; index += 1) assert.equal(isAmong(ranges, index), index % 3 === 0);
  assert.deepEqual(indexesAmong(ranges, 7), [0, 3, 6]);
  assert.deepEqual(indexesAmong([], 7), []);
});

// --- consuming -------------------------------------------------------------------------------------------------------

test("an ack leaves at once while the application waits, and later ones wait for its answer", async () => {
  const peer = await peerWith({ ...QUEUE, settle: () => undefined });
  const client = await connected(peer);
  const consumer = await client.consumer("q");
  deliver(peer, 9n, [batchAt(10, 4)]);
  const [a, b, c] = [...(await consumer.nextBatch())!];
  const next = consumer.nextBatch();
  await caughtUp(client, peer); // The consumer waits by now.
  for (const message of [a, b, c]) void message!.ack();
  const settles = await peer.hears("settle", 2);
  const ranges = settles.map(({ message }) => message.content.entries.map(({ first, end }) => [first, end]));
  assert.deepEqual(ranges, [[[10n, 11n]], [[11n, 13n]]]);
  deliver(peer, 10n, [batchAt(14, 1)]);
  await next;
});

test("settlements of one turn go together, joined where they adjoin", async () => {
  const peer = await peerWith(QUEUE);
  const consumer = await (await connected(peer)).consumer("q");
  deliver(peer, 9n, [batchAt(10, 4)]);
  const batch = (await consumer.nextBatch())!;
  const [a, b, c, d] = [...batch];
  await Promise.all([a!.ack(), b!.ack(), c!.nack(50), d!.ack()]);
  const [settle] = await peer.hears("settle");
  const entries = settle!.message.content.entries.map(({ first, end, verdict, ms, deliveryId }) => [
    first,
    end,
    verdict,
    ms,
    deliveryId,
  ]);
  assert.deepEqual(entries, [
    [10n, 12n, 0, 0, 9n],
    [12n, 13n, 1, 50, 9n],
    [13n, 14n, 0, 0, 9n],
  ]);
});

test("a refusal goes to who awaits it", async () => {
  const refused = [{ entry: 0, code: "delivery.not_current", text: "too late" }];
  const peer = await peerWith({ ...QUEUE, settle: () => ({ member: "settled", content: { refused } }) });
  const client = await connected(peer);
  const consumer = await client.consumer("q");
  deliver(peer, 9n, [batchAt(0, 1)]);
  await assert.rejects(Promise.resolve((await consumer.next())!.ack()), { code: "delivery.not_current" });
  assert.equal(await consumer.next(0), undefined, "nobody else hears of it");
});

test("a refusal that nobody awaits comes with the next step, and reading goes on", async () => {
  const refused = [{ entry: 0, code: "delivery.not_current", text: "too late" }];
  const peer = await peerWith({ ...QUEUE, settle: () => ({ member: "settled", content: { refused } }) });
  const consumer = await (await connected(peer)).consumer("q");
  deliver(peer, 9n, [batchAt(0, 1)]);
  void (await consumer.next())!.ack();
  await assert.rejects(consumer.next(), { code: "delivery.not_current" });
  deliver(peer, 10n, [batchAt(1, 1)]);
  assert.equal(valueOf(await consumer.next()), "1");
});

test("a refusal costs none of the messages of its batch", async () => {
  const refused = [{ entry: 0, code: "delivery.not_current", text: "too late" }];
  const peer = await peerWith({ ...QUEUE, settle: () => ({ member: "settled", content: { refused } }) });
  const client = await connected(peer);
  const consumer = await client.consumer("q");
  deliver(peer, 9n, [batchAt(0, 3)]);
  void (await consumer.next())!.ack();
  await peer.hears("settle");
  await caughtUp(client, peer);
  await assert.rejects(consumer.next(), { code: "delivery.not_current" });
  assert.equal(valueOf(await consumer.next()), "1");
  assert.equal(valueOf(await consumer.next()), "2");
});

test("waiting in vain leaves nothing behind", async () => {
  const peer = await peerWith(QUEUE);
  const consumer = await (await connected(peer)).consumer("q");
  assert.equal(await consumer.next(1), undefined);
  deliver(peer, 9n, [batchAt(0, 1)]);
  assert.equal(valueOf(await consumer.next(60_000)), "0");
});

test("of leased records the broker counts what is held, and nobody gives credit back", async () => {
  const peer = await peerWith(QUEUE);
  const client = await connected(peer);
  const consumer = await client.consumer("q", { prefetch: 4 });
  deliver(peer, 9n, [batchAt(0, 4)]);
  const messages = [...(await consumer.nextBatch())!];
  await caughtUp(client, peer);
  assert.ok(!peer.heard.some((heard) => heard.message.member === "credit"));
  await messages[0]!.extend(1_000);
  await Promise.all(messages.map((message) => message.ack()));
  await caughtUp(client, peer);
  assert.ok(!peer.heard.some((heard) => heard.message.member === "credit"));
});

test("what waits of a lease that is over is not handed over", async () => {
  const peer = await peerWith(QUEUE);
  const client = await connected(peer);
  const consumer = await client.consumer("q");
  deliver(peer, 9n, [batchAt(0, 2), batchAt(2, 2)]);
  deliver(peer, 10n, [batchAt(4, 1)]);
  assert.equal(valueOf(await consumer.next()), "0");
  peer.say({ member: "leaseEnded", content: { subscription: 1, partition: 0, deliveryId: 9n } });
  await caughtUp(client, peer);
  assert.equal(valueOf(await consumer.next()), "4");
  assert.equal(await consumer.next(1), undefined);
});

test("credit of a reader is given back as records are handed over", async () => {
  const peer = await peerWith(READER);
  const client = await connected(peer);
  const consumer = await client.consumer("s", { prefetch: 4, start: 0 });
  deliver(peer, 0n, [batchAt(0, 2), batchAt(2, 2)]);
  await caughtUp(client, peer);
  assert.ok(!peer.heard.some((heard) => heard.message.member === "credit"));
  await consumer.nextBatch();
  const [credit] = await peer.hears("credit");
  assert.deepEqual(credit!.message.content, { subscription: 1, records: 2 });
  await consumer.nextBatch();
});

test("a damaged batch fails one step, and reading goes on", async () => {
  const peer = await peerWith(QUEUE);
  const consumer = await (await connected(peer)).consumer("q");
  const damaged = batchAt(0, 1);
  damaged[damaged.length - 1]! ^= 1;
  deliver(peer, 9n, [damaged, batchAt(1, 1)]);
  await assert.rejects(consumer.next(), { code: "batch.corrupt" });
  assert.equal(valueOf(await consumer.next()), "1");
});

test("a member drops what it has of partitions that it lost", async () => {
  const peer = await peerWith(GROUP);
  const client = await connected(peer);
  const consumer = await client.consumer("s", { group: "g" });
  peer.say({ member: "assigned", content: { subscription: 1, epoch: 1, partitions: [0, 1], revoked: [] } });
  deliver(peer, 0n, [batchAt(0, 2)], 0);
  deliver(peer, 0n, [batchAt(10, 2)], 1);
  assert.equal(valueOf(await consumer.next()), "0");
  peer.say({ member: "assigned", content: { subscription: 1, epoch: 2, partitions: [1], revoked: [0] } });
  deliver(peer, 0n, [batchAt(2, 2)], 0);
  await caughtUp(client, peer);
  assert.deepEqual(consumer.partitions, [1]);
  assert.equal(valueOf(await consumer.next()), "10");
  assert.equal(valueOf(await consumer.next()), "11");
  assert.equal(await consumer.next(0), undefined);
});

test("a nack sets a group's reading back, past what was on its way", async () => {
  const peer = await peerWith({ ...GROUP, settle: () => undefined });
  const client = await connected(peer);
  const consumer = await client.consumer("s", { group: "g" });
  deliver(peer, 0n, [batchAt(0, 3), batchAt(3, 3)]);
  assert.equal(valueOf(await consumer.next()), "0");
  const second = (await consumer.next())!;
  const nack = Promise.resolve(second.nack());
  deliver(peer, 0n, [batchAt(6, 3)]);
  const [settle] = await peer.hears("settle");
  await caughtUp(client, peer);
  assert.equal(await consumer.next(0), undefined);
  peer.say({ member: "settled", content: {} }, settle!.frame.correlation);
  await nack;
  deliver(peer, 0n, [batchAt(1, 2)]);
  assert.equal(valueOf(await consumer.next()), "1");
});

test("the last one of several nacks has no message passed over", async () => {
  const peer = await peerWith({ ...GROUP, settle: () => undefined });
  const client = await connected(peer);
  const consumer = await client.consumer("s", { group: "g" });
  deliver(peer, 0n, [batchAt(0, 3)]);
  const [first, second] = [(await consumer.next())!, (await consumer.next())!];
  const nacks = [Promise.resolve(first.nack()), Promise.resolve(second.nack())];
  const [settle] = await peer.hears("settle");
  deliver(peer, 0n, [batchAt(0, 3)]);
  assert.equal(valueOf(await consumer.next()), "0");
  peer.say({ member: "settled", content: {} }, settle!.frame.correlation);
  await Promise.all(nacks);
  assert.equal(valueOf(await consumer.next()), "1");
});

test("a subscription that the broker ends says why, each time", async () => {
  const peer = await peerWith(READER);
  const client = await connected(peer);
  const consumer = await client.consumer("s");
  deliver(peer, 0n, [batchAt(0, 1)]);
  peer.say({ member: "ended", content: { subscription: 1, code: "topic.unknown", text: "deleted" } });
  assert.equal(valueOf(await consumer.next()), "0");
  await assert.rejects(consumer.next(), { code: "topic.unknown" });
  await assert.rejects(consumer.next(), { code: "topic.unknown" });
  await consumer.close();
});

test("a subscription whose leader is lost is made again, with nothing thrown", async () => {
  const peer = await peerWith(QUEUE);
  const consumer = await (await connected(peer)).consumer("q");
  deliver(peer, 9n, [batchAt(0, 1)]);
  assert.equal(valueOf(await consumer.next()), "0");
  let count = 1;
  for (const code of ["peer.unreachable", "partition.not_leader"]) {
    peer.say({ member: "ended", content: { subscription: 1, code, text: "the leader is gone" } });
    await peer.hears("subscribe", ++count);
  }
  deliver(peer, 10n, [batchAt(1, 1)]);
  assert.equal(valueOf(await consumer.next()), "1");
  await consumer.close();
});

test("closing settles what was said, unsubscribes, and ends a loop elsewhere", async () => {
  const peer = await peerWith(QUEUE);
  const consumer = await (await connected(peer)).consumer("q");
  deliver(peer, 9n, [batchAt(0, 1)]);
  const seen: string[] = [];
  const loop = (async () => {
    for await (const message of consumer) {
      seen.push(valueOf(message));
      void message.ack();
    }
  })();
  await peer.hears("settle");
  await consumer.close();
  await loop;
  assert.deepEqual(seen, ["0"]);
  assert.deepEqual(
    peer.heard.slice(-3).map((heard) => heard.message.member),
    ["settle", "credit", "unsubscribe"],
  );
});

test("a fetch leaves out what lies before its offset", async () => {
  const peer = await peerWith();
  peer.script.fetch = (heard) => {
    const content = { startOffset: 0n, highWatermark: 9n };
    peer.say({ member: "fetched", content }, heard.frame.correlation, [batchAt(0, 2), batchAt(2, 3)]);
    return undefined;
  };
  const fetched = await (await connected(peer)).fetch("t", 0, 3n);
  assert.deepEqual(
    fetched.batches.flatMap((batch) => [...batch].map((message) => message.offset)),
    [3n, 4n],
  );
  assert.throws(() => fetched.batches[0]!.ack(), { code: "delivery.wrong_kind" });
  assert.ok(fetched.batches[0]!.records instanceof RecordBatch);
});
