// What a consumer of a queue does for others that wait, and for jobs that take longer than their leases.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { buildBatch, checkRecord } from "../src/batch-builder.js";
import { connect, type Consumer, type ConsumerOptions, type Message } from "../src/index.js";
import { Peer } from "./peer.js";
import { batchNamed } from "./vectors.js";

const [ACK, NACK, EXTEND, RELEASE] = [0, 1, 3, 4];
const WHOLE_LEASE = [-1, -1] as const;
const open: { close(): Promise<void> }[] = [];

afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
});

/** A consumer of a queue whose leases last so long, and its broker. */
async function queue(leaseMs: number, options: ConsumerOptions = {}): Promise<[Peer, Consumer]> {
  const peer = await Peer.open({
    subscribe: () => ({ member: "subscribed", content: { subscription: 1, kind: 0, leaseMs } }),
    settle: () => ({ member: "settled", content: {} }),
    unsubscribe: () => ({ member: "done", content: null }),
    describe: () => ({ member: "description", content: {} }),
  });
  const client = await connect(peer.url);
  open.push(peer, client);
  return [peer, await client.consumer("q", options)];
}

function deliver(peer: Peer, deliveryId: bigint, first: number, count: number): void {
  const records = Array.from({ length: count }, (_, index) => checkRecord({ value: String(first + index) }, 0));
  const bytes = buildBatch(records, { baseId: 0n });
  bytes.writeBigInt64LE(BigInt(first), 16);
  peer.say({ member: "deliver", content: { subscription: 1, partition: 0, deliveryId, attempt: 1 } }, 0n, [bytes]);
}

/** All settlements (verdict, delivery, first, end), once there is one with this verdict. */
async function settled(peer: Peer, verdict: number): Promise<[number, number, number, number][]> {
  for (let count = 1; ; count++) {
    const heard = await peer.hears("settle", count);
    const entries = heard.flatMap(({ message }) => message.content.entries);
    if (!entries.some((entry) => entry.verdict === verdict)) continue;
    return entries.map((entry) => [entry.verdict, Number(entry.deliveryId), Number(entry.first), Number(entry.end)]);
  }
}

test("a consumer asks for a few records, and for more as they are settled", async () => {
  const [peer, consumer] = await queue(30_000);
  const [subscribe] = await peer.hears("subscribe");
  assert.equal(subscribe!.message.content.credit, 4);
  let windows: number[] = [4];
  for (let first = 0, round = 1; round <= 3; round++) {
    const window = windows.at(-1)!;
    deliver(peer, BigInt(round), first, window);
    for (let count = 0; count < window; count++) void (await consumer.next())!.ack();
    first += window;
    assert.equal(await consumer.next(0), undefined);
    const credits = await peer.hears("credit", round);
    windows = [4, ...credits.map(({ message }) => message.content.records)];
  }
  assert.deepEqual(windows.slice(0, 4), [4, 8, 16, 32]);
});

test("an application that collects before it settles gets what it waits for", async () => {
  const [peer, consumer] = await queue(30_000);
  deliver(peer, 1n, 0, 4);
  const collected = [];
  for (let count = 0; count < 4; count++) collected.push(await consumer.next());
  const next = consumer.next();
  const [credit] = await peer.hears("credit");
  assert.equal(credit!.message.content.records, 8);
  deliver(peer, 1n, 4, 4);
  assert.equal((await next)!.offset, 4n);
});

test("scattered records count as they are, and not as the span that they cover", async () => {
  const [peer, consumer] = await queue(30_000);
  const content = { subscription: 1, partition: 0, deliveryId: 1n, attempt: 1 };
  peer.say({ member: "deliver", content }, 0n, [batchNamed("gaps")]);
  const taken = [(await consumer.next())!, (await consumer.next())!, (await consumer.next())!];
  assert.deepEqual(
    taken.map(({ offset }) => offset),
    [44n, 58n, 81n],
  );
  void taken[0]!.ack();
  assert.equal(await consumer.next(0), undefined);
  assert.deepEqual(await settled(peer, ACK), [[ACK, 1, 44, 58]]);
  await consumer.close();
  const credits = await peer.hears("credit");
  // One of four is settled: too few for more. The consumer that leaves asks for none.
  assert.deepEqual(
    credits.map(({ message }) => message.content.records),
    [0],
  );
});

test("a prefetch that was named stays as it is", async () => {
  const [peer, consumer] = await queue(30_000, { prefetch: 50 });
  const [subscribe] = await peer.hears("subscribe");
  assert.equal(subscribe!.message.content.credit, 50);
  deliver(peer, 1n, 0, 50);
  for (let count = 0; count < 50; count++) void (await consumer.next())!.ack();
  assert.equal(await consumer.next(0), undefined);
  assert.ok(!peer.heard.some(({ message }) => message.member === "credit"));
});

test("what the application works on is renewed, and what it has not seen goes back", async () => {
  const [peer, consumer] = await queue(2_000, { prefetch: 100 });
  deliver(peer, 7n, 10, 3);
  deliver(peer, 8n, 13, 2);
  const job = (await consumer.next())!;
  assert.deepEqual(await settled(peer, EXTEND), [
    [RELEASE, 7, 11, 13],
    [RELEASE, 8, ...WHOLE_LEASE],
    [EXTEND, 7, ...WHOLE_LEASE],
  ]);
  assert.equal(await consumer.next(0), undefined);
  await job.ack();
});

test("a settlement of a whole delivery names no offsets", async () => {
  const [peer, consumer] = await queue(30_000, { prefetch: 100 });
  deliver(peer, 7n, 10, 4);
  const batch = (await consumer.nextBatch())!;
  const messages = [...batch];
  await messages[1]!.nack();
  await batch.ack();
  assert.deepEqual(await settled(peer, ACK), [
    [NACK, 7, 11, 12],
    [ACK, 7, ...WHOLE_LEASE],
  ]);
});

test("nothing is renewed where there is to be no renewal", async () => {
  const [peer, consumer] = await queue(400, { prefetch: 100, renewalMaxMs: 0 });
  deliver(peer, 7n, 0, 2);
  const job = (await consumer.next())!;
  assert.deepEqual(await settled(peer, RELEASE), [[RELEASE, 7, 1, 2]]);
  await job.nack();
  assert.ok((await settled(peer, 1)).every(([verdict]) => verdict !== EXTEND));
});

test("what the application refers to no longer is not renewed", async () => {
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  const [peer, consumer] = await queue(2_000, { prefetch: 100 });
  let lost: Message | undefined;
  deliver(peer, 7n, 0, 1);
  deliver(peer, 8n, 1, 1);
  lost = await consumer.next();
  assert.equal(lost!.offset, 0n);
  const kept = (await consumer.next())!;
  lost = undefined;
  // A reference that was looked at lives to the end of its turn.
  await new Promise((resolve) => setImmediate(resolve));
  collectGarbage();
  assert.deepEqual(await settled(peer, EXTEND), [[EXTEND, 8, ...WHOLE_LEASE]]);
  await kept.ack();
});

test("what waited longer than its lease is not handed over, also where nobody could tell", async () => {
  const [peer, consumer] = await queue(30);
  deliver(peer, 7n, 0, 2);
  assert.equal((await consumer.next())!.offset, 0n);
  // The application blocks the event loop.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 40);
  assert.equal(await consumer.next(0), undefined);
});

test("closing gives back what was not read", async () => {
  const [peer, consumer] = await queue(30_000, { prefetch: 100 });
  deliver(peer, 7n, 0, 3);
  deliver(peer, 8n, 3, 2);
  void (await consumer.next())!.ack();
  await consumer.close();
  assert.deepEqual(await settled(peer, RELEASE), [
    [ACK, 7, 0, 1],
    [RELEASE, 7, 1, 3],
    [RELEASE, 8, ...WHOLE_LEASE],
  ]);
  assert.equal(peer.heard.at(-1)!.message.member, "unsubscribe");
});

test("a consumer that closes leaves before what it gives back could come again", async () => {
  const [peer, consumer] = await queue(30_000, { prefetch: 100 });
  peer.script.settle = () => undefined;
  deliver(peer, 7n, 0, 3);
  await consumer.next();
  await consumer.close();
  const members = peer.heard.map(({ message }) => message.member);
  assert.deepEqual(members.slice(-3), ["credit", "settle", "unsubscribe"]);
});
