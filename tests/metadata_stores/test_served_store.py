"""A served store: its leases and its connections, in simulated time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import trio
from served_world import ADDRESS, VERSION, embedded_store, served, serving

from linn.core.errors.metadata import (
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    MetadataUnknown,
    RevisionConflict,
)
from linn.core.errors.tree import DiskFull, InternalError, LimitExceeded
from linn.core.metadata import served_messages as messages
from linn.core.metadata.embedded import EmbeddedMetadata
from linn.core.metadata.message_stream import MessageStream
from linn.core.metadata.served import WRITES_MAX, ServedStore
from linn.core.metadata.served_messages import ANSWER_BYTES_MAX, REQUESTS_MAX
from linn.core.metadata.store import ABSENT, NO_LEASE, MetadataStore, Stored, Watch
from linn.core.metadata.store_server import CONNECTIONS_MAX, LEASES_MAX, WAITING_BYTES_MAX, WAITING_MAX
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.testing.sim_pipe import PIPE_BYTES_MAX

TTL_S = 6.0
Scenario = Callable[[SimEnv, SimEnv, MetadataStore], Awaitable[None]]


def served_world(scenario: Scenario) -> Callable[[], None]:
    """A test that runs `scenario(server, client, store behind the server)`."""

    async def main(server: SimEnv) -> None:
        client = SimEnv(0, name="client", world=server.world)
        async with embedded_store(server, "/store") as store, serving(store, server):
            await scenario(server, client, store)

    def test() -> None:
        run_simulation(0, main)

    return test


async def keys_of(store: MetadataStore) -> list[str]:
    return sorted((await store.load()).entries)


async def wait_until_gone(store: MetadataStore, key: str) -> float:
    """Wait until a key is removed; returns how long it took."""
    began = trio.current_time()
    async with store.watch() as watch:
        known = dict(watch.snapshot.entries)
        while key in known:
            changes = await watch.next()
            known = {name: stored for name, stored in {**known, **changes.entries}.items() if stored is not None}
    return trio.current_time() - began


async def read_on(watch: Watch, revisions: list[int] | None = None) -> None:
    """Read changes until the watch is lost. Raises MetadataUnavailable."""
    while True:
        changes = await watch.next()
        if revisions is not None:
            revisions.append(changes.revision)


# --- leases ----------------------------------------------------------------------------------------------------------


@served_world
async def test_a_lease_ends_at_once_with_its_connection(server: SimEnv, client: SimEnv, store: MetadataStore) -> None:
    mine = served(client)
    lease = await mine.grant_lease(TTL_S)
    await mine.put_all({"session": 1}, {}, lease)
    await mine.put_all({"stays": 1}, {})
    await mine.aclose()
    assert await wait_until_gone(store, "session") < 1.0
    assert await keys_of(store) == ["stays"]


@served_world
async def test_a_lease_ends_at_once_when_its_process_is_killed(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine = served(client)
    await mine.put_all({"session": 1}, {}, await mine.grant_lease(TTL_S))
    client.kill()
    assert await wait_until_gone(store, "session") < 1.0


@served_world
async def test_a_lease_of_a_silent_client_ends_by_its_time(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine = served(client)
    await mine.put_all({"session": 1}, {}, await mine.grant_lease(TTL_S))
    server.world.cut("node", "client")
    assert TTL_S - 1.0 < await wait_until_gone(store, "session") <= TTL_S


@served_world
async def test_a_lease_is_of_no_use_on_another_connection(server: SimEnv, client: SimEnv, store: MetadataStore) -> None:
    mine, other = served(client), served(client)
    lease = await mine.grant_lease(TTL_S)
    await mine.put_all({"session": 1}, {}, lease)
    with pytest.raises(LeaseLost):
        await other.renew_lease(lease)
    with pytest.raises(LeaseLost):
        await other.put_all({"other": 1}, {}, lease)
    await other.revoke_lease(lease)
    assert await keys_of(store) == ["session"]


@served_world
async def test_a_client_that_guesses_the_number_of_a_lease_can_do_nothing_with_it(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine = served(client)
    lease = await mine.grant_lease(TTL_S)
    await mine.put_all({"session": 1}, {}, lease)
    stream = MessageStream(await client.net.connect(ADDRESS))
    await stream.send(messages.framed(messages.Hello(VERSION, False), 1024))
    assert await stream.receive(messages.ANSWER, 1024) == messages.Done(0)
    for guess in range(1, 4):
        requests: list[messages.Request] = [
            messages.Renew(1, guess), messages.Put(2, {"other": 1}, [], {}, guess), messages.Revoke(3, guess)
        ]  # fmt: skip
        for request in requests:
            await stream.send(messages.framed(request, 1024))
        answers = [await stream.receive(messages.ANSWER, 1024) for _ in requests]
        assert {getattr(each, "code", "") for each in answers if each.number in (1, 2)} == {"metadata.lease_lost"}
    assert await keys_of(store) == ["session"]


@served_world
async def test_a_cancelled_call_costs_neither_the_connection_nor_its_leases(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine = served(client)
    lease = await mine.grant_lease(60.0)
    await mine.put_all({"session": 1}, {}, lease)
    server.world.slow("node", "client", delay_s=(1.0, 1.0))
    for number in range(10):
        with trio.move_on_after(0.5):
            await mine.put_all({f"key-{number}": number}, {})
    # The answers of the cancelled calls are no answers of this one.
    revision = await mine.put_all({"last": 1}, {})
    assert (await mine.load()).entries["last"] == Stored(revision, 1)
    await mine.renew_lease(lease)


@served_world
async def test_a_connection_has_a_limited_number_of_leases(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine, other = served(client), served(client)
    short = [await mine.grant_lease(1.0) for _ in range(LEASES_MAX)]
    with pytest.raises(LimitExceeded):
        await mine.grant_lease(60.0)
    await other.grant_lease(60.0)
    await trio.sleep(2.0)
    with pytest.raises(LeaseLost):
        await mine.renew_lease(short[0])
    await mine.revoke_lease(short[1])
    for _ in range(2):
        await mine.grant_lease(60.0)
    with pytest.raises(LimitExceeded):
        await mine.grant_lease(60.0)


def test_a_lease_is_not_taken_for_another_of_the_same_number_after_the_server_was_started_again() -> None:
    async def main(env: SimEnv) -> None:
        mine = served(env)
        async with embedded_store(env, "/store") as store, serving(store, env):
            before = await mine.grant_lease(TTL_S)
        await trio.sleep(1.0)
        async with embedded_store(env, "/store") as store, serving(store, env):
            after = await mine.grant_lease(TTL_S)
            await mine.put_all({"session": 1}, {}, after)
            with pytest.raises(LeaseLost):
                await mine.renew_lease(before)
            with pytest.raises(LeaseLost):
                await mine.put_all({"other": 1}, {}, before)
            await mine.revoke_lease(before)
            assert await keys_of(mine) == ["session"]

    run_simulation(0, main)


# --- several tasks ---------------------------------------------------------------------------------------------------


class Halting(EmbeddedMetadata):
    """A store whose writes wait."""

    gate: trio.Event
    waiting = 0

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        self.waiting += 1
        await self.gate.wait()
        return await super().put_all(changes, conditions, lease)


def test_a_renewal_does_not_wait_for_the_writes_of_other_tasks() -> None:
    async def main(env: SimEnv) -> None:
        async with embedded_store(env, "/store", Halting) as store, serving(store, env), trio.open_nursery() as nursery:
            assert isinstance(store, Halting)
            store.gate = trio.Event()
            mine, revisions = served(env), list[int]()
            lease = await mine.grant_lease(TTL_S)

            async def write(number: int) -> None:
                revisions.append(await mine.put_all({f"key-{number}": number}, {}))

            for number in range(3 * REQUESTS_MAX):
                nursery.start_soon(write, number)
            for _ in range(10):
                await trio.sleep(TTL_S / 2)
                await mine.renew_lease(lease)
            assert revisions == []
            store.gate.set()
            while len(revisions) < 3 * REQUESTS_MAX:
                await trio.sleep(0.01)
            found = await mine.load()
            assert sorted(stored.revision for stored in found.entries.values()) == sorted(revisions)

    run_simulation(0, main)


def test_a_connection_has_a_limited_number_of_requests_at_a_time() -> None:
    async def main(env: SimEnv) -> None:
        async with embedded_store(env, "/store", Halting) as store, serving(store, env):
            assert isinstance(store, Halting)
            store.gate = trio.Event()
            stream = MessageStream(await env.net.connect(ADDRESS))
            await stream.send(messages.framed(messages.Hello(VERSION, False), 1024))
            count = 3 * REQUESTS_MAX
            for number in range(1, count + 1):
                await stream.send(messages.framed(messages.Put(number, {f"{number}": 1}, [], {}, 0), 1024))
            await trio.sleep(5.0)
            assert store.waiting == REQUESTS_MAX
            store.gate.set()
            answers = [await stream.receive(messages.ANSWER, 1024) for _ in range(count + 1)]
            assert sorted(answer.number for answer in answers) == list(range(count + 1))

    run_simulation(0, main)


@served_world
async def test_an_answer_that_is_too_large_is_an_error_of_its_request(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine = served(client)
    lease = await mine.grant_lease(TTL_S)
    await store.put_all({"large": "x" * ANSWER_BYTES_MAX}, {})
    with pytest.raises(MetadataError, match="bytes"):
        await mine.load()
    with pytest.raises(MetadataError, match="bytes"):
        async with mine.watch():
            pass
    await mine.renew_lease(lease)


def test_an_error_that_nobody_foresaw_ends_the_request_and_not_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(env: SimEnv) -> None:
        async with embedded_store(env, "/store", Halting) as store, serving(store, env):
            mine = served(env)
            lease = await mine.grant_lease(TTL_S)
            with pytest.raises(InternalError):
                await mine.put_all({"a": 1}, {})  # The store has no gate.
            await mine.renew_lease(lease)

    run_simulation(0, main)
    assert "AttributeError" in caplog.text


@served_world
async def test_errors_of_the_store_are_those_of_the_client(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine = served(client)
    await mine.put_all({"a": 1}, {})
    with pytest.raises(RevisionConflict, match="a is at revision"):
        await mine.put_all({"a": 2}, {"a": ABSENT})
    server.disk.capacity_bytes = server.disk.used_bytes
    with pytest.raises(DiskFull):
        await mine.put_all({"b": "x" * 100_000}, {})
    assert await keys_of(mine) == ["a"]


# --- lost connections ------------------------------------------------------------------------------------------------


def test_without_a_server_nothing_is_written_and_later_calls_find_it() -> None:
    async def main(env: SimEnv) -> None:
        mine = served(env)
        async with embedded_store(env, "/store") as store:
            with pytest.raises(MetadataUnavailable):
                await mine.put_all({"a": 1}, {})
            with pytest.raises(MetadataUnavailable):
                async with mine.watch():
                    pass
            async with serving(store, env):
                await mine.put_all({"a": 2}, {})
                async with mine.watch() as watch:
                    pass
            with pytest.raises(MetadataUnavailable):
                await watch.next()
            with pytest.raises(MetadataUnavailable):
                await mine.load()
            async with serving(store, env):
                assert await keys_of(mine) == ["a"]

    run_simulation(0, main)


@served_world
async def test_after_a_lost_connection_the_lease_is_lost_and_the_store_is_there(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine = served(client)
    lease = await mine.grant_lease(TTL_S)
    await mine.put_all({"session": 1}, {}, lease)
    async with mine.watch() as watch:
        server.world.sever("node", "client")
        with pytest.raises(MetadataUnavailable):
            await read_on(watch)
    with pytest.raises(LeaseLost):
        await mine.renew_lease(lease)
    assert await keys_of(mine) == []


def test_of_a_write_whose_connection_is_lost_it_is_unknown_whether_it_was_made() -> None:
    outcomes = set()

    async def main(server: SimEnv) -> None:
        client = SimEnv(0, name="client", world=server.world)
        async with embedded_store(server, "/store") as store, serving(store, server):
            mine = served(client)
            await mine.load()

            async def lose() -> None:
                await trio.sleep(server.rng.uniform(0, 0.006))
                server.world.sever("node", "client")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose)
                try:
                    await mine.put_all({"a": 1}, {})
                    outcome = "done"
                except MetadataUnknown:
                    outcome = "unknown"
                except MetadataUnavailable:
                    outcome = "not done"
            await trio.sleep(1.0)
            found = await keys_of(mine)
            assert found == ["a"] if outcome == "done" else outcome == "unknown" or found == []
            outcomes.add((outcome, bool(found)))

    for seed in range(60):
        run_simulation(seed, main)
    assert {("done", True), ("unknown", True), ("unknown", False)} <= outcomes


def test_of_many_writes_those_that_were_not_sent_are_known_not_to_be_made() -> None:
    async def main(env: SimEnv) -> None:
        async with embedded_store(env, "/store", Halting) as store, serving(store, env), trio.open_nursery() as nursery:
            assert isinstance(store, Halting)
            store.gate = trio.Event()
            mine, outcomes = served(env), list[type[MetadataError]]()

            async def write(number: int) -> None:
                try:
                    await mine.put_all({f"key-{number}": number}, {})
                except MetadataError as error:
                    outcomes.append(type(error))

            for number in range(20):
                nursery.start_soon(write, number)
            await trio.sleep(1.0)
            await mine.aclose()
            while len(outcomes) < 20:
                await trio.sleep(0.01)
            assert outcomes.count(MetadataUnknown) == WRITES_MAX
            assert outcomes.count(MetadataUnavailable) == 20 - WRITES_MAX

    run_simulation(0, main)


@served_world
async def test_of_writes_that_wait_to_be_sent_the_first_is_unknown_and_the_others_are_not_made(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    mine, outcomes = served(client), dict[str, type[MetadataError]]()
    await mine.load()

    async def write(key: str, value: str) -> None:
        try:
            await mine.put_all({key: value}, {})
        except MetadataError as error:
            outcomes[key] = type(error)

    server.world.cut_one_way("client", "node")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write, "large", "x" * 4 * PIPE_BYTES_MAX)
        await trio.sleep(1.0)
        nursery.start_soon(write, "small", "x")
        await trio.sleep(1.0)
        server.world.sever("node", "client")
    assert outcomes == {"large": MetadataUnknown, "small": MetadataUnavailable}


@served_world
async def test_a_stream_that_has_ended_says_that_it_sent_nothing(
    server: SimEnv, client: SimEnv, store: MetadataStore
) -> None:
    frame = messages.framed(messages.Load(1), 1024)
    server.world.slow("node", "client", delay_s=(0.1, 0.2))
    stream = MessageStream(await client.net.connect(ADDRESS))
    assert await stream.send(frame), "it is no hello, and the server ends the connection"
    await trio.sleep(5.0)
    assert not await stream.send(frame)
    assert not await stream.send(frame)


@served_world
async def test_a_closed_store_says_so(server: SimEnv, client: SimEnv, store: MetadataStore) -> None:
    mine = served(client)
    async with mine.watch() as watch:
        await mine.aclose()
        await mine.aclose()
        with pytest.raises(MetadataUnavailable):
            await watch.next()
    with pytest.raises(MetadataUnavailable, match="closed"):
        await mine.load()


# --- slow watchers, many connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(WAITING_MAX + 600, 100), (WAITING_BYTES_MAX // 1_000_000 + 3, 1_000_000)])
def test_a_watcher_that_reads_nothing_is_cut_off_and_holds_up_nobody(count: int, size: int) -> None:
    @served_world
    async def test(server: SimEnv, client: SimEnv, store: MetadataStore) -> None:
        writer, slow, quick = served(client), served(client), served(client)
        async with slow.watch() as slow_watch, quick.watch() as quick_watch:
            for number in range(count):
                revision = await writer.put_all({"key": f"{number}".ljust(size)}, {})
                while (await quick_watch.next()).revision < revision:
                    pass
            seen = [slow_watch.snapshot.revision]
            with pytest.raises(MetadataUnavailable):
                await read_on(slow_watch, seen)
            assert seen == sorted(set(seen)), "nothing is told twice, or out of order"
            assert seen[-1] < revision

    test()


@served_world
async def test_more_connections_than_places_are_closed(server: SimEnv, client: SimEnv, store: MetadataStore) -> None:
    stores = [served(client) for _ in range(CONNECTIONS_MAX)]
    for each in stores:
        await each.load()
    late = served(client)
    with pytest.raises(MetadataUnavailable):
        await late.load()
    await stores[0].aclose()
    await trio.sleep(1.0)
    await late.load()
    await stores[1].load()


@served_world
async def test_another_version_is_refused_in_one_line(server: SimEnv, client: SimEnv, store: MetadataStore) -> None:
    other = ServedStore(ADDRESS, client.net, "2.0.0")
    expected = f"this metadata store is of linn {VERSION}, and its client of linn 2.0.0: both must be the same version"
    with pytest.raises(MetadataError) as refusal:
        await other.load()
    assert refusal.value.text == expected
    with pytest.raises(MetadataError) as refusal:
        async with other.watch():
            pass
    assert refusal.value.text == expected
