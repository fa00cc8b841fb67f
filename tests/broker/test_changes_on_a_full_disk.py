"""Topics that are changed and deleted on a disk that gets full: a change is refused whole, and what was goes on."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import pytest
from raw_client import ALWAYS, RawClient, Refused, broker_on, connected, served, simulated, values

from linn.core.errors.tree import StorageError
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ROOM_BYTES = 1 << 30
STEP_BYTES = 4_095
"""A log that is made takes two pages for its checkpoint."""
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "a stream gets a queue": ("stream", {"kind": "both"}),
    "a stream becomes a queue": ("stream", {"kind": "queue"}),
    "a queue gets groups": ("queue", {"kind": "both"}),
    "a queue becomes a stream": ("queue", {"kind": "stream"}),
    "a stream grows": ("stream", {"partitions": 4}),
    "a queue grows and becomes a stream": ("queue", {"partitions": 4, "kind": "stream"}),
    "everything grows": ("both", {"partitions": 4}),
}
PUBLISHED = ["a", "b", "c"]


async def prepare(client: RawClient, kind: str) -> None:
    """A topic with records and, where it has groups, one that has committed the first of them."""
    await client.administer("topic.create", name="t", settings={"kind": kind, "partitions": 2, "lease": "1h"})
    await client.publish("t", PUBLISHED, partition=0)
    if kind != "queue":
        subscription = (await client.call(m.Subscribe("t", group="g"))).subscription
        assert await client.commit(subscription, "t", {0: 1}) == []
        await client.call(m.Unsubscribe(subscription))


async def settings_of(client: RawClient) -> dict[str, Any]:
    """The topic's, which must be in line with what there is of it."""
    shown = await client.administer("topic.show", name="t")
    settings: dict[str, Any] = shown["settings"]
    assert len(shown["partitions"]) == settings["partitions"]
    assert ("queue" in shown) == (settings["kind"] != "stream")
    return settings


async def check_it_works(env: SimEnv, was: str) -> None:
    """The topic does what its settings say, and holds what was published when it was of the kind `was`."""
    client, worker, publisher = [await connected(env) for _ in range(3)]
    settings = await settings_of(client)
    if settings["kind"] != "queue":
        await client.call(m.Subscribe("t", group="g", credit=9))
        assert (await client.push()).message.partitions == list(range(settings["partitions"]))  # type: ignore[attr-defined]
        if was != "queue":
            assert values((await client.delivery()).batches) == PUBLISHED[1:]
    if settings["kind"] != "stream":
        await worker.call(m.Subscribe("t", credit=9))
        assert values((await worker.delivery()).batches) == PUBLISHED
    last = settings["partitions"] - 1
    assert (await publisher.publish("t", ["d"], partition=last)).partition == last
    assert (await publisher.fetch("t", last))[-1] == "d"


class Undisturbed(NamedTuple):
    before: dict[str, Any]
    after: dict[str, Any]
    first: int
    """The number of the change's first operation on the disk."""
    end: int
    bytes: int
    """Room that it takes."""


@functools.cache
def undisturbed(name: str) -> Undisturbed:
    found: list[Undisturbed] = []

    async def scenario(env: SimEnv) -> None:
        kind, changes = CHANGES[name]
        async with broker_on(env, ALWAYS):
            client = await connected(env)
            await prepare(client, kind)
            before, first, used = await settings_of(client), len(env.disk.operations), env.disk.used_bytes
            await client.administer("topic.alter", name="t", settings=changes)
            after, end, taken = await settings_of(client), len(env.disk.operations), env.disk.used_bytes - used
            found.append(Undisturbed(before, after, first, end, taken))
            await check_it_works(env, kind)

    run_simulation(0, scenario)
    return found[0]


def change_with_room(name: str, room_bytes: int, killed: bool) -> None:
    """Make a change where there is so much room; then some more comes, or the broker is killed and begins without."""
    known, (kind, changes) = undisturbed(name), CHANGES[name]
    code: list[str] = []

    async def process(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS):
            client = await connected(env)
            await prepare(client, kind)
            env.disk.capacity_bytes = env.disk.used_bytes + room_bytes
            request = m.Administer("topic.alter", json.dumps({"name": "t", "settings": changes}))
            code.append(await client.code_of(await client.send(request)))
            assert await settings_of(client) == (known.before if code[0] else known.after)
            if killed:
                env.kill()
            env.disk.capacity_bytes = ROOM_BYTES
            await client.call(request)
            assert await settings_of(client) == known.after
            await check_it_works(env, kind)

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(process) == killed
        assert code[0] in ("", "storage.disk_full")
        if killed:
            await start_on_full_disk(env.restart(), [known.before if code[0] else known.after], kind)

    run_simulation(room_bytes, scenario)


async def start_on_full_disk(env: SimEnv, whole: list[dict[str, Any]], was: str) -> None:
    env.disk.capacity_bytes = env.disk.used_bytes
    async with broker_on(env, ALWAYS):
        assert await settings_of(await connected(env)) in whole
        env.disk.capacity_bytes = ROOM_BYTES
        await check_it_works(env, was)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_a_full_disk_refuses_leaves_the_topic_as_it_was(name: str) -> None:
    for room_bytes in range(0, undisturbed(name).bytes + STEP_BYTES, STEP_BYTES):
        for killed in (False, True):
            change_with_room(name, room_bytes, killed)


def change_and_lose_power(name: str, crash_at: int) -> None:
    """Lose power in a change, and start where there is no room."""
    known, (kind, changes) = undisturbed(name), CHANGES[name]

    async def process(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS):
            client = await connected(env)
            await prepare(client, kind)
            env.disk.crash_at = crash_at
            await client.administer("topic.alter", name="t", settings=changes)

    async def scenario(env: SimEnv) -> None:
        if await env.run_until_death(process):
            await start_on_full_disk(env.restart(), [known.before, known.after], kind)

    run_simulation(0, scenario)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_interrupted_by_power_loss_is_atomic_on_a_full_disk(name: str) -> None:
    known = undisturbed(name)
    for crash_at in range(known.first, known.end, 3):
        change_and_lose_power(name, crash_at)


KEEP = ALWAYS + '[topics.keep]\nkind = "stream"\n'
FOLDER = "data/segmented-log"


@served(KEEP)
async def test_a_topic_is_deleted_without_creating_its_missing_parts(env: SimEnv, client: RawClient) -> None:
    await prepare(client, "stream")
    env.disk.capacity_bytes = env.disk.used_bytes
    first = len(env.disk.operations)
    assert await client.administer("topic.delete", name="t") == {"warnings": []}
    made = [path for operation, path in env.disk.operations[first:] if operation in ("create", "make_dir")]
    assert [path for path in made if path.startswith(FOLDER)] == []
    assert env.disk.list_dir(FOLDER) == ["keep"]


@simulated
async def test_a_failed_deletion_is_left_for_later_and_does_not_prevent_a_start(env: SimEnv) -> None:
    stray = f"{FOLDER}/t/1/stray"

    async def names(client: RawClient) -> list[str]:
        return [topic["name"] for topic in await client.administer("topic.list")]

    async with broker_on(env, KEEP):
        client = await connected(env)
        await prepare(client, "both")
        env.disk.make_dir(stray)
        for _ in range(2):
            with pytest.raises(Refused, match="can't delete"):
                await client.administer("topic.delete", name="t")
        assert await names(client) == ["keep"]
    with pytest.raises(StorageError, match="can't delete"):
        async with broker_on(env, KEEP + "[topics.t]\n"):
            pytest.fail("a topic was made of what is left of another")
    async with broker_on(env, KEEP):
        client = await connected(env)
        with pytest.raises(Refused, match="can't delete"):
            await client.administer("topic.create", name="t")
        assert await names(client) == ["keep"]
        env.disk.remove_dir(stray)
        assert await client.administer("topic.delete", name="t") == {"warnings": []}
        assert env.disk.list_dir(FOLDER) == ["keep"]
        with pytest.raises(Refused, match=r"topic\.unknown"):
            await client.administer("topic.delete", name="t")
        await client.administer("topic.create", name="t", settings={"kind": "stream"})
        assert await client.fetch("t") == []
