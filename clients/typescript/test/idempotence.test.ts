// The numbers of an idempotent producer's batches: those of its lanes, and what becomes of them.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import type { Request } from "../src/codec.js";
import { Client, connect, LinnError, type BatchHeader, type ClientOptions, type Placement } from "../src/index.js";
import { ProducerIds } from "../src/producer-ids.js";
import { Lane } from "../src/lane.js";
import { PendingBatch } from "../src/pending-batch.js";
import { Peer, WELCOME, type Heard, type Script } from "./peer.js";

const open: { close(): Promise<void> }[] = [];

afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
});

async function peerWith(script: Script = {}): Promise<Peer> {
  const peer = await Peer.open(script);
  open.push(peer);
  return peer;
}

/** A client that tries again soon. */
async function connected(peer: Peer, options: ClientOptions = {}): Promise<Client> {
  const client = await connect(peer.url, { backoffMs: 1, backoffMaxMs: 10, onConnection: () => {}, ...options });
  open.push(client);
  return client;
}

const PUBLISHED: Request = { member: "published", content: { placements: [{ partition: 0, copies: 1 }] } };

function failed(code: string, retriable = true): Request {
  return { member: "failed", content: { code, text: "as the script says", retriable } };
}

const FULL = failed("topic.full");
const OUT_OF_ORDER = failed("producer.out_of_order");

/** A batch's value, producer id, epoch and first sequence. */
type Said = [value: string, producerId: number, epoch: number, firstSequence: number];

function said({ batches }: Heard): Said {
  const { producerId, producerEpoch, firstSequence } = batches[0]!.header;
  return [Buffer.from(batches[0]!.value(0)!).toString(), Number(producerId), producerEpoch, firstSequence];
}

async function heard(peer: Peer, count: number): Promise<Said[]> {
  return (await peer.hears("publish", count)).map(said);
}

/** Publish a batch for each value. */
function publishAll(client: Client, ...values: string[]): Promise<Placement | undefined>[] {
  const producer = client.producer({ topic: "t" });
  return values.map((value) => producer.publishBatch([{ value }, { value }]));
}

async function answer(peer: Peer, number: number, message: Request): Promise<void> {
  peer.say(message, (await peer.hears("publish", number + 1))[number]!.frame.correlation);
}

/** A lane whose partitions the broker chooses. */
function laneOf(producerId: bigint): Lane {
  const ids = new ProducerIds(producerId, 7n);
  return new Lane(-1, () => ids.identify(ids));
}

/** A batch of so many records, none of which is looked at. */
function pending(sequence: number, count: number): PendingBatch {
  const batch = new PendingBatch(
    sequence,
    -1,
    0n,
    false,
    setTimeout(() => {}),
  );
  batch.records.length = count;
  return batch;
}

/** Until what was said before has been read by the client. */
async function caughtUp(client: Client, peer: Peer): Promise<void> {
  peer.script.describe = () => ({ member: "description", content: {} });
  await client.describe();
}

// --- numbers ---------------------------------------------------------------------------------------------------------

test("batches are numbered by their records, and sealed with their numbers", async () => {
  const peer = await peerWith({ publish: () => PUBLISHED });
  const producer = (await connected(peer)).producer({ exchange: "x" });
  for (const size of [1, 3, 2]) await producer.publishBatch(Array.from({ length: size }, () => ({ value: "v" })));
  assert.deepEqual(await heard(peer, 3), [
    ["v", 256, 0, 0],
    ["v", 256, 0, 1],
    ["v", 256, 0, 4],
  ]);
  for (const { batches, frame } of await peer.hears("publish", 3)) {
    assert.equal(frame.batches, 1);
    batches[0]!.verify();
  }
});

test("each partition that is named has its own numbers, with another id than where the broker chooses", async () => {
  const peer = await peerWith({ publish: () => PUBLISHED });
  const client = await connected(peer);
  const producer = client.producer({ topic: "t" });
  for (const partition of [-1, 2, 5, 2, -1]) await producer.publishBatch([{ value: String(partition) }], { partition });
  assert.deepEqual(await heard(peer, 5), [
    ["-1", 256, 0, 0],
    ["2", 257, 0, 0],
    ["5", 257, 0, 0],
    ["2", 257, 0, 1],
    ["-1", 256, 0, 1],
  ]);
  await client.producer({ exchange: "x" }).publishBatch([{ value: "x" }], { partition: 2 }); // Which is without effect.
  const attributes = (await peer.hears("publish", 6)).map(({ batches }) => batches[0]!.header.attributes);
  assert.deepEqual(attributes, [4, 0, 0, 0, 4, 4]);
});

test("without idempotence, and without acks, batches have no numbers", async () => {
  const peer = await peerWith({
    publish: ({ message: { content } }) => ((content as { acks: number }).acks ? PUBLISHED : undefined),
  });
  const client = await connected(peer);
  for (const options of [{ idempotent: false, inFlightMax: 9 }, { acks: "none" } as const]) {
    await client.producer({ topic: "t" }, options).publish({ value: "" });
  }
  const headers = (await peer.hears("publish", 2)).map(({ batches }): BatchHeader => batches[0]!.header);
  assert.deepEqual(
    headers.map(({ producerId, attributes }) => [producerId, attributes]),
    [
      [0n, 0],
      [0n, 0],
    ],
  );
});

test("an idempotent producer has no more in flight than a broker remembers", async () => {
  const client = await connected(await peerWith());
  assert.throws(() => client.producer({ topic: "t" }, { inFlightMax: 9 }), { code: "message.invalid" });
});

test("a batch that could not be built takes no numbers", async () => {
  const peer = await peerWith({ publish: () => PUBLISHED });
  const producer = (await connected(peer)).producer({ topic: "t" });
  const records = Array.from({ length: 9 }, () => ({ value: Buffer.alloc(1 << 20) }));
  await assert.rejects(producer.publishBatch(records), { code: "batch.too_large" });
  await producer.publishBatch([{ value: "a" }]);
  assert.deepEqual(await heard(peer, 1), [["a", 256, 0, 0]]);
});

// --- sending again ---------------------------------------------------------------------------------------------------

test("after a lost connection batches keep their numbers, and those of the first welcome go on", async () => {
  const peer = await peerWith();
  const client = await connected(peer);
  const publishes = publishAll(client, "a", "b");
  await heard(peer, 2);
  peer.script.publish = () => PUBLISHED;
  peer.script.hello = () => ({ ...WELCOME, content: { ...WELCOME.content, producerId: 512n } }) as Request;
  peer.hangUp();
  await Promise.all(publishes);
  await Promise.all(publishAll(client, "c"));
  assert.deepEqual(await heard(peer, 5), [
    ["a", 256, 0, 0],
    ["b", 256, 0, 2],
    ["a", 256, 0, 0],
    ["b", 256, 0, 2],
    ["c", 257, 0, 0],
  ]);  const shown = (await peer.hears("hello", 2)).map(({ message: { content } }) => [content.producerId, content.producerKey]);
  assert.deepEqual(shown, [
    [0n, 0n],
    [256n, 7n],
  ]);
});

test("a client whose ids the broker does not know any more goes on with those of another welcome", async () => {
  const peer = await peerWith({ publish: () => PUBLISHED });
  const client = await connected(peer);
  const producer = client.producer({ topic: "t" });
  await producer.publishBatch([{ value: "a" }]);
  const other = { ...WELCOME, content: { ...WELCOME.content, producerId: 1024n, producerKey: 8n } } as Request;
  peer.script.hello = ({ message }) =>
    message.member === "hello" && message.content.producerId === 256n ? failed("producer.foreign", false) : other;
  peer.hangUp();
  await peer.hears("hello", 3);
  await producer.publishBatch([{ value: "b" }]);
  await Promise.all(publishAll(client, "c"));
  assert.deepEqual(await heard(peer, 3), [
    ["a", 256, 0, 0],
    ["b", 1024, 0, 0],
    ["c", 1025, 0, 0],
  ]);
});

test("what is refused for now is sent again in order, once all in flight has been answered", async () => {
  const peer = await peerWith();
  const client = await connected(peer);
  const producer = client.producer({ topic: "t" }, { inFlightMax: 3 });
  const publishes = ["a", "b", "c", "d"].map((value) => producer.publishBatch([{ value }]));
  await answer(peer, 0, FULL);
  await answer(peer, 1, OUT_OF_ORDER);
  await caughtUp(client, peer);
  await heard(peer, 3);
  peer.script.publish = () => PUBLISHED;
  await answer(peer, 2, OUT_OF_ORDER);
  await Promise.all(publishes);
  assert.deepEqual((await heard(peer, 7)).slice(2), [
    ["c", 256, 0, 2],
    ["a", 256, 0, 0],
    ["b", 256, 0, 1],
    ["c", 256, 0, 2],
    ["d", 256, 0, 3],
  ]);
});

test("a lane that stands still holds no other back", async () => {
  const peer = await peerWith();
  const client = await connected(peer, { backoffMs: 60_000, backoffMaxMs: 60_000 });
  const producer = client.producer({ topic: "t" });
  const held = assert.rejects(producer.publishBatch([{ value: "held" }], { partition: 0 }), { code: "client.closed" });
  await answer(peer, 0, FULL);
  await caughtUp(client, peer);
  const behind = assert.rejects(producer.publishBatch([{ value: "" }], { partition: 0 }), { code: "client.closed" });
  peer.script.publish = () => PUBLISHED;
  await producer.publishBatch([{ value: "other" }], { partition: 1 });
  assert.deepEqual(
    (await heard(peer, 2)).map(([value]) => value),
    ["held", "other"],
  );
  await client.close();
  await Promise.all([held, behind]);
});

test("a refusal that is not to be tried again fails the publish, and so does one too many", async () => {
  const peer = await peerWith({ publish: () => failed("producer.fenced", false) });
  await assert.rejects(publishAll(await connected(peer), "a")[0]!, { code: "producer.fenced" });
  assert.equal((await heard(peer, 1)).length, 1);
  const full = await peerWith({ publish: () => FULL });
  await assert.rejects(publishAll(await connected(full, { retriesMax: 2 }), "a")[0]!, { code: "topic.full" });
  assert.equal((await heard(full, 3)).length, 3);
});

test("what is refused until its time is over fails with the refusal", async () => {
  const peer = await peerWith({ publish: () => FULL });
  // The time is over in a pause: while a publish is on its way, it is a timeout.
  const client = await connected(peer, { requestTimeoutMs: 100, backoffMs: 60_000, backoffMaxMs: 60_000 });
  await assert.rejects(publishAll(client, "a")[0]!, { code: "topic.full", retriable: true });
});

// --- epochs ----------------------------------------------------------------------------------------------------------

test("what is out of order because a batch before it failed is numbered anew in a new epoch", async () => {
  const peer = await peerWith();
  const client = await connected(peer);
  const [a, b, c] = publishAll(client, "a", "b", "c");
  const failure = assert.rejects(a!, { code: "message.invalid" });
  await answer(peer, 0, failed("message.invalid", false));
  await answer(peer, 1, OUT_OF_ORDER);
  await caughtUp(client, peer);
  assert.equal((await heard(peer, 3)).length, 3, "nothing is sent while one is in flight");
  peer.script.publish = () => PUBLISHED;
  await answer(peer, 2, OUT_OF_ORDER);
  await Promise.all([failure, b, c]);
  assert.deepEqual((await heard(peer, 5)).slice(2), [
    ["c", 256, 0, 4],
    ["b", 256, 1, 0],
    ["c", 256, 1, 2],
  ]);
});

test("a refusal because of a batch before it is not counted as an attempt", async () => {
  const answers = [failed("message.invalid", false), OUT_OF_ORDER, PUBLISHED];
  const peer = await peerWith({ publish: () => answers.shift() });
  const [a, b] = publishAll(await connected(peer, { retriesMax: 0 }), "a", "b");
  await Promise.all([assert.rejects(a!, { code: "message.invalid" }), b]);
});

test("after a timeout the next batch begins an epoch", async () => {
  const peer = await peerWith();
  const client = await connected(peer, { requestTimeoutMs: 100 });
  const producer = client.producer({ topic: "t" });
  const lost = producer.publishBatch([{ value: "lost" }]);
  await assert.rejects(lost, { code: "request.timeout", message: /may or may not be stored/ });
  peer.script.publish = () => PUBLISHED;
  for (const value of ["next", "last"]) await producer.publishBatch([{ value }]);
  assert.deepEqual(await heard(peer, 3), [
    ["lost", 256, 0, 0],
    ["next", 256, 1, 0],
    ["last", 256, 1, 1],
  ]);
});

test("a new epoch begins once nothing is in flight", () => {
  const lane = laneOf(256n);
  const [lost, slow, next] = [1, 1, 1].map((count, sequence) => pending(sequence, count));
  lane.waiting.push(lost!, slow!, next!);
  for (const batch of [lost!, slow!]) lane.sent(batch, lane.numbersOf(batch));
  assert.equal(lane.first, next);
  lane.leaveOut(lost!);
  assert.equal(lane.first, undefined);
  lane.inFlight.delete(slow!);
  assert.equal(lane.first, next);
  assert.deepEqual(lane.numbersOf(next!), { producerId: 256n, epoch: 1, firstSequence: 0, scattered: true });
});

test("what was numbered before a batch failed keeps its numbers", async () => {
  const peer = await peerWith();
  const client = await connected(peer);
  const publishes = publishAll(client, "a", "b");
  await answer(peer, 0, failed("message.invalid", false));
  await assert.rejects(publishes[0]!, { code: "message.invalid" });
  peer.script.publish = () => PUBLISHED;
  peer.hangUp();
  await publishes[1];
  assert.deepEqual((await heard(peer, 3))[2], ["b", 256, 0, 2]);
});

test("an epoch ends before its sequence does", () => {
  const lane = laneOf(256n);
  const numbers = [2 ** 31, 2 ** 31 - 1, 2, 5].map((count, sequence) => {
    const batch = pending(sequence, count);
    lane.waiting.push(batch);
    assert.equal(lane.first, batch);
    lane.sent(batch, lane.numbersOf(batch));
    lane.inFlight.delete(batch);
    return [batch.numbers!.epoch, batch.numbers!.firstSequence];
  });
  assert.deepEqual(numbers, [
    [0, 0],
    [0, 2 ** 31],
    [1, 0],
    [1, 2],
  ]);
});

// --- ids -------------------------------------------------------------------------------------------------------------

test("an id is used again once its producer is closed, in a later epoch", async () => {
  const peer = await peerWith({ publish: () => PUBLISHED });
  const client = await connected(peer);
  const producers = Array.from({ length: 257 }, () => client.producer({ topic: "t" }));
  const outcomes = await Promise.allSettled(producers.map((producer) => producer.publish({ value: "" })));
  const [refused] = outcomes.filter((outcome) => outcome.status === "rejected");
  const error = refused!.reason as LinnError;
  assert.deepEqual([error.code, error.retriable], ["limit.exceeded", false]);
  assert.match(error.message, /at most 256 producer ids: close a producer/);
  await Promise.all([producers[7]!.close(), producers[7]!.close()]);
  await producers[256]!.publish({ value: "at last" });
  assert.deepEqual((await heard(peer, 257)).at(-1), ["at last", 256 + 7, 1, 0]);
  await assert.rejects(client.producer({ topic: "t" }).publish({ value: "" }), { code: "limit.exceeded" });
});

test("a producer that is dropped gives its id back", async () => {
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  const peer = await peerWith({ publish: () => PUBLISHED });
  const client = await connected(peer);
  for (let count = 0; count < 256; count++) await client.producer({ topic: "t" }).publish({ value: "" });
  const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
  await turn();
  collectGarbage();
  await turn(); // Finalizers have one of their own.
  await client.producer({ topic: "t" }).publish({ value: "next" });
  assert.deepEqual((await heard(peer, 257)).at(-1)![2], 1);
});

test("an id whose epochs are used up is replaced, and not used again", () => {
  const ids = new ProducerIds(256n, 7n);
  const identity = ids.identify({});
  for (let epoch = 0; epoch < 0xffff; epoch++) identity.nextEpoch();
  assert.deepEqual([identity.producerId, identity.epoch], [256n, 0xffff]);
  identity.nextEpoch();
  assert.deepEqual([identity.producerId, identity.epoch], [257n, 0]);
  for (let count = 2; count < 256; count++) ids.take();
  ids.giveBack(identity);
  assert.deepEqual(ids.take(), [257n, 1]);
  assert.throws(() => ids.take(), { code: "limit.exceeded" });
});
