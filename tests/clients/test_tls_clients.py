"""Clients of other languages inside TLS: whom they trust, what they show, and what they say when it fails."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agents import CPP_BUILD, TYPESCRIPT, Commands
from tls_world import HOST, authority, pair, tls_table, write_pair

from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of a client is a part of it.

LISTENERS = """
[listeners.secure]
address = "127.0.0.1:0"
tls = "edge"
[listeners.plain]
address = "127.0.0.1:0"
[topics.jobs]
kind = "queue"
"""
TYPESCRIPT_PROGRAM = """
import { connect } from "linn-client";

const tls = JSON.parse(process.env.TLS);
try {
  const client = await connect(process.argv[2], tls === null ? {} : { tls });
  const producer = client.producer({ topic: "jobs" });
  for (let number = 0; number < 20; number++) await producer.publish({ value: new Uint8Array(300_000).fill(number) });
  await producer.close();
  const consumer = await client.consumer("jobs");
  let received = 0;
  while (received < 20) {
    const message = await consumer.next();
    if (message.value.length === 300_000 && message.value.every((byte) => byte === message.value[0])) received += 1;
    message.ack();
  }
  await consumer.close();
  await client.close();
  console.log(`received ${received}`);
} catch (error) {
  console.log(`${error.code} ${error.message}`);
}
"""
Say = Callable[..., str]


@pytest.fixture(params=["typescript", "cpp"])
def say(request: pytest.FixtureRequest, command: Commands) -> Say:
    """A function that runs a program with a URL and options, and returns the line that it prints."""
    command(request.param)
    program: list[str | Path] = [CPP_BUILD / "tests" / "linn-test-tls"]
    if request.param == "typescript":
        script = TYPESCRIPT / "dist" / "tls.mjs"
        script.write_text(TYPESCRIPT_PROGRAM, encoding="utf-8")
        program = ["node", script]
    elif not (CPP_BUILD / "tests" / "linn-test-tls").is_file():
        pytest.skip("the C++ client is built without OpenSSL")

    def run(url: str, **tls: Path) -> str:
        options = {name: str(path) for name, path in tls.items()}
        named = {f"TLS_{name.upper()}": path for name, path in options.items()}
        environment = {**os.environ, "TLS": json.dumps(options or None), **named}
        done = subprocess.run([*program, url], env=environment, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.strip()

    return run


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    more = f'client_ca = "{tmp_path}/ca.pem"\nclient_certificate = "optional"'
    with BrokerProcess(tmp_path, tls_table(tmp_path, more) + LISTENERS, listen=()) as running:
        yield running


def test_messages_go_both_ways_by_name_and_by_address(say: Say, broker: BrokerProcess, tmp_path: Path) -> None:
    assert say(broker.urls[0], ca=tmp_path / "ca.pem") == "received 20"
    assert say(broker.urls[0].replace(HOST, "localhost"), ca=tmp_path / "ca.pem") == "received 20"


def test_a_client_shows_its_certificate(say: Say, broker: BrokerProcess, tmp_path: Path) -> None:
    table = tls_table(tmp_path, f'client_ca = "{tmp_path}/ca.pem"\nclient_certificate = "required"')
    for name, by in (("worker", "tests"), ("stranger", "others")):
        certificate, key = pair(name, by=by)
        (tmp_path / f"{name}.pem").write_bytes(certificate)
        (tmp_path / f"{name}-key.pem").write_bytes(key)
    broker.stop()
    broker.configure(table + LISTENERS)
    broker.start()
    ca, url = tmp_path / "ca.pem", broker.urls[0]
    shown = {"certificate": tmp_path / "worker.pem", "key": tmp_path / "worker-key.pem"}
    assert say(url, ca=ca, **shown) == "received 20"
    assert say(url, ca=ca).startswith("tls.failed ")
    stranger = {"certificate": tmp_path / "stranger.pem", "key": tmp_path / "stranger-key.pem"}
    assert say(url, ca=ca, **stranger).startswith("tls.failed ")


def test_authorities_names_and_plain_listeners_are_refused(say: Say, broker: BrokerProcess, tmp_path: Path) -> None:
    secure, plain = broker.urls
    (tmp_path / "others.pem").write_bytes(authority("others").cert_pem.bytes())
    assert say(secure, ca=tmp_path / "others.pem").startswith("tls.failed ")
    assert say(secure).startswith("tls.failed ")
    refused = say(plain.replace("linn:", "linns:"), ca=tmp_path / "ca.pem")
    assert refused.startswith("tls.failed ")
    assert "does not speak TLS" in refused
    told = say(secure.replace("linns:", "linn:"))
    assert told.startswith("tls.required ")
    assert "linns://" in told
    write_pair(tmp_path, *pair("elsewhere.example"))
    broker.stop()
    broker.start()
    for url in (broker.urls[0], broker.urls[0].replace(HOST, "localhost")):
        assert say(url, ca=tmp_path / "ca.pem").startswith("tls.failed ")
