// Logins, against a broker by script: what the client sends, whom it trusts, and what it shows of its secrets.

import assert from "node:assert/strict";
import { createHash, createHmac, pbkdf2Sync } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, test } from "node:test";
import { inspect } from "node:util";
import type { Request } from "../src/codec.js";
import { Client, connect, LinnError, Password, Token, type ClientOptions, type ConnectionEvent } from "../src/index.js";
import { preparedPassword } from "../src/saslprep.js";
import { SaslError, SCRAM, SCRAM_PLUS, ScramClient } from "../src/scram.js";
import { Peer, WELCOME, type Script } from "./peer.js";

const PASSWORD = "correct horse battery staple";
const SALT = Buffer.from("sixteen of bytes").toString("base64");
const FEW = 4_096;
const BINDING = createHash("sha256").update("a certificate").digest();

const open: { close(): Promise<void> }[] = [];

afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
});

// --- one login -------------------------------------------------------------------------------------------------------

function salted(password: string, salt: string, iterations: number): Buffer {
  return pbkdf2Sync(password, Buffer.from(salt, "base64"), iterations, 32, "sha256");
}

test("the vector of RFC 7677", () => {
  const nonce = "rOprNGfwEbeRWgbNEkqO";
  const client = new ScramClient("user", nonce, [SCRAM], undefined);
  assert.equal(client.first(), `n,,n=user,r=${nonce}`);
  const whole = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
  const { salt, iterations } = client.salting(`r=${whole},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096`);
  assert.equal(iterations, 4_096);
  const final = client.final(salted("pencil", salt.toString("base64"), iterations));
  assert.equal(final, `c=biws,r=${whole},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=`);
  client.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
});

test("a client binds where it can, and tells a broker that can't", () => {
  const both = [SCRAM_PLUS, SCRAM];
  const firsts: [string[], Buffer | undefined, string, string][] = [
    [both, BINDING, SCRAM_PLUS, "p=tls-server-end-point,,"],
    [[SCRAM], BINDING, SCRAM, "y,,"],
    [both, undefined, SCRAM, "n,,"],
    [[SCRAM], undefined, SCRAM, "n,,"],
  ];
  for (const [offered, binding, mechanism, header] of firsts) {
    const client = new ScramClient("ann", "nonce", offered, binding);
    assert.deepEqual([client.mechanism, client.first()], [mechanism, `${header}n=ann,r=nonce`]);
    client.salting(`r=nonce+,s=${SALT},i=${FEW}`);
    const channel = mechanism === SCRAM_PLUS ? Buffer.concat([Buffer.from(header), BINDING]) : Buffer.from(header);
    assert.ok(client.final(Buffer.alloc(32)).startsWith(`c=${channel.toString("base64")},r=nonce+,p=`));
  }
  assert.throws(() => new ScramClient("ann", "nonce", ["PLAIN"], undefined), SaslError);
  assert.throws(() => new ScramClient("ann", "nonce", [SCRAM_PLUS], undefined), SaslError);
});

test("commas and equals signs of a name are escaped", () => {
  const client = new ScramClient("a=b,c=2C", "nonce", [SCRAM], undefined);
  assert.equal(client.first(), "n,,n=a=3Db=2Cc=3D2C,r=nonce");
});

for (const [name, answer] of Object.entries({
  "no message": "",
  "another order": `s=${SALT},r=nonce+,i=${FEW}`,
  "an extension that must be understood": `m=x,r=nonce+,s=${SALT},i=${FEW}`,
  "another nonce": `r=other,s=${SALT},i=${FEW}`,
  "a nonce that is part of the client's": `r=nonc,s=${SALT},i=${FEW}`,
  "the client's nonce alone": `r=nonce,s=${SALT},i=${FEW}`,
  "a nonce that differs at the end": `r=noncE+,s=${SALT},i=${FEW}`,
  "no salt": `r=nonce+,s=,i=${FEW}`,
  "a salt that is not Base64": `r=nonce+,s=!!!!,i=${FEW}`,
  "a salt in another spelling": `r=nonce+,s=${SALT.replace(/==$/, "")},i=${FEW}`,
  "no iteration": `r=nonce+,s=${SALT},i=0`,
  "one iteration": `r=nonce+,s=${SALT},i=1`,
  "fewer iterations than are allowed": `r=nonce+,s=${SALT},i=4095`,
  "too many iterations": `r=nonce+,s=${SALT},i=10000001`,
  "2^31 iterations": `r=nonce+,s=${SALT},i=2147483648`,
  "iterations beyond any number": `r=nonce+,s=${SALT},i=${"9".repeat(400)}`,
  "negative iterations": `r=nonce+,s=${SALT},i=-5000`,
  "iterations in hexadecimal": `r=nonce+,s=${SALT},i=0x2000`,
  "a message that is too long": `r=nonce${"+".repeat(5_000)},s=${SALT},i=${FEW}`,
  "a NUL": `r=nonce+\0,s=${SALT},i=${FEW}`,
})) {
  test(`a broker that answers with ${name} is not trusted`, () => {
    const client = new ScramClient("ann", "nonce", [SCRAM], undefined);
    assert.throws(() => client.salting(answer), SaslError);
  });
}

test("the bounds of iterations are allowed, and each answer is taken once", () => {
  for (const iterations of [4_096, 10_000_000]) {
    const client = new ScramClient("ann", "nonce", [SCRAM], undefined);
    const answer = `r=nonce+,s=${SALT},i=${iterations},x=later`;
    assert.equal(client.salting(answer).iterations, iterations);
    assert.throws(() => client.salting(answer), SaslError);
  }
});

test("a broker's proof is compared in full", () => {
  const client = new ScramClient("user", "rOprNGfwEbeRWgbNEkqO", [SCRAM], undefined);
  const right = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
  assert.throws(() => client.check(right), SaslError, "before the client's own proof");
  client.salting("r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
  client.final(salted("pencil", "W22ZaJ0SNY7soEsUEjb6gQ==", 4_096));
  const wrong = Buffer.from(right.slice(2), "base64");
  wrong[31]! ^= 1;
  const proofs = [`v=${wrong.toString("base64")}`, `v=${wrong.subarray(0, 31).toString("base64")}`];
  for (const proof of ["", "v=", ...proofs, "e=other-error", right.slice(0, -1)]) {
    assert.throws(() => client.check(proof), SaslError, proof);
  }
  client.check(right);
});

test("passwords are prepared", () => {
  // RFC 4013, section 3, and what Unicode calls by several names.
  assert.equal(preparedPassword("I\u00adX"), "IX");
  assert.equal(preparedPassword("\u00aa"), "a");
  assert.equal(preparedPassword("\u2168"), "IX");
  assert.equal(preparedPassword("e\u0301\u00a0"), "\u00e9 ");
  // What has no prepared form stays as it is.
  for (const password of ["\u0007", "\u06271", "\u0627a\u0627", "\u{1f600}", "\u{1f100}", "\ue000"]) {
    assert.equal(preparedPassword(password), password);
  }
});

// --- a broker --------------------------------------------------------------------------------------------------------

interface Faults {
  serverFirst?: (first: string, nonce: string) => string;
  proof?: (proof: string) => string;
}

function hmac(key: Buffer, data: string): Buffer {
  return createHmac("sha256", key).update(data).digest();
}

/** A broker that knows the password of "ann". */
function asksForLogin({ serverFirst = (first) => first, proof = (right) => right }: Faults = {}): Script {
  let bare = "";
  let answer = "";
  return {
    hello: () => ({ member: "challenge", content: { mechanisms: [SCRAM] } }),
    authenticate: ({ message }) => {
      const { data } = message.content as { data: string };
      if (data.startsWith("n,,")) {
        bare = data.slice(3);
        const nonce = /,r=(.*)/.exec(bare)![1]!;
        answer = serverFirst(`r=${nonce}theirs,s=${SALT},i=${FEW}`, nonce);
        return { member: "challenge", content: { data: answer } };
      }
      const [, withoutProof, shown] = /^(.*),p=(.*)$/.exec(data)!;
      const signed = `${bare},${answer},${withoutProof}`;
      const key = salted(PASSWORD, SALT, FEW);
      const clientKey = hmac(key, "Client Key");
      const signature = hmac(createHash("sha256").update(clientKey).digest(), signed);
      const right = clientKey.map((byte, index) => byte ^ signature[index]!);
      if (!/^n=ann,/.test(bare) || Buffer.compare(Buffer.from(shown!, "base64"), right) !== 0) return refused();
      const login = proof(`v=${hmac(hmac(key, "Server Key"), signed).toString("base64")}`);
      return { member: "welcome", content: { ...WELCOME.content, user: "ann", login } } as Request;
    },
  };
}

function refused(code = "auth.failed"): Request {
  return { member: "failed", content: { code, text: "the login failed", retriable: false } };
}

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

test("a password logs in, and the client says who it is", async () => {
  const peer = await peerWith(asksForLogin());
  const client = await connected(peer, { login: new Password("ann", PASSWORD) });
  assert.equal(client.user, "ann");
  const said = await peer.hears("authenticate", 2);
  assert.deepEqual(said.map(({ message }) => message.content.mechanism), [SCRAM, SCRAM]);
  assert.ok(said.every(({ message }) => !message.content.data.includes(PASSWORD)));
});

test("a login is not used where the broker does not ask for it", async () => {
  const peer = await peerWith({
    hello: () => ({ member: "welcome", content: { ...WELCOME.content, user: "worker" } }) as Request,
  });
  const client = await connected(peer, { login: new Password("ann", PASSWORD) });
  assert.equal(client.user, "worker");
});

test("a wrong password and an unknown user are refused, and no error shows the password", async () => {
  const peer = await peerWith(asksForLogin());
  for (const login of [new Password("ann", "hunter2"), new Password("eve", PASSWORD)]) {
    await assert.rejects(connected(peer, { login }), (error: LinnError) => {
      assert.deepEqual([error.code, error.retriable], ["auth.failed", false]);
      return !/hunter2|staple/.test(inspect(error, { depth: Infinity, showHidden: true }));
    });
  }
});

test("without a login the error says how to give one", async () => {
  const peer = await peerWith(asksForLogin());
  await assert.rejects(connected(peer), { code: "auth.failed", message: /new Password/ });
  const silent = await peerWith({ hello: () => ({ member: "challenge", content: {} }) });
  await assert.rejects(connected(silent, { login: new Password("ann", PASSWORD) }), {
    code: "auth.failed",
    message: "the broker takes no passwords; it takes nothing",
  });
});

for (const [name, faults] of Object.entries<Faults>({
  "another nonce": { serverFirst: (first) => first.replace(/^r=./, "r=!") },
  "the client's nonce alone": { serverFirst: (first, nonce) => first.replace(/^r=[^,]*/, `r=${nonce}`) },
  "one iteration": { serverFirst: (first) => first.replace(/i=.*/, "i=1") },
  "2^31 iterations": { serverFirst: (first) => first.replace(/i=.*/, "i=2147483648") },
  "a wrong proof": { proof: (right) => right.replace(/^v=./, (start) => (start === "v=A" ? "v=B" : "v=A")) },
  "no proof": { proof: () => "" },
})) {
  test(`a client leaves a broker that answers with ${name}`, async () => {
    const peer = await peerWith(asksForLogin(faults));
    await assert.rejects(connected(peer, { login: new Password("ann", PASSWORD) }), {
      code: "auth.failed",
      message: /can't be trusted/,
      retriable: false,
    });
  });
}

test("a welcome in the middle of a login is not trusted", async () => {
  const peer = await peerWith({ ...asksForLogin(), authenticate: () => WELCOME });
  await assert.rejects(connected(peer, { login: new Password("ann", PASSWORD) }), {
    code: "auth.failed",
    message: /has not proved/,
  });
});

test("a broker takes little memory before it has welcomed the client", async () => {
  const long = "x".repeat(100_000);
  const peer = await peerWith({ hello: () => ({ member: "challenge", content: { mechanisms: [SCRAM, long] } }) });
  await assert.rejects(connected(peer, { login: new Password("ann", PASSWORD) }), { code: "protocol.frame_too_large" });
  const open = await peerWith({ administer: () => ({ member: "administered", content: { result: `"${long}"` } }) });
  assert.equal(await (await connected(open)).administer("any"), long);
});

test("the event loop goes on while the client computes", async () => {
  const serverFirst = (first: string): string => first.replace(/i=.*/, "i=1000000");
  const peer = await peerWith(asksForLogin({ serverFirst }));
  let turns = 0;
  const counting = setInterval(() => (turns += 1), 1);
  await assert.rejects(connected(peer, { login: new Password("ann", PASSWORD) }), { code: "auth.failed" });
  clearInterval(counting);
  assert.ok(turns > 10, `${turns} turns`);
});

test("a connection that ends during a login fails at once", async () => {
  const peer = await peerWith({
    hello: () => ({ member: "challenge", content: { mechanisms: [SCRAM] } }),
    authenticate: (_, it) => (it.say(refused("broker.full")), undefined),
  });
  await assert.rejects(connected(peer, { login: new Password("ann", PASSWORD) }), { code: "broker.full" });
  peer.script.authenticate = (_, it) => (it.hangUp(), undefined);
  await assert.rejects(connected(peer, { login: new Password("ann", PASSWORD) }), { code: "connection.lost" });
});

test("the password is salted once for many connections", async () => {
  const login = new Password("ann", PASSWORD);
  const answers = [1, 2].map(() => {
    const exchange = login.exchange([SCRAM], { isPrivate: false, binding: undefined });
    const nonce = /,r=(.*)/.exec(exchange.begin() as string)![1]!;
    return () => exchange.answer(`r=${nonce}+,s=${SALT},i=1000000`);
  });
  // What a thread computes comes in a later turn of the event loop.
  const inThisTurn = (answer: Promise<string>): Promise<boolean> =>
    Promise.race([answer.then(() => true), new Promise<boolean>((resolve) => setImmediate(resolve, false))]);
  const first = answers[0]!();
  assert.equal(await inThisTurn(first), false);
  await first;
  assert.equal(await inThisTurn(answers[1]!()), true);
});

test("a client that comes back logs in again", async () => {
  const peer = await peerWith({ ...asksForLogin(), describe: () => ({ member: "description", content: {} }) });
  const client = await connected(peer, { login: new Password("ann", PASSWORD) });
  peer.hangUp();
  await peer.hears("authenticate", 4);
  await client.describe();
  assert.equal(client.user, "ann");
});

test("a password that has changed ends a client's attempts, until it wants a connection again", async () => {
  const script = asksForLogin();
  const peer = await peerWith(script);
  const events: ConnectionEvent[] = [];
  const onConnection = (event: ConnectionEvent): void => void events.push(event);
  const client = await connected(peer, { login: new Password("ann", PASSWORD), onConnection });
  peer.script.authenticate = () => refused();
  peer.hangUp();
  await assert.rejects(client.describe(), { code: "auth.failed" });
  const attempts = peer.heard.filter(({ message }) => message.member === "hello").length;
  assert.equal(attempts, 2);
  peer.script.authenticate = script.authenticate!;
  peer.script.describe = () => ({ member: "description", content: {} });
  await client.describe();
  assert.deepEqual(events.map(({ state }) => state), ["lost", "restored"]);
});

// --- tokens and secrets ----------------------------------------------------------------------------------------------

test("a token is not sent where others can read it", async () => {
  const peer = await peerWith({ hello: () => ({ member: "challenge", content: { mechanisms: ["OAUTHBEARER"] } }) });
  await assert.rejects(connected(peer, { login: new Token("secret.of.ours") }), {
    code: "auth.failed",
    message: /only in TLS, and over Unix sockets/,
  });
  assert.equal(peer.heard.some(({ message }) => message.member === "authenticate"), false);
});

/** A broker at a Unix socket, which takes any token. */
async function takesTokens(): Promise<Peer> {
  const folder = mkdtempSync(join(tmpdir(), "linn-"));
  const peer = await Peer.open(
    {
      hello: () => ({ member: "challenge", content: { mechanisms: ["OAUTHBEARER"] } }),
      authenticate: () => WELCOME,
      describe: () => ({ member: "description", content: {} }),
    },
    join(folder, "socket"),
  );
  open.push({ close: async () => rmSync(folder, { recursive: true }) }, peer);
  return peer;
}

test("each connection has a token of its own, and one that can't be had is asked for again", async () => {
  const peer = await takesTokens();
  const tokens = ["first", "", "second"];
  let asked = 0;
  const token = (): string => tokens[asked++] || assert.fail("the provider is down");
  const client = await connected(peer, { login: new Token(token) });
  peer.hangUp();
  await client.describe();
  const said = await peer.hears("authenticate", 2);
  const sent = said.map(({ message }) => [message.content.mechanism, message.content.data]);
  assert.deepEqual(sent, ["first", "second"].map((text) => ["OAUTHBEARER", `n,,\x01auth=Bearer ${text}\x01\x01`]));
  assert.equal(asked, 3);
});

test("a connection that is lost does not wait for a token", async () => {
  const peer = await takesTokens();
  const login = new Token(() => (peer.hangUp(), new Promise(() => {})));
  await assert.rejects(connected(peer, { login, connectTimeoutMs: 100_000 }), { code: "connection.lost" });
});

test("a token that does not come in time fails the attempt", async () => {
  const peer = await takesTokens();
  const login = new Token(() => new Promise(() => {}));
  await assert.rejects(connected(peer, { login, connectTimeoutMs: 50 }), { code: "connection.failed" });
});

/** A token that ends in so many seconds. */
function endsIn(seconds: number): string {
  const claims = JSON.stringify({ sub: "ann", exp: Date.now() / 1000 + seconds });
  return `header.${Buffer.from(claims).toString("base64url")}.signature`;
}

/** A broker at a Unix socket, which takes any token, and the next one on the same connection. */
async function renewsTokens(): Promise<Peer> {
  const peer = await takesTokens();
  let connections = 0;
  peer.script.authenticate = () => {
    const { length } = peer.heard.filter(({ message }) => message.member === "hello");
    if (connections === length) return { member: "done", content: null };
    connections = length;
    return WELCOME;
  };
  return peer;
}

test("the next token is shown on the same connection", async () => {
  const peer = await renewsTokens();
  const tokens: string[] = [];
  const login = new Token(() => tokens[tokens.push(endsIn(0.4)) - 1]!);
  await connected(peer, { login });
  const said = await peer.hears("authenticate", 4);
  assert.equal((await peer.hears("hello")).length, 1);
  const shown = said.map(({ message }) => /Bearer (.*)\x01\x01/.exec(message.content.data)![1]);
  assert.deepEqual(shown, tokens.slice(0, shown.length));
});

test("a function that has no later token yet is called again, and a text is not shown twice", async () => {
  const peer = await renewsTokens();
  const first = endsIn(4);
  const next: (() => string)[] = [() => first, () => assert.fail("down"), () => first, () => endsIn(3_600)];
  let asked = 0;
  await connected(peer, { login: new Token(() => next[asked++]!()) });
  await connected(peer, { login: new Token(endsIn(0.1)) });
  const said = await peer.hears("authenticate", 3);
  assert.equal((await peer.hears("hello")).length, 2);
  assert.deepEqual([asked, said.length], [4, 3]);
});

test("a client whose clock is ahead of all tokens does not ask for them without end", async () => {
  const peer = await renewsTokens();
  let asked = 0;
  await connected(peer, { login: new Token(() => endsIn(++asked - 1_000)) });
  await peer.hears("authenticate", 2);
  assert.equal(asked, 2);
});

test("the end of a token is read if it has one", async () => {
  const claims = (text: string): string => `h.${Buffer.from(text).toString("base64url")}.s`;
  for (const [token, endsMs] of [
    [claims('{"exp": 1234.5}'), 1_234_500],
    ["opaque", Infinity],
    ["a.b.c", Infinity],
    [claims("null"), Infinity],
    [claims("{}"), Infinity],
    [claims('{"exp": "1234"}'), Infinity],
    [claims('{"exp": 1e300}'), Infinity],
  ] as const) {
    const exchange = new Token(() => token).exchange(["OAUTHBEARER"], { isPrivate: true, binding: undefined });
    await exchange.begin();
    assert.equal(exchange.endsMs, endsMs, token);
  }
});

async function tokenMessage(token: Token): Promise<string> {
  return token.exchange(["OAUTHBEARER"], { isPrivate: true, binding: undefined }).begin();
}

test("a token is asked for at each login", async () => {
  let asked = 0;
  const token = new Token(async () => `token.${++asked}`);
  assert.equal(await tokenMessage(token), "n,,\x01auth=Bearer token.1\x01\x01");
  assert.equal(await tokenMessage(token), "n,,\x01auth=Bearer token.2\x01\x01");
  assert.equal(await tokenMessage(new Token("fixed")), "n,,\x01auth=Bearer fixed\x01\x01");
});

test("a function that gives no token is asked again later", async () => {
  const failure = new Error("the provider is down");
  await assert.rejects(tokenMessage(new Token(() => Promise.reject(failure))), {
    code: "connection.failed",
    retriable: true,
    cause: failure,
  });
  for (const text of ["", "two\nlines", "\u00e9", 7 as unknown as string]) {
    await assert.rejects(tokenMessage(new Token(() => text)), { code: "message.invalid" });
  }
});

test("logins that make no sense are refused, without a word of the secret", async () => {
  for (const make of [
    () => new Password("", PASSWORD),
    () => new Password("ann", ""),
    () => new Password("ann", 7 as unknown as string),
    () => new Password("ann", `${PASSWORD}\ud800`),
    () => new Token(""),
    () => new Token({} as unknown as string),
  ]) {
    assert.throws(make, (error: LinnError) => error.code === "message.invalid" && !/staple/.test(inspect(error)));
  }
  const login = { user: "ann", secret: PASSWORD } as unknown as Password;
  await assert.rejects(connect("linn://127.0.0.1:1", { login }), { code: "message.invalid" });
});

test("no secret is shown where a login or a client is printed", async () => {
  const peer = await peerWith(asksForLogin());
  const login = new Password("ann", PASSWORD);
  const client = await connected(peer, { login });
  const token = new Token(PASSWORD);
  const shown = [login, token, client].flatMap((one) => [
    inspect(one, { depth: Infinity, showHidden: true, getters: true }),
    JSON.stringify(one),
    String(one),
  ]);
  assert.ok(shown.every((text) => !text.includes("staple")), shown.join("\n"));
  assert.match(inspect(login), /Password.*ann/);
});
