"""Interceptors see a batch before it is stored, change or drop it, and fail nothing but that publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
from plugin_world import Brought, broker_with, client_of
from simulated_time import simulated

from linn.client import Client
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records, edit_batch
from linn.core.batch.record import Record
from linn.core.batch.routes import pair_of
from linn.core.config.config import check_config
from linn.core.config.tables import PluginSettings
from linn.core.config.toml_source import TomlSource
from linn.core.config.topic_settings import TopicSettings
from linn.core.errors.tree import (
    ConfigError,
    InterceptorFailed,
    LinnError,
    MessageInvalid,
    MessageTooLarge,
    PluginError,
    PluginUnknown,
)
from linn.core.plugins.hookspecs import hookimpl
from linn.core.plugins.manager import PluginManager, installed
from linn.core.ports.interceptor import InterceptorKind
from linn.testing.interceptors import InterceptorConformance, InterceptorHarness
from linn.testing.sim_env import SimEnv

Change = Callable[[RecordBatch], RecordBatch | None]


class SuffixSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suffix: str = "!"


class Suffix:
    """Writes something behind each value."""

    def __init__(self, topic: str, settings: TopicSettings, own: SuffixSettings) -> None:
        self._suffix = own.suffix.encode()
        assert topic
        assert settings.kind == "stream"

    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch | None:
        return edit_batch(batch, values=[(record.value or b"") + self._suffix for record in batch.records()])


class SuffixPlugin:
    @hookimpl
    def linn_register_interceptor(self) -> InterceptorKind:
        return InterceptorKind("suffix", SuffixSettings, Suffix)


class OddPlugin:
    """Brings the interceptor `odd`, which does what it is told."""

    def __init__(self, change: Change) -> None:
        self._change = change

    @hookimpl
    def linn_register_interceptor(self) -> InterceptorKind:
        return InterceptorKind("odd", None, lambda topic, settings, own: self)

    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch | None:
        return self._change(batch)


TOML = """
[interceptors.loud]
interceptor = "suffix"
suffix = "!!!"
[exchanges.all]
type = "fanout"
[topics.changed]
kind = "stream"
interceptors = ["suffix", "loud"]
[[topics.changed.bindings]]
exchange = "all"
[topics.plain]
kind = "stream"
[[topics.plain.bindings]]
exchange = "all"
"""
ODD = '[exchanges.all]\ntype = "fanout"\n' + "".join(
    f'[topics.{name}]\nkind = "stream"\n{more}[[topics.{name}.bindings]]\nexchange = "all"\n'
    for name, more in (("plain", ""), ("odd", 'interceptors = ["odd"]\n'))
)


async def stored(client: Client, topic: str) -> list[bytes | None]:
    return [value for batch in (await client.fetch(topic, 0, 0)).batches for value in batch.values]


@simulated
async def test_each_topic_stores_what_its_interceptors_leave_in_their_order(env: SimEnv) -> None:
    async with broker_with(env, TOML, suffix=SuffixPlugin()), client_of(env) as client:
        async with client.producer(exchange="all") as producer:
            receipt = await producer.publish(b"a", routing_key="k")
        assert receipt.batch_copies == 2
        async with client.producer("changed") as producer:
            receipt = await producer.publish(b"b")
            assert (receipt.partition, receipt.offset) == (0, 1)
        assert await stored(client, "changed") == [b"a!!!!", b"b!!!!"]
        assert await stored(client, "plain") == [b"a"]


@simulated
async def test_interceptors_can_be_changed_while_the_topic_exists(env: SimEnv) -> None:
    async with broker_with(env, TOML, suffix=SuffixPlugin()), client_of(env) as client:
        async with client.producer("plain") as producer:
            await producer.publish(b"a")
            assert await client.admin.alter_topic("plain", interceptors=["loud"]) == ["interceptors"]
            await producer.publish(b"b")
            await client.admin.alter_topic("plain", interceptors=[])
            await producer.publish(b"c")
        assert await stored(client, "plain") == [b"a", b"b!!!", b"c"]


@simulated
async def test_dropped_records_are_confirmed_and_in_no_log(env: SimEnv) -> None:
    def drop_a(batch: RecordBatch) -> RecordBatch | None:
        return None if batch.value(0) == b"a" else batch

    async with broker_with(env, ODD, odd=OddPlugin(drop_a)), client_of(env) as client:
        async with client.producer("odd") as producer:
            receipt = await producer.publish(b"a")
            assert (receipt.partition, receipt.offset, receipt.batch_copies) == (None, None, 0)
            assert (await producer.publish(b"b")).offset == 0
        async with client.producer(exchange="all") as producer:
            assert (await producer.publish(b"a")).batch_copies == 1
        assert await stored(client, "odd") == [b"b"]


def raising(error: Exception) -> Change:
    def change(batch: RecordBatch) -> RecordBatch | None:
        if batch.value(0) == b"bad":
            raise error
        return batch

    return change


FAILING: list[tuple[Change, str]] = [
    (raising(RuntimeError("broken")), "failed: RuntimeError: broken"),
    (lambda batch: "no batch", "intercept() returned a str, not a RecordBatch"),  # type: ignore[list-item, return-value]
    (lambda batch: build_from_records([Record(value=b"x")] * 2, base_id=1), "1 record came in and 2 out"),
    (lambda batch: RecordBatch(bytearray(batch.message[:-8]) + bytes(8)), "a batch that can't be stored"),
]


@pytest.mark.parametrize(("change", "text"), FAILING)
@simulated
async def test_an_interceptor_that_fails_fails_that_publish_in_all_topics_by_its_name(
    env: SimEnv, change: Change, text: str
) -> None:
    async with broker_with(env, ODD, odd=OddPlugin(change)), client_of(env) as client:
        async with client.producer(exchange="all") as producer:
            with pytest.raises(InterceptorFailed) as raised:
                await producer.publish(b"bad")
        assert raised.value.text.startswith('interceptor "odd" of topic odd, of plugin "odd" (tests:odd), failed: ')
        assert text in raised.value.text
        async with client.producer("plain") as producer:
            await producer.publish(b"good")
        assert await stored(client, "plain") == [b"good"]
        assert await stored(client, "odd") == []


@simulated
async def test_a_linn_error_of_an_interceptor_reaches_the_producer_as_it_is(env: SimEnv) -> None:
    odd = OddPlugin(raising(MessageInvalid("no such customer")))
    async with broker_with(env, ODD, odd=odd), client_of(env) as client:
        async with client.producer("odd") as producer:
            with pytest.raises(MessageInvalid, match="no such customer"):
                await producer.publish(b"bad")
            await producer.publish(b"good")


@simulated
async def test_a_batch_made_too_large_by_an_interceptor_is_refused(env: SimEnv) -> None:
    odd = OddPlugin(lambda batch: edit_batch(batch, values=[bytes(2_000)]))
    toml = ODD.replace('interceptors = ["odd"]', 'interceptors = ["odd"]\nmessage_bytes_max = 1000')
    async with broker_with(env, toml, odd=odd), client_of(env) as client:
        async with client.producer("odd") as producer:
            with pytest.raises(MessageTooLarge):
                await producer.publish(b"small")


@simulated
async def test_a_factory_that_fails_stops_the_start_with_the_plugins_name(env: SimEnv) -> None:
    class Broken:
        @hookimpl
        def linn_register_interceptor(self) -> InterceptorKind:
            return InterceptorKind("odd", None, lambda topic, settings, own: 1 // 0)

    text = r'^plugin "odd" \(tests:odd\): the factory of "odd" failed: ZeroDivisionError'
    with pytest.raises(PluginError, match=text):
        async with broker_with(env, ODD, odd=Broken()):
            raise AssertionError("it started")


# --- edit_batch ------------------------------------------------------------------------------------------------------

RECORDS = [
    Record(value=b"v%d" % n if n % 5 else None, key=b"k" if n % 2 else None, routing_key="ab"[n % 2], timestamp_ms=n,
           labels={"n": n % 3}, headers=(("h", b"x"), ("h", None)) if n % 4 == 0 else ())
    for n in range(20)
]  # fmt: skip


def test_columns_that_are_not_edited_stay_unchanged() -> None:
    batch = build_from_records(RECORDS, base_id=7)
    before = bytes(batch.message)
    edited = edit_batch(batch, values=[b"new"] * 20)
    assert bytes(batch.message) == before
    for old, new in zip(batch.records(), edited.records(), strict=True):
        assert new.value == b"new"
        for name in ("key", "routing_key", "labels", "headers", "id", "timestamp_ms"):
            assert getattr(new, name) == getattr(old, name)


def test_pairs_are_edited_one_for_one() -> None:
    batch = build_from_records(RECORDS, base_id=7)
    pairs = [pair_of(pair.routing_key * 2, {}) for pair in batch.pairs()]
    edited = edit_batch(batch, pairs=pairs, headers=[()] * 20)
    assert [record.routing_key for record in edited.records()] == [record.routing_key * 2 for record in RECORDS]
    assert all(not record.labels and not record.headers for record in edited.records())
    assert [record.value for record in edited.records()] == [record.value for record in RECORDS]


def test_a_batch_without_pairs_can_be_given_one() -> None:
    edited = edit_batch(build_from_records([Record(value=b"a")] * 3, base_id=1), pairs=[pair_of("k", {"a": 1})])
    assert [(record.routing_key, dict(record.labels)) for record in edited.records()] == [("k", {"a": 1})] * 3


def test_values_that_can_not_be_encoded_are_refused() -> None:
    batch = build_from_records([Record(value=b"a")], base_id=1)
    with pytest.raises(MessageInvalid):
        edit_batch(batch, values=["text"])  # type: ignore[list-item]


# --- the suite for interceptors --------------------------------------------------------------------------------------


class TestSuffix(InterceptorConformance):
    @pytest.fixture
    def harness(self) -> InterceptorHarness:
        return InterceptorHarness(lambda: Suffix("orders", TopicSettings(kind="stream"), SuffixSettings()))


class TestRefusing(InterceptorConformance):
    @pytest.fixture
    def harness(self) -> InterceptorHarness:
        return InterceptorHarness(lambda: OddPlugin(raising(MessageInvalid("no"))))


def changing_in_place(batch: RecordBatch) -> RecordBatch:
    message = memoryview(batch.message)
    if not message.readonly:
        message[-1] ^= 1
    return batch


ONE = build_from_records([Record(value=b"x")], base_id=1)
SEEN: list[RecordBatch] = []


@pytest.mark.parametrize(
    ("promise", "broken"),
    [
        ("test_the_batch_that_is_given_is_not_changed", changing_in_place),
        ("test_a_batch_keeps_its_records_with_their_ids_and_times", lambda batch: ONE),
        (
            "test_equal_batches_get_equal_answers",
            lambda batch: SEEN.append(batch) or (batch if len(SEEN) % 2 else None),
        ),
        ("test_a_new_batch_is_its_own", lambda batch: ONE),
        ("test_any_batch_gets_a_batch_nothing_or_a_linn_error", lambda batch: 7),
        ("test_results_can_be_stored", lambda batch: RecordBatch(bytearray(batch.message[:-8]) + bytes(8))),
    ],
)
def test_the_suite_notices_a_broken_promise(promise: str, broken: Change) -> None:
    with pytest.raises((AssertionError, LinnError)):
        getattr(InterceptorConformance(), promise)(InterceptorHarness(lambda: OddPlugin(broken)))


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('[topics.t]\ninterceptors = ["sufix"]', r'topics.t.interceptors[0]: there is no interceptor "sufix"; did you'),
        ('[topics.t]\ninterceptors = ["suffix", "suffix"]', 'topics.t.interceptors[1]: "suffix" is named twice'),
        ("[interceptors.suffix]\nsufix = 'x'", 'interceptors.suffix.sufix: unknown key; did you mean "suffix"?'),
        ("[interceptors.loud]\ninterceptor = 'sufix'", 'no plugin provides the interceptor "sufix"; did you mean'),
        ("[interceptors.loud]", 'no plugin provides the interceptor "loud"'),
        ("[interceptors.suffix]\nsuffix = 7", "interceptors.suffix.suffix: must be text, not a whole number"),
    ],
)
def test_a_configuration_error_names_its_key(toml: str, problem: str) -> None:
    source = TomlSource(toml, "test.toml")
    entry: Any = Brought("suffix", SuffixPlugin())
    ours = [entry for entry in installed() if entry.dist is not None and entry.dist.name == "linn"]
    _, problems = check_config(source, PluginManager(PluginSettings(), [*ours, entry]))
    described = [problems.describe(each) for each in problems.found]
    assert len(described) == 1
    assert problem in described[0]


@simulated
async def test_the_same_interceptor_may_be_in_a_topic_that_is_made_live(env: SimEnv) -> None:
    async with broker_with(env, TOML, suffix=SuffixPlugin()), client_of(env) as client:
        await client.admin.create_topic("live", kind="stream", interceptors=["loud"])
        async with client.producer("live") as producer:
            await producer.publish(b"a")
        assert await stored(client, "live") == [b"a!!!"]
        assert (await client.admin.topic("live"))["settings"]["interceptors"] == ["loud"]
        with pytest.raises(PluginUnknown, match=r'"lod"; did you mean "loud"'):
            await client.admin.alter_topic("live", interceptors=["lod"])


FULL = '[topics.t]\nmessage_bytes_max = 1000\nbytes_max = 1000\ninterceptors = ["odd"]\n'


@simulated
async def test_a_publish_that_waits_for_room_blocks_no_other_for_any_interceptors_answer(env: SimEnv) -> None:
    kept = iter([True, True, True, *[False, True] * 500])

    def change(batch: RecordBatch) -> RecordBatch | None:
        return batch if next(kept) else None

    async with broker_with(env, FULL, odd=OddPlugin(change)), client_of(env) as client:
        async with client.producer("t") as producer, client.consumer("t") as consumer:
            await producer.publish(b"a" * 900)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.publish, b"b" * 900)
                await env.clock.sleep(1)
                assert len(list(kept)) > 900
                nursery.cancel_scope.cancel()
            assert (await anext(consumer)).value == b"a" * 900


@simulated
async def test_interceptors_that_a_live_topic_names_must_be_there_at_a_start(env: SimEnv) -> None:
    async with broker_with(env, TOML, suffix=SuffixPlugin()), client_of(env) as client:
        await client.admin.create_topic("live", kind="stream", interceptors=["loud"])
    with pytest.raises(ConfigError, match='was made with "loud", which the configuration no longer has'):
        async with broker_with(env, "", suffix=SuffixPlugin()):
            pass


@simulated
async def test_an_interceptor_may_go_from_toml_with_the_topics_that_name_it(env: SimEnv) -> None:
    async with broker_with(env, TOML, suffix=SuffixPlugin()):
        pass
    async with broker_with(env, '[topics.changed]\nkind = "stream"\n'), client_of(env) as client:
        assert (await client.admin.topic("changed"))["settings"]["interceptors"] == []
