import assert from "node:assert/strict";
import { test } from "node:test";
import { ADDRESSES_MAX, addressesOf, addressOf } from "../src/url.js";

const RIGHT: [string, object][] = [
  ["linn://example.org", { host: "example.org", port: 5466 }],
  ["linn://127.0.0.1:1/", { host: "127.0.0.1", port: 1 }],
  ["linn://[::1]:65535", { host: "::1", port: 65_535 }],
  ["linn://[fe80::1%eth0]", { host: "fe80::1%eth0", port: 5466 }],
  ["linns://h:7", { host: "h", port: 7, tlsHost: "h" }],
  ["linns://[::1]", { host: "::1", port: 5466, tlsHost: "::1" }],
  ["linn+unix:///run/linn%20x.sock", { path: "/run/linn x.sock" }],
  ["linn+unix:///run/a@b.sock", { path: "/run/a@b.sock" }],
];

for (const [url, address] of RIGHT) {
  test(`${url} is an address`, () => assert.deepEqual(addressOf(url), address));
}

for (const url of [
  "linn://user:secret@h",
  "linn://user:se/cret@h:1",
  "user:secret@h",
  "http://user:secret@h",
  "linn+unix://user:secret@/x",
]) {
  test(`the error about ${JSON.stringify(url)} repeats no password`, () => {
    assert.throws(() => addressOf(url), (error: Error) => !/user:|se\/?cret/.test(error.message));
  });
}

for (const url of [
  "",
  "linn://",
  "http://h",
  "linn://h:0",
  "linn://h:65536",
  "linn://h/x",
  "linn://u@h",
  "linns://",
  "linnss://h",
  "linn+unix://x",
  "linn+unix:///%ff",
]) {
  test(`${JSON.stringify(url)} is no address`, () => {
    assert.throws(() => addressOf(url), { code: "listener.address_invalid" });
  });
}

test("several addresses stand in their order", () => {
  assert.deepEqual(addressesOf("linn://a,b:5467,[::1]"), [
    { host: "a", port: 5466 },
    { host: "b", port: 5467 },
    { host: "::1", port: 5466 },
  ]);
  assert.deepEqual(addressesOf("linns://a,b:1/"), [
    { host: "a", port: 5466, tlsHost: "a" },
    { host: "b", port: 1, tlsHost: "b" },
  ]);
  assert.deepEqual(addressesOf("linn+unix:///a,b"), [{ path: "/a,b" }]);
});

for (const url of ["linn://a,", "linn://,a", "linn://a,,b", "linn://a,linn://b", "linn://a/x,b", "linn://a,b:0", "a,b"]) {
  test(`${JSON.stringify(url)} has a wrong address`, () => {
    assert.throws(() => addressesOf(url), { code: "listener.address_invalid" });
  });
}

test("the number of addresses is limited", () => {
  const names = Array.from({ length: ADDRESSES_MAX + 1 }, (_, number) => `host-${number}`);
  assert.equal(addressesOf(`linn://${names.slice(1).join(",")}`).length, ADDRESSES_MAX);
  assert.throws(() => addressesOf(`linn://${names.join(",")}`), { code: "listener.address_invalid" });
});
