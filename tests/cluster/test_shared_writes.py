"""Writes of many topics at a time, which go to the metadata store together."""

from __future__ import annotations

import trio
from sim_store import SimStore
from simulated_time import simulated

from linn.core.cluster.plan import KEYS_MAX, Write
from linn.core.cluster.shared_writes import SharedWrites
from linn.core.errors.metadata import MetadataError, MetadataUnknown, RevisionConflict
from linn.core.metadata.store import ABSENT
from linn.testing.sim_env import SimEnv

COUNT = 250


def writes(env: SimEnv, store: SimStore) -> SharedWrites:
    return SharedWrites(store.client(env))


async def outcomes(shared: SharedWrites, every: list[Write]) -> list[object]:
    """The revision of each write, or its error, of tasks that write at the same time."""
    found: list[object] = [None] * len(every)

    async def put(number: int) -> None:
        try:
            found[number] = await shared.put(every[number])
        except MetadataError as error:
            found[number] = error

    async with trio.open_nursery() as nursery:
        for number in range(len(every)):
            nursery.start_soon(put, number)
    return found


def made(number: int, revision: int = ABSENT) -> Write:
    return Write({f"parts/{number}": number}, {f"parts/{number}": revision})


@simulated
async def test_many_writes_at_a_time_are_few_at_the_store(env: SimEnv) -> None:
    async with trio.open_nursery() as nursery:
        store = SimStore(0, nursery.start_soon)
        found = await outcomes(writes(env, store), [made(number) for number in range(COUNT)])
        assert {key: value for key, (_, value) in store.content().items()} == {f"parts/{n}": n for n in range(COUNT)}
        assert found == [store.content()[f"parts/{number}"].revision for number in range(COUNT)]
        assert len(store.history) <= 2 + COUNT // KEYS_MAX
        nursery.cancel_scope.cancel()


@simulated
async def test_a_write_that_conflicts_refuses_no_other(env: SimEnv) -> None:
    async with trio.open_nursery() as nursery:
        store = SimStore(0, nursery.start_soon)
        found = await outcomes(
            writes(env, store), [made(number, 99 if number % 50 == 7 else ABSENT) for number in range(COUNT)]
        )
        assert [number for number, each in enumerate(found) if isinstance(each, RevisionConflict)] == [
            7,
            57,
            107,
            157,
            207,
        ]
        assert len(store.content()) == COUNT - 5
        nursery.cancel_scope.cancel()


@simulated
async def test_writes_that_do_not_agree_about_a_key_are_made_apart(env: SimEnv) -> None:
    async with trio.open_nursery() as nursery:
        store = SimStore(0, nursery.start_soon)
        shared = writes(env, store)
        session = await shared.put(Write({"sessions/1": "s"}, {"sessions/1": ABSENT}))
        every = [Write({f"parts/{n}": n}, {"sessions/1": session - n % 2}) for n in range(6)]
        found = await outcomes(shared, every)
        assert [isinstance(each, RevisionConflict) for each in found] == [False, True] * 3
        nursery.cancel_scope.cancel()


@simulated
async def test_a_writer_that_is_ended_leaves_those_that_it_wrote_with_it_an_outcome(env: SimEnv) -> None:
    async with trio.open_nursery() as nursery:
        store = SimStore(0, nursery.start_soon)
        shared, ended = writes(env, store), trio.CancelScope()
        store.delay_s = (1.0, 1.0)

        async def put_until_ended() -> None:
            with ended:
                await shared.put(made(1))

        async with trio.open_nursery() as tasks:
            tasks.start_soon(shared.put, made(0))
            await trio.testing.wait_all_tasks_blocked()
            tasks.start_soon(put_until_ended)
            await trio.testing.wait_all_tasks_blocked()
            ended.deadline = trio.current_time() + 3.0  # The first write is made, and the next one is on its way.
            found = await outcomes(shared, [made(2), made(3)])
        assert ended.cancelled_caught
        assert {type(each) for each in found} == {MetadataUnknown}
        assert isinstance(await shared.put(made(4)), int)
        nursery.cancel_scope.cancel()


@simulated
async def test_a_write_without_an_answer_is_unknown_for_all_of_it(env: SimEnv) -> None:
    async with trio.open_nursery() as nursery:
        store = SimStore(0, nursery.start_soon)
        shared = writes(env, store)
        store.cut(env.name, requests=False)
        found = await outcomes(shared, [made(number) for number in range(5)])
        assert {type(each) for each in found} == {MetadataUnknown}
        nursery.cancel_scope.cancel()
