"""Bodies of other formats, which a plugin reads: stored as they came, translated where records are told apart."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import RawClient, Refused, broker_on, connected, served, simulated, values

from linn.core.batch.batch import Codec, RecordBatch
from linn.core.batch.builder import build_from_records, edit_batch, slice_batch, with_body
from linn.core.batch.format import CACHE_BYTES_MAX, RECORDS_MAX, BodyColumns, BoundFormat, FormatKind, Formats
from linn.core.batch.record import Record
from linn.core.errors.tree import BatchMalformed, FormatUnknown, PluginError
from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.interceptor import InterceptorKind
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

NUMBER = 77


class Pages:
    """A format of its own: a count, and a page of JSON for each record."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def check(self, body: memoryview, count: int, bytes_max: int) -> int:
        self.calls.append("check")
        if int.from_bytes(body[:4], "little") != count:
            raise BatchMalformed("the pages do not number what the batch says")
        return len(body)

    def to_native(self, body: memoryview, count: int, bytes_max: int) -> BodyColumns:
        self.calls.append("to_native")
        pages = json.loads(bytes(body[4:]))
        return BodyColumns(
            values=[None if page["v"] is None else bytes.fromhex(page["v"]) for page in pages],
            keys=[None if page["k"] is None else bytes.fromhex(page["k"]) for page in pages],
            timestamps_ms=[page["t"] for page in pages],
            headers=[tuple((name, None if v is None else bytes.fromhex(v)) for name, v in page["h"]) for page in pages],
        )

    def from_native(self, batch: RecordBatch) -> bytes:
        self.calls.append("from_native")
        return pages_of(batch.records())


def pages_of(records: Sequence[Record]) -> bytes:
    """A body of these records."""
    pages = [
        {
            "v": None if record.value is None else record.value.hex(),
            "k": None if record.key is None else record.key.hex(),
            "t": record.timestamp_ms,
            "h": [(name, None if value is None else value.hex()) for name, value in record.headers],
        }
        for record in records
    ]
    if any(record.value == b"too odd for a page" for record in records):
        raise BatchMalformed("too odd for a page")
    return len(records).to_bytes(4, "little") + json.dumps(pages).encode()


@dataclass
class Plugin:
    """Brings `pages`."""

    name: str = "pages"
    number: Any = NUMBER
    codec: Any = field(default_factory=Pages)
    dist = None
    value = "pages"

    def load(self) -> Plugin:
        return self

    def __hash__(self) -> int:
        return id(self)

    @hookimpl
    def linn_register_format(self) -> FormatKind:
        return FormatKind(self.name, self.number, lambda: self.codec)


def some_records(count: int, start: int = 0) -> list[Record]:
    return [
        Record(
            value=b"v%d" % n,
            key=b"k%d" % (n % 5),
            routing_key="even" if n % 2 == 0 else "odd",
            labels={"n": n % 3},
            headers=(("h", b"%d" % n), ("empty", None)),
            timestamp_ms=1000 + n,
        )
        for n in range(start, start + count)
    ]


def foreign(records: Sequence[Record], body: bytes | None = None, number: int = NUMBER) -> RecordBatch:
    """A batch of these records, as a producer that speaks the format sends it."""
    native = build_from_records(records, base_id=1)
    return with_body(native, number, pages_of(records) if body is None else body)


def contents(batches: Sequence[RecordBatch]) -> list[tuple[object, ...]]:
    """Everything of the records but their ids, with their offsets."""
    return [
        (batch.offset(index), r.value, r.key, r.routing_key, dict(r.labels or {}), tuple(r.headers), r.timestamp_ms)
        for batch in batches
        for index, r in enumerate(batch.records())
    ]


def expected(records: Sequence[Record], offset: int = 0) -> list[tuple[object, ...]]:
    return [
        (offset + n, r.value, r.key, r.routing_key, dict(r.labels or {}), tuple(r.headers), r.timestamp_ms)
        for n, r in enumerate(records)
    ]


STREAM = '[topics.t]\nkind = "stream"\n'
QUEUE = '[topics.t]\nkind = "queue"\nmax_deliveries = 1\ndead_letter = "dead"\n[topics.dead]\nkind = "stream"\n'
DRAM = 'storage = "dram"\n'


async def fetched(client: RawClient, topic: str, offset: int = 0, **options: Any) -> list[RecordBatch]:
    return list((await client.ask(m.Fetch(topic, 0, offset, **options))).batches)


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["", DRAM])
@simulated
async def test_a_stream_keeps_the_body_and_each_reader_gets_what_it_reads(env: SimEnv, storage: str) -> None:
    plugin = Plugin()
    async with broker_on(env, STREAM + storage, plugins=[plugin]):
        client = await connected(env)
        records = some_records(10)
        batch = foreign(records)
        sent = bytes(batch.raw_fields[0] or b"")
        await client.call(m.Publish("t"), [batch])
        assert plugin.codec.calls == ["check"]
        (same,) = await fetched(client, "t", formats=[0, NUMBER])
        assert same.format == NUMBER
        assert bytes(same.raw_fields[0] or b"") == sent
        assert plugin.codec.calls == ["check"]
        (native,) = await fetched(client, "t")
        assert native.format == 0
        assert contents([native]) == expected(records)
        assert (native.base_id, native.offset_span, native.append_time_ms) == (
            same.base_id,
            same.offset_span,
            same.append_time_ms,
        )
        native.check_stored()
        await fetched(client, "t")
        assert plugin.codec.calls == ["check", "to_native"], "the translation is cached"


@pytest.mark.parametrize("storage", ["", DRAM])
@simulated
async def test_nothing_is_lost_of_a_stream_that_is_read_from_the_middle(env: SimEnv, storage: str) -> None:
    async with broker_on(env, STREAM + storage, plugins=[Plugin()]):
        client = await connected(env)
        records = some_records(40)
        for first in range(0, 40, 10):
            await client.call(m.Publish("t"), [foreign(records[first : first + 10])])
        for offset in range(40):
            for formats in ([], [0], [0, NUMBER]):
                found, at = [], offset
                while at < 40:
                    batches = await fetched(client, "t", at, formats=formats)
                    found += batches
                    at = batches[-1].end_offset
                opened(found)
                assert contents(found) == expected(records[offset:], offset)
        subscription = (await client.call(m.Subscribe("t", start=13))).subscription
        event = await client.pull(subscription, 4)
        assert contents(event.batches) == expected(records[13:17], 13)


def opened(batches: Sequence[RecordBatch]) -> None:
    formats = Formats([BoundFormat(NUMBER, "pages", "this test", Pages())])
    for batch in batches:
        if batch.format:
            batch.opener = formats


@served(STREAM, plugins=[Plugin()])
async def test_a_filter_picks_records_of_a_foreign_batch(client: RawClient) -> None:
    records = some_records(10)
    await client.call(m.Publish("t"), [foreign(records)])
    even = [row for row in expected(records) if row[3] == "even"]
    assert contents(await fetched(client, "t", where='routing_key = "even"')) == even
    assert contents(await fetched(client, "t", where="labels.n < 5")) == expected(records)
    (same,) = await fetched(client, "t", where="labels.n < 5", formats=[NUMBER])
    (some,) = await fetched(client, "t", where='routing_key = "even"', formats=[NUMBER])
    assert same.format == some.format == NUMBER
    opened([same, some])
    assert contents([same]) == expected(records)
    assert contents([some]) == even


@simulated
async def test_a_native_batch_is_written_in_the_format_that_a_reader_asks_for(env: SimEnv) -> None:
    plugin = Plugin()
    async with broker_on(env, STREAM, plugins=[plugin]):
        client = await connected(env)
        records = some_records(10)
        await client.call(m.Publish("t"), [build_from_records(records, base_id=1, codec=Codec.ZSTD)])
        found = await fetched(client, "t", 3, formats=[NUMBER])
        assert [batch.format for batch in found] == [NUMBER]
        opened(found)
        assert contents(found) == expected(records[3:], 3)
        await client.call(m.Publish("t"), [build_from_records([Record(value=b"too odd for a page")], base_id=1)])
        assert [batch.format for batch in await fetched(client, "t", 10, formats=[NUMBER])] == [0]
        subscription = (await client.call(m.Subscribe("t", formats=[NUMBER]))).subscription
        event = await client.pull(subscription, 10)
        assert [batch.format for batch in event.batches] == [NUMBER]


# --- queues ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["", DRAM])
@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
@simulated
async def test_a_queue_hands_over_every_record_however_it_is_cut(env: SimEnv, storage: str, at_once: int) -> None:
    async with broker_on(env, QUEUE.replace("[topics.dead]", storage + "[topics.dead]"), plugins=[Plugin()]):
        client = await connected(env)
        records = some_records(30)
        for first in range(0, 30, 10):
            await client.call(m.Publish("t"), [foreign(records[first : first + 10])])
        subscription = (await client.call(m.Subscribe("t"))).subscription
        found = []
        while (event := await client.pull(subscription, at_once)).batches:
            found += contents(event.batches)
            await client.settle(subscription, event)
        assert found == expected(records)


@served(QUEUE, plugins=[Plugin()])
async def test_dead_letters_of_a_foreign_batch_are_whole(client: RawClient) -> None:
    records = some_records(10)
    await client.call(m.Publish("t"), [foreign(records)])
    subscription = (await client.call(m.Subscribe("t"))).subscription
    for n in range(10):
        event = await client.pull(subscription, 1)
        await client.settle(subscription, event, verdict=2 if n % 2 else 0)
    found: list[RecordBatch] = []
    while sum(batch.count for batch in found) < 5:
        at = found[-1].end_offset if found else 0
        found += await fetched(client, "dead", at, wait_max_ms=1000)
    dead = [record for batch in found for record in batch.records()]
    assert [(r.value, r.key, tuple(r.headers), r.timestamp_ms, r.routing_key) for r in dead] == [
        (r.value, r.key, tuple(r.headers), r.timestamp_ms, r.routing_key) for r in records[1::2]
    ]
    assert [(r.labels or {})["n"] for r in dead] == [(r.labels or {})["n"] for r in records[1::2]]


@simulated
async def test_a_queue_waits_for_the_plugin_that_its_records_need(env: SimEnv) -> None:
    records = some_records(10)
    async with broker_on(env, QUEUE, plugins=[Plugin()]):
        client = await connected(env)
        await client.call(m.Publish("t"), [foreign(records)])
        subscription = (await client.call(m.Subscribe("t"))).subscription
        await client.settle(subscription, await client.pull(subscription, 1))
    async with broker_on(env, QUEUE):
        client = await connected(env)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        assert not (await client.pull(subscription, 3, wait_max_ms=5_000)).batches
        with pytest.raises(Refused, match=r"batch\.format_unknown"):
            await fetched(client, "t", 4)
    async with broker_on(env, QUEUE, plugins=[Plugin()]):
        client = await connected(env)
        assert await client.taken("t") == [f"v{n}" for n in range(1, 10)]
        assert not await fetched(client, "dead")


@simulated
async def test_dead_letters_wait_for_the_plugin_that_reads_them(env: SimEnv) -> None:
    records = some_records(10)

    async def process(env: SimEnv) -> None:
        async with broker_on(env, QUEUE, plugins=[Plugin()]):
            client = await connected(env)
            await client.call(m.Publish("t"), [foreign(records)])
            subscription = (await client.call(m.Subscribe("t"))).subscription
            await client.pull(subscription, 4)
            await trio.sleep(1)  # Until the lease is in the log.
            env.kill()

    assert await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, QUEUE) as broker:
        await trio.sleep(60)
        (queue,) = broker.topics["t"].queue.partition_queues  # type: ignore[union-attr]
        assert queue.subscription.dead_count == 4
    async with broker_on(env, QUEUE, plugins=[Plugin()]):
        client = await connected(env)
        await trio.sleep(60)
        assert await client.fetch("dead") == ["v0", "v1", "v2", "v3"]


# --- publishing ------------------------------------------------------------------------------------------------------


@served(STREAM, plugins=[Plugin()])
async def test_what_no_plugin_reads_and_what_does_not_fit_is_refused_and_costs_nobody_else(client: RawClient) -> None:
    records = some_records(3)
    with pytest.raises(Refused, match=r"batch\.format_unknown: no plugin of this broker reads bodies of format 78"):
        await client.call(m.Publish("t"), [foreign(records, number=78)])
    with pytest.raises(Refused, match=r"batch\.malformed: the pages do not number"):
        await client.call(m.Publish("t"), [foreign(records, body=pages_of(records[1:]))])
    with pytest.raises(Refused, match=r"batch\.format_unknown"):
        await client.call(m.Subscribe("t", formats=[0, 78]))
    with pytest.raises(Refused, match=r"batch\.format_unknown"):
        await fetched(client, "t", formats=[78])
    assert not await fetched(client, "t")
    await client.call(m.Publish("t"), [foreign(records)])
    assert contents(await fetched(client, "t")) == expected(records)


@dataclass
class Interceptors(Plugin):
    """Brings `shout`, which makes values loud, and `same`, which answers with an unknown format."""

    name: str = "interceptors"

    def __hash__(self) -> int:
        return id(self)

    @hookimpl
    def linn_register_interceptor(self) -> list[InterceptorKind]:
        return [InterceptorKind(name, None, lambda *_, name=name: Shout(name)) for name in ("shout", "foreign")]


@dataclass
class Shout:
    name: str

    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch:
        if self.name == "foreign":
            return foreign(batch.records(), number=78)
        return edit_batch(batch, values=[(record.value or b"").upper() for record in batch.records()])


@simulated
async def test_interceptors_read_foreign_batches_and_give_native_ones(env: SimEnv) -> None:
    text = '[topics.t]\nkind = "stream"\ninterceptors = ["shout"]\n[topics.u]\ninterceptors = ["foreign"]\n'
    async with broker_on(env, text, plugins=[Interceptors()]):
        client = await connected(env)
        records = some_records(3)
        await client.call(m.Publish("t"), [foreign(records)])
        (batch,) = await fetched(client, "t", formats=[0, NUMBER])
        assert values([batch]) == ["V0", "V1", "V2"]
        assert [row[2:] for row in contents([batch])] == [row[2:] for row in expected(records)]
        with pytest.raises(Refused, match=r"interceptor\.failed: .*a new batch of format 78"):
            await client.call(m.Publish("u"), [foreign(records)])


@simulated
async def test_what_is_decoded_without_a_pause_is_bounded(env: SimEnv) -> None:
    plugin = Plugin()
    async with broker_on(env, STREAM, plugins=[plugin]):
        client = await connected(env)
        with pytest.raises(Refused, match=r"batch\.too_large"):
            await client.call(m.Publish("t"), [foreign([Record()] * (RECORDS_MAX + 1))])
        assert not plugin.codec.calls
        many = [Record(value=b"%d" % n) for n in range(2 * RECORDS_MAX + 5)]
        await client.call(m.Publish("t"), [build_from_records(many, base_id=1)])
        for options in ({}, {"where": 'routing_key = ""'}):
            found: list[RecordBatch] = []
            while sum(batch.count for batch in found) < len(many):
                at = found[-1].end_offset if found else 0
                found += await fetched(client, "t", at, formats=[NUMBER], bytes_max=1 << 24, **options)
            assert [batch.count for batch in found] == [RECORDS_MAX, RECORDS_MAX, 5]
            assert {batch.format for batch in found} == {NUMBER}
            opened(found)
            assert [int(record.value or b"") for batch in found for record in batch.records()] == list(range(len(many)))


@served(STREAM, plugins=[Plugin()])
async def test_headers_count_in_what_is_encoded_without_a_pause(client: RawClient) -> None:
    some = [Record(value=b"%d" % n, headers=(("h", None),) * 1_000) for n in range(40)]
    await client.call(m.Publish("t"), [build_from_records(some, base_id=1)])
    await client.call(m.Publish("t"), [build_from_records([Record(headers=(("h", None),) * 1_025)], base_id=1)])
    await client.call(m.Publish("t"), [build_from_records([Record(headers=(("h", None),) * 40_000)], base_id=1)])
    found: list[RecordBatch] = []
    while sum(batch.count for batch in found) < 42:
        at = found[-1].end_offset if found else 0
        found += await fetched(client, "t", at, formats=[NUMBER])
    assert [(batch.count, batch.format) for batch in found] == [
        *((17, NUMBER), (17, NUMBER), (6, NUMBER)),
        *((1, NUMBER), (1, 0)),
    ]
    opened(found)
    assert [int(record.value or b"-1") for batch in found for record in batch.records()] == [*range(40), -1, -1]


@simulated
async def test_exchanges_and_partitioners_look_into_foreign_batches(env: SimEnv) -> None:
    text = (
        '[exchanges.e]\ntype = "content"\n'
        '[topics.p]\nkind = "stream"\npartitions = 3\n'
        '[topics.k]\nkind = "stream"\n[[topics.k.bindings]]\nexchange = "e"\nwhen = \'key = "k1"\'\n'
        '[topics.o]\nkind = "stream"\n[[topics.o.bindings]]\nexchange = "e"\nwhen = \'routing_key = "odd"\'\n'
    )
    async with broker_on(env, text, plugins=[Plugin()]):
        client = await connected(env)
        records = some_records(10)
        await client.call(m.Publish("e", to_exchange=True), [foreign(records)])
        assert values(await fetched(client, "k")) == ["v1", "v6"]
        assert values(await fetched(client, "o")) == [f"v{n}" for n in range(1, 10, 2)]
        await client.call(m.Publish("p"), [foreign(records)])
        parts = [await client.fetch("p", n) for n in range(3)]
        assert sorted(value for part in parts for value in part) == sorted(f"v{n}" for n in range(10))


@served(STREAM + "message_bytes_max = 100\n", plugins=[Plugin()])
async def test_a_message_in_a_foreign_batch_is_no_larger_than_the_topic_allows(client: RawClient) -> None:
    await client.call(m.Publish("t"), [foreign([Record(value=bytes(60))] * 10)])
    with pytest.raises(Refused, match=r"message\.too_large"):
        await client.call(m.Publish("t"), [foreign([Record(value=bytes(101))])])


class Zipped(Pages):
    """Pages, compressed: a body says nothing about the size of its records."""

    def check(self, body: memoryview, count: int, bytes_max: int) -> int:
        pages = zlib.decompress(body)
        super().check(memoryview(pages), count, bytes_max)
        return len(pages)

    def to_native(self, body: memoryview, count: int, bytes_max: int) -> BodyColumns:
        return super().to_native(memoryview(zlib.decompress(body)), count, bytes_max)


@simulated
async def test_a_message_that_the_format_compresses_is_no_larger_either(env: SimEnv) -> None:
    plugin = Plugin(codec=Zipped())
    async with broker_on(env, STREAM + "message_bytes_max = 1000\n", plugins=[plugin]):
        client = await connected(env)
        for size in (1_000, 10):
            records = [Record(value=bytes(size))] * 2
            await client.call(m.Publish("t"), [foreign(records, body=zlib.compress(pages_of(records)))])
        assert plugin.codec.calls == ["check", "to_native", "check"], "small ones are not looked at"
        large = [Record(value=bytes(1_001))]
        with pytest.raises(Refused, match=r"message\.too_large"):
            await client.call(m.Publish("t"), [foreign(large, body=zlib.compress(pages_of(large)))])


# --- plugins that are no good ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 256, -1, "7", True, None])
@simulated
async def test_a_number_that_is_none_stops_the_start(env: SimEnv, number: object) -> None:
    with pytest.raises(PluginError, match='format "pages" has the number'):
        async with broker_on(env, STREAM, plugins=[Plugin(number=number)]):
            pass


@simulated
async def test_two_plugins_with_one_number_do_not_start(env: SimEnv) -> None:
    with pytest.raises(PluginError, match=r'plugin "b".* number 77, which plugin "a" uses for the format "a"'):
        async with broker_on(env, STREAM, plugins=[Plugin("a"), Plugin("b")]):
            pass


class Broken(Pages):
    """Fails in what `broken` names."""

    def __init__(self, broken: str, answer: object) -> None:
        super().__init__()
        self.broken, self.answer = broken, answer

    def _fail(self, name: str) -> Any:
        if self.broken == name:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        return None

    def check(self, body: memoryview, count: int, bytes_max: int) -> int:
        return self._fail("check") or super().check(body, count, bytes_max)

    def to_native(self, body: memoryview, count: int, bytes_max: int) -> BodyColumns:
        return self._fail("to_native") or super().to_native(body, count, bytes_max)

    def from_native(self, batch: RecordBatch) -> bytes:
        return self._fail("from_native") or super().from_native(batch)


@pytest.mark.parametrize("answer", [RuntimeError("broken"), "many"])
@simulated
async def test_a_codec_whose_check_fails_refuses_that_publish_by_name(env: SimEnv, answer: object) -> None:
    async with broker_on(env, STREAM, plugins=[Plugin(codec=Broken("check", answer))]):
        client = await connected(env)
        with pytest.raises(Refused, match=r"batch\.malformed: format pages, of plugin .pages.*could not check"):
            await client.call(m.Publish("t"), [foreign(some_records(2))])
        await client.publish("t", ["native"])
        assert await client.fetch("t") == ["native"]


@pytest.mark.parametrize("answer", [RuntimeError("broken"), BodyColumns([b"one"]), BodyColumns(["x", "y"]), 3])
@simulated
async def test_a_batch_that_can_not_be_decoded_is_handed_over_as_it_is_and_costs_no_other(
    env: SimEnv, answer: object
) -> None:
    async with broker_on(env, STREAM, plugins=[Plugin(codec=Broken("to_native", answer))]):
        client = await connected(env)
        await client.call(m.Publish("t"), [foreign(some_records(2))])
        await client.publish("t", ["native"])
        assert [batch.format for batch in await fetched(client, "t")] == [NUMBER, 0]
        assert await client.fetch("t", offset=2) == ["native"]


@pytest.mark.parametrize("answer", [RuntimeError("broken"), 3])
@simulated
async def test_a_codec_that_can_not_encode_gives_readers_linns_own_format(env: SimEnv, answer: object) -> None:
    async with broker_on(env, STREAM, plugins=[Plugin(codec=Broken("from_native", answer))]):
        client = await connected(env)
        await client.publish("t", ["native"])
        assert [batch.format for batch in await fetched(client, "t", formats=[NUMBER])] == [0]


# --- the registry ----------------------------------------------------------------------------------------------------

RECORDS = st.lists(
    st.builds(
        Record,
        value=st.none() | st.binary(max_size=20),
        key=st.none() | st.binary(max_size=5),
        headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(tuple),
        timestamp_ms=st.integers(0, 1 << 40),
        routing_key=st.sampled_from(["", "a", "b"]),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.data())
def test_a_batch_there_and_back_is_the_same_and_so_is_each_slice(records: list[Record], data: st.DataObject) -> None:
    formats = Formats([BoundFormat(NUMBER, "pages", "this test", Pages())])
    batch = build_from_records(records, base_id=5, codec=data.draw(st.sampled_from(Codec)))
    batch.stamp(100, 7, 3, 2)
    there = formats.translated("t", batch, NUMBER)
    back = formats.translated("t", there, 0)
    assert back.records() == batch.records() == there.records()
    for made in (there, back):
        made.check_stored()
        for name in ("base_offset", "append_time_ms", "durable_offset", "leader_epoch", "offset_span", "base_id"):
            assert getattr(made, name) == getattr(batch, name)
        for name in ("first_timestamp_ms", "max_timestamp_ms", "count", "pair_count", "attributes"):
            assert getattr(made, name) == getattr(batch, name)
    first = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(first + 1, len(records)))
    assert contents([slice_batch(back, 100 + first, 100 + end)]) == contents(
        [slice_batch(batch, 100 + first, 100 + end)]
    )


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    codec = Pages()
    formats = Formats([BoundFormat(NUMBER, "pages", "this test", codec)], bytes_max=64 << 20)
    batches = []
    for n in range(5):
        batch = foreign([Record(value=bytes([n]) * (8 << 20))])
        batch.stamp(n, 1)
        batches.append(batch)
        formats.translated("t", batch, 0)
        assert formats.cached_bytes <= CACHE_BYTES_MAX
        formats.translated("t", batches[0], 0)
    assert codec.calls.count("to_native") == 5
    formats.translated("t", batches[1], 0)
    assert codec.calls.count("to_native") == 6
    formats.translated("another", batches[0], 0)
    assert codec.calls.count("to_native") == 7
    again = RecordBatch(bytearray(batches[0].message))
    again.stamp(0, 2)  # Of a topic that was deleted and made anew.
    assert formats.translated("t", again, 0).append_time_ms == 2


def test_a_registry_without_the_format_says_so() -> None:
    batch = foreign(some_records(2))
    for act in (Formats().admit, lambda batch: Formats().translated("t", batch, 0)):
        with pytest.raises(FormatUnknown, match="format 77"):
            act(batch)
