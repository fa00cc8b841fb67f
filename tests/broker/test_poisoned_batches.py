"""Batches with a sound CRC of which one field is wrong: what is refused once is refused whatever came before it.

Checks on entry never depend on what an exchange remembers: a batch with the same routes as a good one before it, or one
that is published with `mandatory`, is looked at like any other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random

import pytest
from raw_client import RawClient, Refused, broker_on, connected, served

from linn.core.batch.batch import NUMBER_BYTES, ROUTE_INDEX, SEALED, Codec, RecordBatch, seal
from linn.core.batch.builder import build_from_records
from linn.core.batch.flat_message import DATA_AT
from linn.core.batch.record import Record
from linn.core.errors.tree import BatchMalformed
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TABLES = """
[exchanges.e]
type = "topic"
[topics.bound]
kind = "stream"
[[topics.bound.bindings]]
exchange = "e"
key = "to.#"
[topics.direct]
kind = "stream"
"""
PAIRS = 3
_SEALED_AT = DATA_AT + NUMBER_BYTES - SEALED.size
_SEALED_FIELDS = ((0, 4), (4, 8), (12, 8), (20, 8), (28, 4), (32, 2), (34, 2), (36, 1), (37, 1), (38, 2), (40, 4))
"""Place and bytes of each number behind the CRC, up to the size of the body."""
ADDRESSED = (("e", False), ("e", True), ("direct", False))
"""Targets of a publish, and whether it is mandatory."""


def good(codec: Codec = Codec.NONE) -> RecordBatch:
    """A batch of six records of three routing keys."""
    made = [Record(value=b"v%d" % i, routing_key=f"to.{i % PAIRS}", key=b"k") for i in range(6)]
    return build_from_records(made, base_id=1, codec=codec)


def resealed(batch: RecordBatch, at: int, new: bytes) -> RecordBatch:
    """The batch with some bytes replaced, and a CRC that fits. Raises BatchMalformed where no head is left."""
    message = bytearray(batch.message)
    message[at : at + len(new)] = new
    seal(message)
    return RecordBatch(message)


def place_of(batch: RecordBatch, field: int) -> int:
    """The offset of a field of the batch in its message."""
    column = batch.raw_fields[field]
    assert column is not None
    return bytes(batch.message).index(bytes(column))


def with_one_field_changed(batch: RecordBatch, random: Random) -> Iterator[RecordBatch]:
    """Batches in which one number behind the CRC, pointer or route index is changed to a near, far or random value."""
    message = bytes(batch.message)
    index_at = place_of(batch, ROUTE_INDEX)
    places = [(_SEALED_AT + at, size) for at, size in _SEALED_FIELDS]
    places += [(at, 4) for at in range(DATA_AT + NUMBER_BYTES, DATA_AT + NUMBER_BYTES + 64, 4)]
    places += [(index_at + 2 * record, 2) for record in range(batch.count)]
    for at, size in places:
        now = int.from_bytes(message[at : at + size], "little")
        end = 1 << 8 * size
        for number in {(now + 1) % end, (now - 1) % end, 0, end - 1, end // 2, random.randrange(end)} - {now}:
            try:
                yield resealed(batch, at, number.to_bytes(size, "little"))
            except BatchMalformed:
                continue  # It is no batch at all, and a client's frame would not hold it.


async def outcome(client: RawClient, target: str, mandatory: bool, batch: RecordBatch) -> str:
    """The answer to a publish: the code of an error, or ""."""
    publish = m.Publish(target, to_exchange=target == "e", mandatory=mandatory)
    return await client.code_of(await client.send(publish, [batch]))


async def everything(client: RawClient, topic: str) -> list[RecordBatch]:
    """All batches of a topic."""
    found: list[RecordBatch] = []
    while (event := await client.ask(m.Fetch(topic, 0, found[-1].end_offset if found else 0))).batches:
        found += event.batches
    return found


async def published_twice(env: SimEnv, batches: Iterator[RecordBatch]) -> None:
    """Publish each batch twice; check that both answers are alike, and that stored batches can be read."""
    async with broker_on(env, TABLES):
        client = await connected(env)
        for target, mandatory in ADDRESSED:
            assert await outcome(client, target, mandatory, good()) == ""
        taken = 0
        for batch in batches:
            for target, mandatory in ADDRESSED:
                first = await outcome(client, target, mandatory, batch)
                assert first == await outcome(client, target, mandatory, batch)
                assert first == "" or first.startswith(("batch.", "message.", "limit.", "producer.foreign")), (
                    "it is the client's fault"
                )
                taken += 2 * (first == "")
        for topic in ("bound", "direct"):
            for stored in await everything(client, topic):
                index = stored.route_index
                assert index is None or max(index) < stored.pair_count
                # What says where a batch goes is decoded where it is asked for: by an exchange.
                assert topic == "direct" or stored.pairs()
        assert taken


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_with_one_field_changed_gets_the_same_answer_each_time(codec: Codec) -> None:
    run_simulation(0, lambda env: published_twice(env, with_one_field_changed(good(codec), Random(0))))


@pytest.mark.soak(seeds=100, chunk=10)
def test_randomly_changed_fields_get_the_same_answer_each_time(seeds: range) -> None:
    for seed in seeds:
        codec = list(Codec)[seed % len(Codec)]
        changed = with_one_field_changed(good(codec), Random(seed))
        run_simulation(seed, lambda env, changed=changed: published_twice(env, changed))  # type: ignore[misc]


@served(TABLES)
async def test_a_route_index_beyond_the_pairs_is_refused_whatever_the_exchange_remembers(client: RawClient) -> None:
    poisoned = resealed(good(), place_of(good(), ROUTE_INDEX), struct.pack("<H", PAIRS))
    for target, mandatory in ADDRESSED:
        await client.call(m.Publish(target, to_exchange=target == "e", mandatory=mandatory), [good()])
        with pytest.raises(Refused) as refused:
            await client.call(m.Publish(target, to_exchange=target == "e", mandatory=mandatory), [poisoned])
        assert refused.value.code == "batch.malformed", refused.value.text
    assert (await client.administer("topic.show", name="bound"))["partitions"][0]["end"] == 2 * len(good())
