"""Messages that the broker refuses: each fails alone, with its own error, and those that share its batch are stored."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import anyio
import pytest
from both_loops import on_both_loops
from scripted_peer import Session, running_peer

import linn
import linn.sync
from linn.client import Client
from linn.core.errors.tree import (
    ConnectionLost,
    FeatureUnsupported,
    LimitExceeded,
    LinnError,
    MessageTooLarge,
    RequestTimeout,
    TopicFull,
    Unroutable,
)
from linn.testing import VirtualWorld
from linn.wire import messages as m
from linn.wire.connection import Event

LARGE = b"x" * 3_000
LONG_KEY = ".".join(["w"] * 200)


async def stored(client: linn.Client, name: str, partition: int = 0) -> list[bytes | None]:
    return [value for batch in (await client.fetch(name, partition, 0)).batches for value in batch.values]


@on_both_loops
async def test_a_refused_message_fails_alone_and_the_others_of_its_batch_have_their_offsets(
    client: Client, name: str
) -> None:
    await client.admin.create_topic(name, kind="both")
    outcomes: dict[int, int | LinnError | None] = {}
    async with client.producer(name, linger_ms=50) as producer, anyio.create_task_group() as tasks:

        async def publish(number: int) -> None:
            try:
                receipt = await producer.publish(b"%d" % number, priority=int(number % 3 == 0))
                outcomes[number] = receipt.offset
            except LinnError as error:
                outcomes[number] = error

        for number in range(10):
            tasks.start_soon(publish, number)
    at = {value: offset for offset, value in enumerate(await stored(client, name))}
    assert sorted(at) == [b"1", b"2", b"4", b"5", b"7", b"8"]
    for number, outcome in outcomes.items():
        if number % 3 == 0:
            assert isinstance(outcome, FeatureUnsupported)
        else:
            assert outcome == at[b"%d" % number]


@on_both_loops
async def test_messages_behind_a_lowered_limit_fail_alone_and_the_others_keep_their_order(
    client: Client, name: str
) -> None:
    await client.admin.create_topic(name, kind="stream", partitions=2)
    for idempotent in (True, False):
        await client.admin.alter_topic(name, message_bytes_max=5_000)
        before = [await stored(client, name, partition) for partition in range(2)]
        async with client.producer(name, idempotent=idempotent, batch_bytes_max=3_000) as producer:
            await client.admin.alter_topic(name, message_bytes_max=1_000)
            for number in range(400):  # Many batches, of which eight are in flight.
                value = b"L" * 4_000 if number % 10 == 9 else b"%d" % number
                producer.publish_nowait(value, key=b"one" if number % 2 else b"three")
            with pytest.raises(MessageTooLarge, match="more than 1000"):
                await producer.flush()
            await producer.flush()
            await producer.publish(b"400", key=b"three")
        found = [(await stored(client, name, partition))[len(before[partition]) :] for partition in range(2)]
        numbers = [int(value or b"") for values in found for value in values]
        assert sorted(numbers) == [number for number in range(401) if number % 10 != 9]
        assert all(list(map(int, values)) == sorted(map(int, values)) for values in found)  # type: ignore[arg-type]


@on_both_loops
async def test_publish_many_names_the_refused_ones_and_confirms_the_others(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream", partitions=3, message_bytes_max=5_000)
    async with client.producer(name, batch_bytes_max=2_000) as producer:
        await client.admin.alter_topic(name, message_bytes_max=1_000)
        values = [b"L" * 2_000 if number % 50 == 7 else b"%d" % number for number in range(500)]
        with pytest.raises(MessageTooLarge) as refused:
            await producer.publish_many(values, keys=values)
    assert refused.value.indexes == list(range(7, 500, 50))
    assert "confirmed of this publish_many: 490 messages" in refused.value.__notes__
    found = {value for partition in range(3) for value in await stored(client, name, partition)}
    assert found == {value for value in values if len(value) < 1_000}


@on_both_loops
async def test_publish_many_raises_the_first_reason_and_notes_the_others(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    await client.admin.bind("events", name, f"{name}.#")
    keys = [f"{name}.x", LONG_KEY, "nowhere", f"{name}.y", "nowhere"]
    async with client.producer(exchange="events") as producer:
        with pytest.raises(LimitExceeded, match="200 words") as refused:
            await producer.publish_many([b"0", b"1", b"2", b"3", b"4"], routing_keys=keys, mandatory=True)
        assert refused.value.indexes == [1, 2, 4]
        assert [note for note in refused.value.__notes__ if "no binding" in note]
        with pytest.raises(Unroutable, match="2 messages"):
            await producer.publish_many([b"2", b"3", b"4"], routing_keys=keys[2:], mandatory=True)
    assert await stored(client, name) == [b"0", b"3", b"3"]


@on_both_loops
async def test_a_flush_tells_of_refused_messages_of_publish_nowait_and_of_no_others(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.producer(name, linger_ms=50) as producer:

        async def refused() -> None:
            with pytest.raises(FeatureUnsupported):
                await producer.publish(b"", priority=5)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused)
            await anyio.wait_all_tasks_blocked()
            producer.publish_nowait(b"fine")
            await producer.flush()
        producer.publish_nowait(b"fine")
        producer.publish_nowait(b"", priority=5)
        with pytest.raises(FeatureUnsupported, match="priorities"):
            await producer.flush()
    assert (await client.admin.subscription(name))["unsettled"] == 2


def test_a_blocking_producer_stores_what_shares_a_batch_with_a_refused_message(
    client: linn.sync.Client, name: str
) -> None:
    client.admin.create_topic(name)
    with client.producer(name, linger_ms=10_000) as producer:
        for number in range(5):
            producer.publish_nowait(b"%d" % number, priority=5 if number == 2 else 0)
        with pytest.raises(FeatureUnsupported):
            producer.flush()
        with pytest.raises(FeatureUnsupported) as refused:
            producer.publish_many([b"a"], priority=5)
    assert not refused.value.retriable
    assert client.admin.subscription(name)["unsettled"] == 4


@on_both_loops
async def test_a_refused_message_leaves_the_rest_of_a_transaction_as_it_is(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="both")
    async with client.transaction("teller") as tx, anyio.create_task_group() as tasks:

        async def refused() -> None:
            with pytest.raises(FeatureUnsupported):
                await tx.publish(name, b"bad", priority=5)

        tasks.start_soon(refused)
        for number in range(5):
            tasks.start_soon(tx.publish, name, b"%d" % number)
    assert sorted(await stored(client, name)) == [b"0", b"1", b"2", b"3", b"4"]  # type: ignore[type-var]


@on_both_loops
async def test_messages_that_a_batch_could_not_hold_together_do_not_fail_each_other(client: Client, name: str) -> None:
    """Routing keys, headers and ids count too, and one that is nearly too large takes none along."""
    await client.admin.create_topic(name, kind="stream")
    await client.admin.bind("events", name, f"{name}.*")
    keys = [f"{name}." + f"{number:05}" * 800 for number in range(600)]
    limit = (await client._connector.ready()).welcome.batch_bytes_max  # type: ignore[attr-defined]
    async with client.producer(exchange="events", linger_ms=10_000, batch_bytes_max=limit) as producer:
        for key in keys:  # 2.4 MB of routing keys.
            producer.publish_nowait(b"", routing_key=key)
        for _ in range(40):  # 40,000 headers of a byte.
            producer.publish_nowait(b"", routing_key=f"{name}.x", headers=[("h", b"")] * 1_000)
        for number in range(40_000):  # Of which an id and a time are the most.
            producer.publish_nowait(b"", routing_key=f"{name}.x", id=UUID(int=number), timestamp_ms=1)
        await producer.flush()
    assert await client.find_offset(name, 0, "latest") == 600 + 40 + 40_000
    most, large = producer.message_bytes_max, b"x" * producer.message_bytes_max
    async with client.producer(name, linger_ms=10_000, batch_bytes_max=most) as producer:
        producer.publish_nowait(b"small")
        producer.publish_nowait(large)
        producer.publish_nowait(b"small", key=b"k")
        producer.publish_nowait(large[:-1], key=b"k")
        await producer.flush()
    assert await client.find_offset(name, 0, "latest") == 600 + 40 + 40_000 + 4


# --- outcomes that are not known -------------------------------------------------------------------------------------

Answers = list[Callable[[Session, Event], m.Message | None]]


def refusal(code: str, *, retriable: bool = False) -> Callable[[Session, Event], m.Message]:
    return lambda session, event: m.Failed(code, "as the test wants it", retriable)


async def outcome(answers: Answers, *, cuts: int = 0, request_timeout_s: float = 0.4) -> LinnError:
    """The error of a publish if the peer answers each time as it is told, and the first `cuts` times not at all."""
    async with running_peer() as peer:
        given = iter(answers)
        peer.answers[m.Publish] = lambda session, event: next(given, lambda *_: None)(session, event)
        async with linn.connect(peer.url, request_timeout_s=request_timeout_s, backoff_s=0.01) as client:
            async with client.producer("t") as producer, anyio.create_task_group() as tasks:

                async def cut() -> None:
                    for number in range(1, cuts + 1):
                        await peer.until(lambda number=number: len(peer.messages(m.Publish)) >= number)  # type: ignore[misc]
                        await peer.cut()

                tasks.start_soon(cut)
                with pytest.raises(LinnError) as raised:
                    await producer.publish(b"")
                tasks.cancel_scope.cancel()
    return raised.value


@on_both_loops
async def test_a_publish_whose_last_attempt_has_no_answer_is_not_reported_as_refused() -> None:
    for code in ("broker.stopping", "topic.full", "storage.disk_full", "log.closed", "batch.corrupt"):
        error = await outcome([refusal(code, retriable=True)])
        assert isinstance(error, RequestTimeout), f"{code}: {error}"
        assert "may or may not be stored" in error.text


@on_both_loops
async def test_a_refusal_after_a_lost_connection_does_not_say_that_nothing_was_stored() -> None:
    def nothing(session: Session, event: Event) -> None:
        return None

    def partly(session: Session, event: Event) -> m.Message:
        return m.Published([m.Placement(0, -1, 0, refused=[m.RefusedRecords("message.too_large", "large", [0, 1])])])

    for answer in (refusal("message.too_large"), refusal("topic.unknown"), partly):
        error = await outcome([nothing, answer], cuts=1, request_timeout_s=30)
        assert isinstance(error, ConnectionLost), error
        assert "may or may not be stored" in error.text
        assert not isinstance(await outcome([answer], request_timeout_s=30), ConnectionLost)
    always: Answers = [nothing, *[refusal("topic.full", retriable=True)] * 1_000]
    assert isinstance(await outcome(always, cuts=1), RequestTimeout)


def test_a_publish_that_is_refused_each_time_fails_with_the_refusal() -> None:
    """Its time is over between two attempts: one in progress might still be stored."""

    async def scenario(world: VirtualWorld) -> None:
        async with world.connect(request_timeout_s=10, backoff_s=60, backoff_max_s=60) as client:
            async with client.producer("t") as producer:
                await producer.publish(LARGE)
                with pytest.raises(TopicFull):
                    await producer.publish(LARGE)

    topic = {"kind": "queue", "bytes_max": "4kB", "message_bytes_max": "4kB", "overflow": "reject"}
    VirtualWorld(topics={"t": topic}).run(scenario)
