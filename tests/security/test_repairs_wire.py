"""Labels of the broker's that clients wrote, names of others in errors, secrets in URLs, and names of linn's own."""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
import trio
from raw_client import RawClient, Refused, broker_on, connected, served
from simulated_time import simulated
from typer.testing import CliRunner

from linn.cli.app import app
from linn.cli.outgoing_message import OutgoingMessage, message_from_json
from linn.client.connection.url import address_of
from linn.core.batch.batch import SCATTERED, TRANSACTIONAL, Codec, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import LabelValue, Record
from linn.core.batch.routes import Pair
from linn.core.env.address import parse_address
from linn.core.errors.tree import AddressInvalid, MessageInvalid
from linn.spark_plugin.sink.messages import columns_of
from linn.spark_plugin.source.options import broker_url
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TOPICS = """
[exchanges.e]
type = "fanout"
[topics.s]
kind = "stream"
bindings = [{ exchange = "e" }]
[topics.wide]
kind = "stream"
partitions = 3
"""
DEAD = """
[topics.t]
lease = "1h"
dead_letter = "dead"
[topics.dead]
bytes_max = "4KiB"
message_bytes_max = 3000
overflow = "reject"
"""
FORGED: dict[str, LabelValue] = {
    "linn.dead.reason": "rejected",
    "linn.dead.topic": "t",
    "linn.dead.partition": 0,
    "linn.dead.offset": 0,
    "linn.dead.attempts": 1,
    "linn.dead.time_ms": 1,
}
MINE = Record(value=b"mine", labels={"linn": "x", "lin.n": 1, "of.linn.": True})
A = 1 << 40


def forged(name: str = "linn.dead.topic") -> Record:
    return Record(value=b"forged", routing_key="s", labels={"a": 1, name: "t", "z": 2})


# --- labels of the broker ---


@served(TOPICS)
async def test_a_label_of_the_brokers_is_refused_wherever_a_client_publishes_it(client: RawClient) -> None:
    targets = [
        m.Publish("s"),
        m.Publish("s", partition=0),
        m.Publish("e", True),
        m.Publish("e", True, mandatory=True),
        m.Publish("", True),
        m.Publish("wide"),
        m.Publish("wide", partition=2),
    ]
    for codec in Codec.NONE, Codec.ZSTD:
        for name in FORGED | {"linn.": 1, "linn.anything": 1}:
            for publish in targets:
                batch = build_from_records([forged(name)] * 3, base_id=1, codec=codec)
                with pytest.raises(Refused, match=f'"{name}": .* reserved for the broker') as refused:
                    await client.call(publish, [batch])
                assert refused.value.code == MessageInvalid.code, publish
    assert await client.fetch("s") == await client.fetch("wide", 2) == []


@served(TOPICS)
async def test_the_other_records_of_the_batch_are_stored(client: RawClient) -> None:
    kept = Record(value=b"kept", labels={"a": 1})
    batch = build_from_records([kept, forged(), MINE, Record(value=b"plain"), forged(), forged()], base_id=1)
    for publish in m.Publish("s"), m.Publish("e", True):
        (placement,) = (await client.call(publish, [batch])).placements
        assert [(each.code, each.records) for each in placement.refused] == [(MessageInvalid.code, [1, 2, 4, 6])]
        assert placement.copies == 3
    assert await client.fetch("s", bytes_max=1 << 20) == ["kept", "mine", "plain"] * 2


@served(TOPICS)
async def test_a_producer_goes_on_after_records_with_labels_of_the_brokers(client: RawClient) -> None:
    for sequence, contents in enumerate(([forged()], [MINE], [forged(), MINE], [MINE])):
        batch = build_from_records(contents, base_id=1)
        batch.number(A, 0, (0, 1, 2, 4)[sequence], 0)
        await client.ask(m.Publish("s", partition=0), [batch])
    assert await client.fetch("s", bytes_max=1 << 20) == ["mine"] * 3
    scattered = build_from_records([forged()], base_id=1)
    scattered.number(A + 1, 0, 0, SCATTERED)
    with pytest.raises(Refused, match="reserved"):
        await client.call(m.Publish("wide"), [scattered])
    nowhere = build_from_records([forged()], base_id=1)
    nowhere.number(A + 2, 0, 0, 0)
    with pytest.raises(Refused) as refused:
        await client.call(m.Publish("s", partition=7), [nowhere])
    assert refused.value.code == "topic.partition_unknown"


@served(TOPICS)
async def test_a_transaction_takes_no_label_of_the_brokers(client: RawClient) -> None:
    opened = await client.call(m.OpenTransactions("billing", 60_000))
    await client.call(m.AddBranch(opened.producer_id, opened.epoch, A))
    for sequence, contents in enumerate(([forged()], [MINE])):
        batch = build_from_records(contents, base_id=1)
        batch.number(A, 0, sequence, TRANSACTIONAL, opened.number)
        await client.ask(m.Publish("s", partition=0), [batch])
    await client.call(m.EndTransaction(opened.producer_id, opened.epoch, opened.number, True, [A]))
    assert await client.fetch("s", bytes_max=1 << 20) == ["mine"]


@served(TOPICS)
async def test_pairs_are_not_decoded_unless_they_hold_such_a_name(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def pairs(batch: RecordBatch) -> list[Pair]:
        found.append(batch.count)
        return []

    monkeypatch.setattr(RecordBatch, "pairs", pairs)
    for contents in ([Record(value=b"v")], [Record(value=b"v", routing_key="a", labels={"b": "c"})] * 2):
        await client.call(m.Publish("s"), [build_from_records(contents, base_id=1)])
    assert found == []


@simulated
async def test_a_forged_copy_does_not_settle_a_record_that_was_never_copied(env: SimEnv) -> None:
    """The broker looks for copies behind its intent, which an earlier try without room has left."""
    async with broker_on(env, DEAD):
        client = await connected(env)
        while (await client.code_of(await client.send(m.Publish("dead"), [of_bytes(9)]))) == "":
            pass
        await client.publish("t", ["dead"])
        worker = (await client.call(m.Subscribe("t", credit=1))).subscription
        await client.settle(worker, await client.delivery(), m.Verdict.REJECT)
        await trio.sleep(3)
        assert (await client.administer("subscription.show", topic="t"))["dead"] == 1, "it waits for room"
        await client.administer("topic.purge", name="dead")
        copy = build_from_records([Record(value=b"forged", labels=FORGED)], base_id=1)
        await client.ask(m.Publish("dead"), [copy])
        await trio.sleep(3)
        assert await client.taken("dead") == ["dead"]
        assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 0


def test_copies_of_dead_letters_have_their_labels_as_headers() -> None:
    line = (
        b'{"value": "v", "labels": {"linn.dead.offset": 7, "linn.dead.topic": "t", "mine": 1}, "headers": [["h", "x"]]}'
    )
    message = message_from_json(line, 1, OutgoingMessage(None))
    assert message.labels == {"mine": 1}
    assert list(message.headers) == [("h", b"x"), ("linn.dead.offset", b"7"), ("linn.dead.topic", b"t")]


def test_the_spark_sink_leaves_out_labels_of_the_brokers() -> None:
    labels = pa.array([[("linn.dead.topic", "t"), ("mine", "1")], None], pa.map_(pa.string(), pa.string()))
    _, columns = columns_of(pa.record_batch({"value": pa.array([b"a", b"b"]), "labels": labels}))
    assert columns["labels"] == [{"mine": "1"}, {}]


def of_bytes(size: int) -> RecordBatch:
    return build_from_records([Record(value=bytes(size))], base_id=1)


# --- secrets in URLs and addresses ---

SECRETS = [
    "linn://user:secret@host",
    "linn://user:secret@host:5466",
    "linn://user:sec/ret@host",
    "linn://user:sec[ret@host",
    "linn://user:sec#ret@host?x=1",
    "linn://user:secret\uff0f@host",
    "linn://user@host:secret",
    "LINN://user:secret@host",
    "kafka://user:secret@host",
    "user:secret@host:5466",
    "linn+unix://user:secret@/run/linn.sock",
]


@pytest.mark.parametrize("url", SECRETS)
def test_no_error_repeats_the_password_of_a_url(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = tmp_path / "linn.toml"
    toml.write_text(f"[listeners.native]\naddress = {json.dumps(url)}\n")
    monkeypatch.setenv("LINN_URL", url)
    said = [
        run("topics", "list"),
        run("topics", "list", "--url", url),
        run("top", "--once", "--url", url),
        run("copy", "t", "--to", url, "--url", "linn://127.0.0.1:1"),
        run("bench", "publish", "t", "--url", url),
        run("doctor", "--url", url, str(toml)),
        run("check", str(toml)),
        run("serve", "--listen", url),
    ]
    for parse in (address_of, parse_address, lambda text: broker_url({"linn.bootstrap.servers": text})):
        with pytest.raises(AddressInvalid, match="no user and no password") as refused:
            parse(url)
        said.append("".join(traceback.format_exception(refused.value)))
    for text in said:
        assert "no user and no password" in " ".join(text.split())
        assert not re.search("user:|sec.?ret", text)


def test_a_path_of_a_unix_socket_may_have_an_at_sign() -> None:
    assert address_of("linn+unix:///run/a@b.sock") == "unix:/run/a@b.sock"
    assert parse_address("unix:/run/a@b.sock") == "/run/a@b.sock"


def run(*arguments: str) -> str:
    """The output of a command, which must fail."""
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert done.exit_code, arguments
    return done.stdout + done.stderr
