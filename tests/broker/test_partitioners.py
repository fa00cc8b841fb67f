"""Partitioners: the built-in ones by their promises, one of a third party, and what becomes of one that fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import Refused, broker_on, configured, connected, records, simulated

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.batch.key_hash import key_hash, partition_of
from linn.core.batch.steps import run_steps
from linn.core.errors.tree import BatchMalformed, LinnError, PluginError, PluginUnknown, TopicError
from linn.core.plugins.hookspecs import hookimpl
from linn.core.routing.budget import PublishBudget
from linn.core.routing.partition_choice import PartitionChoice
from linn.core.routing.partitioner import PartitionerKind
from linn.plugins.partitioners import Murmur2Partitioner, RoundRobinPartitioner, StickyPartitioner
from linn.testing.partitioners import PartitionerConformance, PartitionerHarness
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


def batch_of(keys: Sequence[bytes | None]) -> RecordBatch:
    """Values that count, with keys and their hashes where there is a key."""
    columns = BatchColumns([b"%d" % n for n in range(len(keys))], 1, 1)
    if any(key is not None for key in keys):
        columns.keys, columns.key_hashes = keys, list(map(key_hash, keys))
    return build_batch(columns)


def split(partitioner: object, batch: RecordBatch, partitions: int) -> dict[int, list[bytes | None]]:
    choice = PartitionChoice("t", "p", partitioner)  # type: ignore[arg-type]
    parts = run_steps(choice.split_steps(batch, partitions, PublishBudget()))
    assert len({partition for partition, _ in parts}) == len(parts)
    return {partition: [record.value for record in part.records()] for partition, part in parts}


KEYS = st.lists(st.binary(max_size=6), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(keys=KEYS, partitions=st.integers(2, 9))
def test_murmur2_gives_each_key_the_partition_that_a_client_would(keys: list[bytes], partitions: int) -> None:
    found = split(Murmur2Partitioner(), batch_of(keys), partitions)
    for partition in range(partitions):
        expected = [b"%d" % n for n, key in enumerate(keys) if partition_of(key, partitions) == partition]
        assert found.get(partition, []) == expected


@pytest.mark.parametrize("kind", [Murmur2Partitioner, StickyPartitioner])
def test_batches_without_keys_stay_whole_and_take_turns(kind: type) -> None:
    partitioner = kind()
    batches = [batch_of([None] * size) for size in (3, 1, 7, 2, 5, 4)]
    found = [split(partitioner, batch, 3) for batch in batches]
    assert [list(parts) for parts in found] == [[0], [1], [2], [0], [1], [2]]
    assert [len(values) for parts in found for values in parts.values()] == [3, 1, 7, 2, 5, 4]


def test_sticky_and_round_robin_look_at_no_key() -> None:
    same = batch_of([b"k"] * 6)
    assert split(StickyPartitioner(), same, 3) == {0: [b"%d" % n for n in range(6)]}
    assert split(RoundRobinPartitioner(), same, 3) == {0: [b"0", b"3"], 1: [b"1", b"4"], 2: [b"2", b"5"]}


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=8), partitions=st.integers(2, 7))
def test_round_robin_goes_on_where_the_last_batch_ended(sizes: list[int], partitions: int) -> None:
    partitioner, counts = RoundRobinPartitioner(), Counter[int]()
    for size in sizes:
        for partition, values in split(partitioner, batch_of([None] * size), partitions).items():
            counts[partition] += len(values)
        shares = [counts[partition] for partition in range(partitions)]
        assert max(shares) - min(shares) <= 1


class TestMurmur2(PartitionerConformance):
    @pytest.fixture
    def harness(self) -> PartitionerHarness:
        return PartitionerHarness(make=Murmur2Partitioner, by_key=True)


class TestSticky(PartitionerConformance):
    @pytest.fixture
    def harness(self) -> PartitionerHarness:
        return PartitionerHarness(make=StickyPartitioner)


class TestRoundRobin(PartitionerConformance):
    @pytest.fixture
    def harness(self) -> PartitionerHarness:
        return PartitionerHarness(make=RoundRobinPartitioner)


class Wrong:
    """Promises what it does not keep."""

    def __init__(self, place: Callable[[RecordBatch, int], object]) -> None:
        self.place = place


@pytest.mark.parametrize(
    "place",
    [
        lambda batch, partitions: partitions,
        lambda batch, partitions: [0],
        lambda batch, partitions: ["0"] * batch.count,
        lambda batch, partitions: -1 if batch.count == 1 else 0,
    ],
)
def test_the_suite_finds_places_that_are_none(place: Callable[[RecordBatch, int], object]) -> None:
    harness = PartitionerHarness(make=lambda: Wrong(place))  # type: ignore[arg-type, return-value]
    with pytest.raises(AssertionError):
        PartitionerConformance().test_every_record_of_any_batch_gets_a_partition_that_is_there(harness)


@pytest.mark.parametrize("kind", [StickyPartitioner, RoundRobinPartitioner])
def test_the_suite_finds_keys_that_wander(kind: type) -> None:
    with pytest.raises(AssertionError):
        PartitionerConformance().test_a_key_has_one_partition_if_keys_decide(PartitionerHarness(kind, by_key=True))


class ByValue:
    """A third party's: what `answer` says, or else the record's value as a number."""

    answer: object = None

    def place(self, batch: RecordBatch, partitions: int) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        return [int(record.value or b"0") % partitions for record in batch.records()]


@pytest.mark.parametrize(
    "answer", [3, -1, [0, 1], [0, 1, 3], [0, 0, 0.0, 0], ["0"] * 3, [[0]] * 3, None, RuntimeError("broken")]
)
def test_a_choice_that_is_none_is_refused_with_the_partitioners_name(answer: object) -> None:
    partitioner = ByValue()
    partitioner.answer = answer if answer is not None else {}.get
    with pytest.raises(TopicError, match="partitioner p of topic t failed"):
        split(partitioner, batch_of([None] * 3), 3)


def test_an_error_of_linns_own_is_passed_on() -> None:
    partitioner = ByValue()
    partitioner.answer = BatchMalformed("no")
    with pytest.raises(BatchMalformed):
        split(partitioner, batch_of([None]), 3)


class Plugin:
    """Brings `by-value`."""

    name = "by-value"
    dist = None
    value = "by-value"

    def load(self) -> Plugin:
        return self

    @hookimpl
    def linn_register_partitioner(self) -> PartitionerKind:
        return PartitionerKind("by-value", ByValue)  # type: ignore[arg-type]


def topic(partitioner: str, partitions: int = 3) -> str:
    return f'[topics.t]\nkind = "stream"\npartitions = {partitions}\npartitioner = "{partitioner}"\n'


@simulated
async def test_a_topic_is_partitioned_as_its_setting_says_and_tells_clients(env: SimEnv) -> None:
    async with broker_on(env, topic("by-value"), plugins=[Plugin()]):
        client = await connected(env)
        info = (await client.call(m.Describe(["t"]))).topics[0]
        assert info.partitioner == "by-value"
        await client.call(m.Publish("t"), [records([str(n) for n in range(10)])])
        assert [await client.fetch("t", n) for n in range(3)] == [
            ["0", "3", "6", "9"],
            ["1", "4", "7"],
            ["2", "5", "8"],
        ]
        assert (await client.call(m.Publish("t", partition=2), [records(["0"])])).placements[0].partition == 2
        with pytest.raises(Refused, match=r"config\.not_live"):
            await client.administer("topic.alter", name="t", settings={"partitioner": "sticky"})
        with pytest.raises(Refused, match=r'plugin\.unknown.*"by-valu"; did you mean "by-value"'):
            await client.administer("topic.create", name="u", settings={"partitioner": "by-valu"})
        await client.administer("topic.create", name="u", settings={"partitioner": "by-value", "partitions": 2})
    with pytest.raises(PluginUnknown, match=r"partitioner of topic t, .by-value"):
        async with broker_on(env, ""):
            pass


@simulated
async def test_a_partitioner_that_fails_fails_that_publish_and_nothing_is_stored(env: SimEnv) -> None:
    text = topic("by-value") + '[topics.v]\n[exchanges.e]\ntype = "fanout"\n'
    text += "".join(f'[[topics.{name}.bindings]]\nexchange = "e"\n' for name in "vt")
    async with broker_on(env, text, plugins=[Plugin()]):
        client = await connected(env)
        with pytest.raises(Refused, match=r"topic\.invalid: partitioner by-value of topic t failed: ValueError"):
            await client.call(m.Publish("e", to_exchange=True), [records(["1", "x"])])
        assert (await client.administer("topic.show", name="v"))["queue"]["unsettled"] == 0
        assert (await client.call(m.Publish("e", to_exchange=True), [records(["1"])])).placements[0].copies == 2


@pytest.mark.parametrize(
    ("text", "said", "error"),
    [
        (
            topic("murmur"),
            'topics.t.partitioner: there is no partitioner "murmur"; did you mean "murmur2"?',
            PluginUnknown,
        ),
        ("[plugins]\nblock = ['partitioners']\n[topics.t]\n", "partitioner", PluginUnknown),
    ],
)
def test_a_partitioner_that_no_plugin_registers_is_shown_at_its_line(
    text: str, said: str, error: type[LinnError]
) -> None:
    with pytest.raises(error) as refused:
        configured(text)
    assert said in refused.value.text


def test_a_plugin_that_brings_something_else_is_named() -> None:
    class Wrong(Plugin):
        @hookimpl
        def linn_register_partitioner(self) -> PartitionerKind:
            return ByValue()  # type: ignore[return-value]

    with pytest.raises(PluginError, match=r"by-value.*partitioner"):
        configured("", plugins=[Wrong()])
