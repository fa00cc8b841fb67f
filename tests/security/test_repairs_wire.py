"""Labels of the broker's that clients wrote, names of others in errors, secrets in URLs, and names of linn's own."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trio
from raw_client import HEAD, RawClient, Refused, broker_on, connected, served
from rich.text import Text
from simulated_time import simulated
from typer.testing import CliRunner

from linn.cli.app import app
from linn.cli.outgoing_message import OutgoingMessage, message_from_json
from linn.cli.render.console import console
from linn.cli.render.message_format import json_escaped
from linn.cli.render.table import print_table
from linn.client.connection.url import parse_url
from linn.core.batch.batch import SCATTERED, TRANSACTIONAL, Codec, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import LabelValue, Record
from linn.core.batch.routes import Pair
from linn.core.env.address import parse_address
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.texts import one_line, printable
from linn.core.errors.tree import AddressInvalid, MessageInvalid
from linn.protocols.capnp import conversation
from linn.spark_plugin.place import broker_url
from linn.spark_plugin.sink.messages import columns_of
from linn.testing.sim_env import SimEnv
from linn.verbs import TRANSACTIONS_TOPIC, VERBS, Verb
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


# --- names of others in errors ---

USERS = """
[users.anonymous]
roles = ["administrator"]
[users.alice]
roles = ["clerk"]
[roles.clerk]
"topic:*" = ["see"]
"""
NAMED = """
[exchanges.shop]
type = "topic"
alternate = "shop-rest"
[exchanges.shop-rest]
type = "fanout"
[exchanges.shop-front]
type = "fanout"
bindings = [{ exchange = "shop" }]
[exchanges.shop-last]
type = "fanout"
bindings = [{ exchange = "shop-rest" }]
[topics.orders]
kind = "both"
dead_letter = "graves"
bindings = [{ exchange = "shop", key = "#" }]
[topics.graves]
[topics.mine]
[topics.jobs]
delivery = "exactly-once"
"""
KNOWN = {
    "topic": "orders",
    "exchange": "shop",
    "target_exchange": "shop-front",
    "group": "billing",
    "subscription": "audit",
    "consumer": "worker",
    "service": "spark",
    "transaction": "payments",
    "user": "alice",
    "role": "clerk",
}
"""A resource of each sort that a request names, by the sort."""
OTHERS = [*KNOWN.values(), "shop-rest", "shop-last", "graves", "jobs", "somebody"]
GIVEN = {"partition": 0, "delivery_id": 1, "outcome": "done", "action": "list", "number": 999, "rules": {}}
GIVEN |= {"operation": "see", "resource": "broker"}
NEAR = [name[:-1] for name in OTHERS] + ["x"]


def sort_of(verb: str, argument: str) -> str | None:
    """The sort of the resource that an argument names."""
    return verb.partition(".")[0] if argument == "name" else argument if argument in KNOWN else None


def named_others(text: str, request: object) -> set[str]:
    """The resources that an error names although the request did not."""
    words, said = (set(re.findall(r"[\w-]+", str(each))) for each in (text, request))
    return words & {*OTHERS} - said


@asynccontextmanager
async def crowded(env: SimEnv) -> AsyncIterator[RawClient]:
    """A client of a broker on which others have one resource of each sort, all of them in use."""
    async with broker_on(env, USERS + NAMED):
        other = await connected(env, name="somebody")
        await other.administer("subscription.create", topic="orders", subscription="audit")
        await other.call(m.Subscribe("orders", group="billing", member="worker"))
        await other.call(m.Subscribe("orders", shared="audit", member="worker"))
        await other.call(m.OpenTransactions("payments", 60_000))
        yield await connected(env)


def requests_of(verb: Verb[Any, Any]) -> Iterator[dict[str, Any]]:
    """Requests of a verb, in each of which at least one resource is misspelt."""
    fields = {field.name: sort_of(verb.name, field.name) for field in msgspec.structs.fields(verb.arguments)}
    sorts = {name: sort for name, sort in fields.items() if sort is not None}
    for wrong in chain.from_iterable(combinations(sorts, count) for count in range(1, len(sorts) + 1)):
        right = {name: KNOWN[sort] for name, sort in sorts.items() if name not in wrong}
        for near in NEAR:
            request = {name: value for name, value in GIVEN.items() if name in fields}
            request |= right | dict.fromkeys(wrong, near)
            yield request
            for target in {"topic", "target_exchange"} & request.keys():  # One of the two names a binding's target.
                yield {name: value for name, value in request.items() if name != target}
    if "settings" in fields:
        for near in NEAR:
            named = ({key: near} for key in ("dead_letter", "dead_letter_exchange", "alternate"))
            for settings in (*named, {"bindings": [{"exchange": near}]}):
                yield from ({"name": name, "settings": settings} for name in ("new", KNOWN[sorts["name"]]))


@pytest.mark.parametrize("verb", VERBS)
@simulated
async def test_no_error_of_a_verb_names_what_the_request_did_not(env: SimEnv, verb: str) -> None:
    async with crowded(env) as client:
        for arguments in requests_of(VERBS[verb]):
            text = await refusal(client, m.Administer(verb, json.dumps(arguments)))
            assert not named_others(text, arguments), (arguments, text)


async def refusal(client: RawClient, request: m.Message) -> str:
    """The text with which a request is refused; "" for any other answer."""
    try:
        answer = await client.call(request, [of_bytes(9)] if isinstance(request, m.Publish | m.Reply) else None)
    except Refused as refused:
        return refused.text
    return "; ".join(each.text for each in answer.refused) if isinstance(answer, m.Settled) else ""


def wire_requests(near: str, subscription: int) -> dict[type[m.Message], list[m.Message]]:
    """Requests with an unknown name or number, by their type."""
    return {
        m.Publish: [m.Publish(near), m.Publish(near, True), m.Publish(near, True, mandatory=True)],
        m.Fetch: [m.Fetch(near, 0, 0), m.Fetch("orders", 9, 0), m.Fetch("orders", 0, 999)],
        m.FindOffset: [m.FindOffset(near, 0, -1), m.FindOffset("orders", 9, -1)],
        m.Subscribe: [
            *(m.Subscribe(near, group=group, shared=shared) for group in ("", "billing") for shared in ("", "audit")),
            m.Subscribe("orders", partitions=[9]),
            m.Subscribe("orders", topic_id_high=1, topic_id_low=1),
            m.Subscribe("graves", group="billing"),
            m.Subscribe("jobs", member=near),
        ],
        m.Unsubscribe: [m.Unsubscribe(999)],
        m.Credit: [m.Credit(999, 1)],
        m.Pull: [m.Pull(999, 1), m.Pull(subscription, 1, placed=True, partition=9)],
        m.Settle: [m.Settle(999, []), m.Settle(subscription, [m.Settlement(9, 1, 0, 1), m.Settlement(0, 1, 0, 1)])],
        m.Heartbeat: [m.Heartbeat(999, 1), m.Heartbeat(subscription, 9)],
        m.Resolve: [m.Resolve(999, 0, 1, 0, 1), m.Resolve(subscription, 0, 1, 0, 1)],
        m.Seek: [m.Seek(999, 0), m.Seek(subscription, 9)],
        m.Commit: [m.Commit(999, 0, 1, 1), m.Commit(subscription, 9, 1, 1)],
        m.OpenTransactions: [m.OpenTransactions(near, 60_000, producer_id=A, epoch=3)],
        m.AddBranch: [m.AddBranch(A, 0, A + 1)],
        m.SettleInTransaction: [
            m.SettleInTransaction(A, 0, 1, 999, []),
            m.SettleInTransaction(A, 0, 1, subscription, []),
        ],
        m.EndTransaction: [m.EndTransaction(A, 0, 1, True, [A + 1])],
        m.Reply: [m.Reply(near), m.Reply(f"0.{near}"), m.Reply(f"9.{near}")],
        m.Describe: [m.Describe([near])],
        m.Administer: [m.Administer(near)],
    }


WITHOUT_NAMES = {m.Authenticate, m.OpenInbox, m.Ping, m.Pong, m.Goodbye, m.Unknown}


@simulated
async def test_no_error_of_a_request_names_what_the_request_did_not(env: SimEnv) -> None:
    async with crowded(env) as client:
        subscription = (await client.call(m.Subscribe("mine"))).subscription
        assert wire_requests("", 0).keys() == conversation._HANDLERS.keys() - WITHOUT_NAMES, "each has its row"
        for near in NEAR:
            texts = [
                (request, await refusal(client, request))
                for request in chain.from_iterable(wire_requests(near, subscription).values())
            ]
            assert [each for each in texts if named_others(each[1], each[0])] == []
            assert len([text for _, text in texts if text]) > 25


@simulated
async def test_what_is_in_use_or_different_is_refused_without_the_names_of_others(env: SimEnv) -> None:
    link = {"exchange": "shop-last", "target_exchange": "shop", "key": ""}
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("topic.alter", {"name": "orders", "settings": {"kind": "queue"}}),
        ("topic.create", {"name": "orders", "settings": {"kind": "queue"}}),
        ("exchange.create", {"name": "shop", "settings": {"type": "topic"}}),
        ("exchange.bind", link),
        ("exchange.create", {"name": "new", "settings": {"type": "fanout", "alternate": "new"}}),
        ("group.delete", {"group": "billing"}),
        ("group.reset", {"group": "billing", "to": "latest"}),
        ("subscription.delete", {"topic": "orders", "subscription": "audit"}),
        ("connection.close", {"number": 999}),
    ]
    async with crowded(env) as client:
        for verb, arguments in refusals:
            text = await refusal(client, m.Administer(verb, json.dumps(arguments)))
            assert text, (verb, arguments)
            assert not named_others(text, arguments), text


# --- names of linn's own ---


@pytest.mark.parametrize("makes_topics", [False, True])
@simulated
async def test_names_of_linns_own_are_not_made_published_to_read_or_deleted(env: SimEnv, makes_topics: bool) -> None:
    head = HEAD + f"auto_create_topics = {json.dumps(makes_topics)}\n"
    async with broker_on(env, NAMED, head) as broker:
        client = await connected(env)
        await client.call(m.Subscribe("orders", group="billing"))
        await client.call(m.OpenTransactions("payments", 60_000))
        missing = "config.invalid" if makes_topics else "topic.unknown"
        for name in TRANSACTIONS_TOPIC, AUDIT_TOPIC:
            assert await client.code_of(await client.send(m.Publish(name), [of_bytes(9)])) == "auth.forbidden"
            assert await client.code_of(await client.send(verb("topic.delete", name=name))) == "auth.forbidden"
        for name in "__g.orders", "__s.orders", "__":
            refused: list[tuple[str, m.Message]] = [
                (missing, m.Publish(name)),
                (missing, m.Publish(name, partition=0)),
                (missing, m.Subscribe(name)),
                (missing, m.Subscribe(name, group="billing")),
                ("topic.unknown", m.Fetch(name, 0, 0)),
                ("topic.unknown", m.FindOffset(name, 0, -1)),
                *(
                    ("topic.unknown", verb(f"topic.{change}", name=name))
                    for change in ("show", "alter", "purge", "delete")
                ),
                *(("config.invalid", verb(f"{sort}.create", name=name)) for sort in ("topic", "exchange")),
                ("config.invalid", verb("topic.create", name="new", settings={"dead_letter": name})),
                ("topic.unknown", verb("exchange.bind", exchange="shop", topic=name, key="#")),
                ("topic.unknown", verb("subscription.create", topic=name, subscription="s")),
                ("config.invalid", verb("subscription.create", topic="orders", subscription=name)),
                ("topic.unknown", verb("delivery.list", topic=name)),
                ("topic.unknown", verb("group.reset", group="billing", topic=name, to="latest")),
            ]
            for code, request in refused:
                batches = [of_bytes(9)] if isinstance(request, m.Publish) else None
                assert await client.code_of(await client.send(request, batches)) == code, request
            routed = build_from_records([Record(value=b"v", routing_key=name)], base_id=1)
            assert (await client.call(m.Publish("", True), [routed])).placements[0].copies == 0
        assert not [name for name in broker.topics if name.startswith("__")]


def verb(name: str, /, **arguments: Any) -> m.Administer:
    return m.Administer(name, json.dumps(arguments))


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
    for parse in (parse_url, parse_address, lambda text: broker_url({"linn.bootstrap.servers": text})):
        with pytest.raises(AddressInvalid, match="no user and no password") as refused:
            parse(url)
        said.append("".join(traceback.format_exception(refused.value)))
    for text in said:
        assert "no user and no password" in " ".join(text.split())
        assert not re.search("user:|sec.?ret", text)


def test_a_path_of_a_unix_socket_may_have_an_at_sign() -> None:
    assert [place.address for place in parse_url("linn+unix:///run/a@b.sock")] == ["unix:/run/a@b.sock"]
    assert parse_address("unix:/run/a@b.sock") == "/run/a@b.sock"


def run(*arguments: str) -> str:
    """The output of a command, which must fail."""
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert done.exit_code, arguments
    return done.stdout + done.stderr


# --- control characters ---

CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F)]
CONTROLS += [*range(0x2066, 0x206A), 0xFEFF, 0xFFF9, 0xE0001, 0xD800]
"""What a terminal acts on: C0, DEL, C1; what turns the order of a line around; and what can't be written."""


def test_no_control_character_is_printed() -> None:
    for number in CONTROLS:
        evil = f"a{chr(number)}b"
        assert one_line(evil).isprintable(), hex(number)
        assert printable(evil).isprintable() or number in (0x09, 0x0A), hex(number)
        assert json_escaped(json.dumps(evil, ensure_ascii=False)).isprintable(), hex(number)
        assert json.loads(json_escaped(json.dumps(evil, ensure_ascii=False))) == evil


def test_no_cell_of_a_table_has_a_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    console.cache_clear()
    evil = "".join(map(chr, CONTROLS[:-1]))
    print_table(["a", "b"], [[evil, Text(evil, "red")]], evil)
    console.cache_clear()
    assert [letter for letter in capsys.readouterr().out if not letter.isprintable() and letter != "\n"] == []
