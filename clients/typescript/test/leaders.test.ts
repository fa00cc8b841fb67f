// Producers go to the broker that leads their topic, and follow it.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import type { Request } from "../src/codec.js";
import { Connection } from "../src/connection.js";
import { connect, type Client, type ClientOptions, type ConnectionEvent } from "../src/index.js";
import { Leaders, TopicLeader, type AtHand } from "../src/leaders.js";
import { addressOf, placeOf } from "../src/url.js";
import { Peer, WELCOME, type Heard, type Script } from "./peer.js";

const open: { close(): Promise<unknown> }[] = [];

afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
});

// --- a cluster by script ---------------------------------------------------------------------------------------------

function welcome(node: number, cluster = "c", keepaliveMs = 0): Request {
  return { member: "welcome", content: { ...WELCOME.content, broker: `b${node}`, cluster, node, keepaliveMs } };
}

function published(leaderEpoch = 1): Request {
  return { member: "published", content: { placements: [{ partition: 0, copies: 1, leaderEpoch }] } };
}

function failed(code: string): Request {
  return { member: "failed", content: { code, text: "as the script says", retriable: true } };
}

function addressAt(peer: Peer): string {
  return peer.url.replace("linn://", "");
}

/** Brokers with the numbers from 1, which describe any topic as led by `leader` in `epoch`. */
class Cluster {
  leader = 2;
  epoch = 1;
  topicId = 7n;
  readonly peers: Peer[] = [];
  readonly addresses: string[] = [];

  static async of(...scripts: Script[]): Promise<Cluster> {
    const cluster = new Cluster();
    for (const [index, script] of scripts.entries()) {
      const describe = (): Request => cluster.description;
      const peer = await Peer.open({ hello: () => welcome(index + 1), describe, ...script });
      open.push(peer);
      cluster.peers.push(peer);
      cluster.addresses.push(addressAt(peer));
    }
    return cluster;
  }

  get description(): Request {
    const partitions = [{ leader: this.leader, leaderEpoch: this.epoch }];
    const topics = [{ name: "t", kind: "queue", idLow: this.topicId, partitions }];
    const nodes = this.addresses.map((address, index) => ({ id: index + 1, address }));
    return { member: "description", content: { nodes, topics } };
  }

  at(node: number): Peer {
    return this.peers[node - 1]!;
  }
}

const CONFIRMS: Script = { publish: () => published() };

/** A client of one of the brokers that is quick to connect again, and quiet. */
async function connected(url: string, options: ClientOptions = {}): Promise<Client> {
  const client = await connect(url, { backoffMs: 1, backoffMaxMs: 10, onConnection: () => {}, ...options });
  open.push(client);
  return client;
}

/** A batch's value and numbers. */
function said({ batches }: Heard): string {
  const { producerId, producerEpoch, firstSequence } = batches[0]!.header;
  return `${Buffer.from(batches[0]!.value(0)!).toString()} ${producerId}/${producerEpoch}/${firstSequence}`;
}

/** The values of the batches that a broker has heard. */
function valuesAt(peer: Peer): string[] {
  return peer.heard.filter(({ message }) => message.member === "publish").map((heard) => said(heard).split(" ")[0]!);
}

async function answer(peer: Peer, number: number, message: Request): Promise<void> {
  peer.say(message, (await peer.hears("publish", number + 1))[number]!.frame.correlation);
}

// --- where batches go ------------------------------------------------------------------------------------------------

test("a producer publishes at the leader from its first batch on, by its ids", async () => {
  const cluster = await Cluster.of({}, CONFIRMS);
  const producer = (await connected(cluster.at(1).url)).producer({ topic: "t" });
  for (const value of ["a", "b"]) await producer.publish({ value });
  assert.deepEqual((await cluster.at(2).hears("publish", 2)).map(said), ["a 256/0/0", "b 256/0/1"]);
  assert.deepEqual(valuesAt(cluster.at(1)), []);
  const [hello] = await cluster.at(2).hears("hello");
  assert.deepEqual([hello!.message.content.producerId, hello!.message.content.producerKey], [256n, 7n]);
  assert.equal((await cluster.at(1).hears("describe")).length, 1);
});

test("producers share one connection to a broker", async () => {
  const cluster = await Cluster.of({}, CONFIRMS);
  const client = await connected(cluster.at(1).url);
  const producers = [0, 1, 2].map(() => client.producer({ topic: "t" }));
  await Promise.all(producers.map((producer) => producer.publish({ value: "" })));
  assert.equal((await cluster.at(2).hears("hello")).length, 1);
  assert.equal(valuesAt(cluster.at(2)).length, 3);
});

test("a broker at hand that leads needs no other connection", async () => {
  const cluster = await Cluster.of(CONFIRMS, {});
  cluster.leader = 1;
  await (await connected(cluster.at(1).url)).producer({ topic: "t" }).publish({ value: "" });
  assert.deepEqual([cluster.at(1).heard.length, cluster.at(2).heard.length], [3, 0]);
});

test("a broker that is alone is not asked who leads", async () => {
  const cluster = await Cluster.of({ ...CONFIRMS, hello: () => welcome(0) });
  await (await connected(cluster.at(1).url)).producer({ topic: "t" }).publish({ value: "" });
  assert.deepEqual(
    cluster.at(1).heard.map(({ message }) => message.member),
    ["hello", "publish"],
  );
});

test("a producer for an exchange stays with the broker at hand", async () => {
  const cluster = await Cluster.of(CONFIRMS, CONFIRMS);
  await (await connected(cluster.at(1).url)).producer({ exchange: "t" }).publish({ value: "a" });
  assert.deepEqual(valuesAt(cluster.at(1)), ["a"]);
  assert.equal(cluster.at(2).heard.length, 0);
});

test("a topic that the broker at hand can't describe is published to there", async () => {
  const cluster = await Cluster.of({ ...CONFIRMS, describe: () => failed("limit.exceeded") }, CONFIRMS);
  await (await connected(cluster.at(1).url)).producer({ topic: "t" }).publish({ value: "a" });
  assert.deepEqual(valuesAt(cluster.at(1)), ["a"]);
});

test("a leader that does not answer holds a producer back for a second only", async () => {
  const cluster = await Cluster.of(CONFIRMS, { hello: () => undefined });
  const client = await connected(cluster.at(1).url, { connectTimeoutMs: 60_000 });
  await client.producer({ topic: "t" }).publish({ value: "a" });
  assert.deepEqual(valuesAt(cluster.at(1)), ["a"]);
});

for (const [what, hello] of [
  ["another node", welcome(3)],
  ["another cluster", welcome(2, "other")],
] as const) {
  test(`a connection that reaches ${what} does not count`, async () => {
    const cluster = await Cluster.of(CONFIRMS, { ...CONFIRMS, hello: () => hello });
    const events: ConnectionEvent[] = [];
    const client = await connected(cluster.at(1).url, { onConnection: (event) => events.push(event) });
    const producer = client.producer({ topic: "t" });
    for (const value of ["a", "b"]) await producer.publish({ value });
    assert.deepEqual(valuesAt(cluster.at(1)), ["a", "b"]);
    await cluster.at(2).hears("goodbye");
    assert.equal((await cluster.at(2).hears("hello")).length, 1); // And not again so soon.
    const address = addressAt(cluster.at(2));
    assert.deepEqual(
      events.map(({ state, text }) => [state, text]),
      [
        [
          "bypassed",
          `broker 2 can't be reached, its topics are used through b1: another broker answers at ${address}`,
        ],
      ],
    );
  });
}

test("a client that closes says goodbye to all brokers", async () => {
  const cluster = await Cluster.of({}, CONFIRMS);
  const client = await connected(cluster.at(1).url);
  await client.producer({ topic: "t" }).publish({ value: "" });
  await client.close();
  for (const peer of cluster.peers) await peer.hears("goodbye");
});

// --- from one connection to another ----------------------------------------------------------------------------------

test("batches go to another connection when all that are in flight are answered", async () => {
  const cluster = await Cluster.of({}, CONFIRMS);
  cluster.leader = 1;
  const client = await connected(cluster.at(1).url);
  const [producer, other] = [client.producer({ topic: "t" }), client.producer({ topic: "t" })];
  const [a, b] = ["a", "b"].map((value) => producer.publishBatch([{ value }]));
  await cluster.at(1).hears("publish", 2);
  [cluster.leader, cluster.epoch] = [2, 2];
  await answer(cluster.at(1), 0, published(2));
  await a;
  await other.publish({ value: "x" }); // Now there is a connection to the second broker.
  const c = producer.publishBatch([{ value: "c" }]);
  await other.publish({ value: "y" });
  assert.deepEqual([valuesAt(cluster.at(1)), valuesAt(cluster.at(2))], [["a", "b"], ["x", "y"]]);
  await answer(cluster.at(1), 1, published(2));
  await Promise.all([b, c]);
  assert.deepEqual((await cluster.at(2).hears("publish", 3)).map(said)[2], "c 256/0/2");
});

test("when the connection to the leader is lost, what was in flight is sent again first, with its numbers", async () => {
  const cluster = await Cluster.of(CONFIRMS, {});
  const producer = (await connected(cluster.at(1).url)).producer({ topic: "t" });
  const publishes = ["a", "b"].map((value) => producer.publishBatch([{ value }]));
  await cluster.at(2).hears("publish", 2);
  await cluster.at(2).goAway();
  publishes.push(producer.publishBatch([{ value: "c" }]));
  await Promise.all(publishes);
  assert.deepEqual((await cluster.at(1).hears("publish", 3)).map(said), ["a 256/0/0", "b 256/0/1", "c 256/0/2"]);
});

test("a leader that is stopping is left", async () => {
  const cluster = await Cluster.of(CONFIRMS, CONFIRMS);
  const client = await connected(cluster.at(1).url);
  const producer = client.producer({ topic: "t" });
  cluster.at(2).script.publish = (_, peer) => {
    peer.say({ member: "goodbye", content: { reason: "stopping" } });
    return published();
  };
  for (const value of ["a", "b"]) await producer.publish({ value });
  assert.deepEqual([valuesAt(cluster.at(1)), valuesAt(cluster.at(2))], [["b"], ["a"]]);
});

test("without a broker at hand batches go to the leader", async () => {
  const cluster = await Cluster.of({}, CONFIRMS);
  let lost = (): void => {};
  const isLost = new Promise<void>((resolve) => (lost = resolve));
  const producer = (await connected(cluster.at(1).url, { onConnection: () => lost() })).producer({ topic: "t" });
  await producer.publish({ value: "a" });
  await cluster.at(1).goAway();
  await isLost;
  await producer.publish({ value: "b" });
  assert.deepEqual(valuesAt(cluster.at(2)), ["a", "b"]);
});

test("without acks batches stay where they began until that connection is lost", async () => {
  const cluster = await Cluster.of({}, {}, {});
  for (const node of [2, 3]) cluster.at(node).script.publish = (heard) => (isAnswered(heard) ? published(2) : undefined);
  const client = await connected(cluster.at(1).url);
  const [silent, other] = [client.producer({ topic: "t" }, { acks: "none" }), client.producer({ topic: "t" })];
  await silent.publish({ value: "a" });
  [cluster.leader, cluster.epoch] = [3, 2];
  while (!valuesAt(cluster.at(3)).includes("x")) await other.publish({ value: "x" });
  cluster.at(1).hangUp();
  await client.describe(); // Over another connection to the broker at hand, over which producers ask again.
  await silent.publish({ value: "b" });
  await client.describe();
  await silent.publish({ value: "c" });
  await client.describe();
  await cluster.at(2).goAway();
  while (!valuesAt(cluster.at(3)).includes("d")) {
    await silent.publish({ value: "d" }); // Until the client has noticed.
    await client.describe();
  }
  const withoutOther = valuesAt(cluster.at(2)).filter((value) => value !== "x");
  assert.deepEqual(withoutOther, ["a", "b", "c"]);
  assert.ok(!valuesAt(cluster.at(3)).includes("c"));
});

function isAnswered({ message }: Heard): boolean {
  return message.member === "publish" && message.content.acks > 0;
}

// --- news of leaders -------------------------------------------------------------------------------------------------

test("after a confirmation with a later epoch a producer asks who leads", async () => {
  const cluster = await Cluster.of(CONFIRMS, { publish: () => published(cluster.epoch) }, CONFIRMS);
  const producer = (await connected(cluster.at(1).url)).producer({ topic: "t" });
  for (const value of ["a", "b"]) await producer.publish({ value });
  assert.equal((await cluster.at(1).hears("describe")).length, 1);
  [cluster.leader, cluster.epoch] = [3, 2];
  while (valuesAt(cluster.at(3)).length === 0) await producer.publish({ value: "c" });
  assert.equal((await cluster.at(1).hears("describe")).length, 2);
});

test("after a refusal by a broker that leads no more a producer asks who leads", async () => {
  const refuses = (): Request => (cluster.leader === 2 ? published() : failed("partition.not_leader"));
  const cluster = await Cluster.of(CONFIRMS, { publish: refuses }, CONFIRMS);
  const producer = (await connected(cluster.at(1).url)).producer({ topic: "t" });
  await producer.publish({ value: "a" });
  [cluster.leader, cluster.epoch] = [3, 2];
  while (valuesAt(cluster.at(3)).length === 0) await producer.publish({ value: "b" });
});

/** A topic's leader as a producer follows it, over a connection to the first broker, by a clock of its own. */
class Follower {
  nowMs = 0;
  readonly told: string[] = [];
  readonly leader: TopicLeader;
  readonly leaders: Leaders;
  #changed: () => void = () => {};
  readonly #attempts: Promise<Connection>[] = [];

  private constructor(
    readonly cluster: Cluster,
    readonly hand: Connection,
  ) {
    const world: AtHand = {
      connection: hand,
      open: (address) => {
        const attempt = openAt(placeOf(address, false));
        this.#attempts.push(attempt);
        return attempt;
      },
      now: () => this.nowMs,
      unreachable: (text) => this.told.push(text),
    };
    this.leaders = new Leaders(world);
    this.leader = new TopicLeader(this.leaders, "t", () => this.#changed());
  }

  static async of(cluster: Cluster): Promise<Follower> {
    const hand = await openAt(addressOf(cluster.at(1).url));
    const follower = new Follower(cluster, hand);
    open.push(hand, follower.leaders);
    return follower;
  }

  /** The number of the broker with whose connection the next batch goes, once what is under way has ended. */
  async node(): Promise<number | undefined> {
    const changed = new Promise<void>((resolve) => (this.#changed = resolve));
    const asked = this.cluster.at(1).heard.length;
    const begun = this.#attempts.length;
    this.leader.connection();
    // What the producer asks comes before this.
    await this.hand.request({ member: "describe", content: { topics: [] } }, "description");
    if (this.cluster.at(1).heard.length > asked + 1) await changed;
    // Where an attempt was made, this waits for its end, and begins none.
    if (this.#attempts.length > begun) await this.leaders.reach(this.cluster.leader);
    return this.leader.connection()?.welcome.node;
  }

  /** Have a broker's connections end, and wait until that is known here. */
  async loses(node: number): Promise<void> {
    const connection = this.leaders.at(node)!;
    this.cluster.at(node).hangUp();
    const content = { topics: [] };
    const asked = connection.request({ member: "describe", content }, "description");
    await assert.rejects(asked, { code: "connection.lost" });
  }

  /** How often it was asked who leads. */
  get asked(): number {
    const descriptions = this.cluster.at(1).heard.map(({ message }) => message);
    return descriptions.filter((message) => message.member === "describe" && message.content.topics.length > 0).length;
  }

  get attempts(): number {
    return this.#attempts.length;
  }
}

function openAt(address: ReturnType<typeof addressOf>): Promise<Connection> {
  const options = { name: "test", connectTimeoutMs: 5_000, login: undefined, tls: {}, zstd: undefined };
  return Connection.open("test", address, options);
}

test("of two descriptions the one with the later epoch counts, except of another topic of the name", async () => {
  const cluster = await Cluster.of({}, {}, {});
  cluster.epoch = 5;
  const follower = await Follower.of(cluster);
  assert.equal(await follower.node(), 2);
  [cluster.leader, cluster.epoch, follower.nowMs] = [3, 4, 60_000];
  assert.equal(await follower.node(), 2);
  cluster.epoch = 6;
  follower.nowMs += 60_000;
  assert.equal(await follower.node(), 3);
  [cluster.leader, cluster.epoch, cluster.topicId] = [2, 1, 8n];
  follower.nowMs += 60_000;
  assert.equal(await follower.node(), 2);
});

test("a producer asks each minute, and soon where the answer is older than a confirmation", async () => {
  const cluster = await Cluster.of({}, {});
  const follower = await Follower.of(cluster);
  for (const [nowMs, epoch, count] of [
    [0, 1, 1],
    [59_999, 1, 1],
    [60_000, 1, 2],
    [60_001, 2, 3], // Its answer still has the first epoch.
    [60_500, 2, 3],
    [60_501, 2, 4],
    [61_000, 2, 4],
    [61_001, 1, 5],
  ] as const) {
    follower.nowMs = nowMs;
    follower.leader.confirmed(epoch);
    await follower.node();
    assert.equal(follower.asked, count, `at ${nowMs}`);
  }
});

test("while nobody leads a topic a producer asks soon", async () => {
  const cluster = await Cluster.of({}, {});
  cluster.leader = 0;
  const follower = await Follower.of(cluster);
  for (const [nowMs, count] of [
    [0, 1],
    [499, 1],
    [500, 2],
  ] as const) {
    follower.nowMs = nowMs;
    assert.equal(await follower.node(), undefined);
    assert.equal(follower.asked, count);
  }
});

test("a new topic of the same name begins with its own epochs", async () => {
  const cluster = await Cluster.of({}, {});
  cluster.epoch = 5;
  const follower = await Follower.of(cluster);
  await follower.node();
  follower.leader.confirmed(5);
  [cluster.topicId, cluster.epoch, follower.nowMs] = [8n, 1, 60_000];
  await follower.node();
  follower.nowMs += 500;
  assert.equal(await follower.node(), 2);
  assert.equal(follower.asked, 2);
});

test("a broker that could not be reached is tried again after a pause, which doubles up to a minute", async () => {
  const other = welcome(9);
  const cluster = await Cluster.of({}, { hello: () => other });
  const follower = await Follower.of(cluster);
  assert.equal(await follower.node(), undefined);
  let attempts = 1;
  for (const pauseMs of [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]) {
    follower.nowMs += pauseMs - 1;
    assert.equal(await follower.node(), undefined);
    assert.equal(follower.attempts, attempts);
    follower.nowMs += 1;
    assert.equal(await follower.node(), undefined);
    assert.equal(follower.attempts, ++attempts);
  }
  assert.equal(follower.told.length, 1);
  cluster.at(2).script.hello = () => welcome(2);
  follower.nowMs += 60_000;
  assert.equal(await follower.node(), 2);
  cluster.at(2).script.hello = () => other;
  await follower.loses(2);
  assert.equal(await follower.node(), undefined);
  assert.equal(follower.told.length, 2);
  cluster.at(2).script.hello = () => welcome(2);
  follower.nowMs += 5_000;
  assert.equal(await follower.node(), 2);
});

test("when the connection to the leader is lost a producer asks again, and connects again", async () => {
  const cluster = await Cluster.of({}, {});
  const follower = await Follower.of(cluster);
  assert.equal(await follower.node(), 2);
  await follower.loses(2);
  assert.equal(await follower.node(), 2);
  assert.deepEqual([follower.asked, follower.attempts], [2, 2]);
});

test("where a broker does not say who leads it is asked again soon", async () => {
  const cluster = await Cluster.of({}, {});
  cluster.at(1).script.describe = ({ message }) =>
    message.member === "describe" && message.content.topics.length > 0
      ? failed("limit.exceeded")
      : cluster.description;
  const follower = await Follower.of(cluster);
  for (const [nowMs, count] of [
    [0, 1],
    [499, 1],
    [500, 2],
  ] as const) {
    follower.nowMs = nowMs;
    assert.equal(await follower.node(), undefined);
    assert.equal(follower.asked, count);
  }
});

// --- frozen brokers --------------------------------------------------------------------------------------------------

test("a connection asks for signs of life as often as the client wants, or the broker", async () => {
  for (const [broker, most, interval] of [
    [60_000, 10, 10],
    [10, 60_000, 10],
  ] as const) {
    const peer = await Peer.open({ hello: () => welcome(1, "c", broker) });
    open.push(peer);
    const options = { name: "", connectTimeoutMs: 5_000, login: undefined, tls: {}, zstd: undefined };
    const connection = await Connection.open("it", addressOf(peer.url), { ...options, keepaliveMsMax: most });
    const lost = new Promise<Error>((resolve) => (connection.onEnd = resolve));
    assert.equal((await lost).message, `it has been silent for ${3 * interval} ms`);
  }
});

test("signs of life come each second where there is another broker to go to", async () => {
  const hello = (node: number) => () => welcome(node, "c", 60_000);
  const cluster = await Cluster.of({ hello: hello(1) }, { ...CONFIRMS, hello: hello(2) });
  const one = await connected(cluster.at(1).url);
  await one.producer({ topic: "t" }).publish({ value: "" });
  await cluster.at(2).hears("ping");
  assert.ok(!cluster.at(1).heard.some(({ message }) => message.member === "ping"));
  await connected(cluster.peers.map((peer, index) => (index ? addressAt(peer) : peer.url)).join(","));
  await cluster.at(1).hears("ping");
});
