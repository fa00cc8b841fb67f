"""A data folder of one broker that becomes that of workers, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from linn.core.broker.worker_folders import WorkerFolders, shared_folder
from linn.core.cluster.entries import ClusterState
from linn.core.cluster.folder import Folder
from linn.core.config.config import Config, load_config
from linn.core.config.toml_source import TomlSource
from linn.core.errors.cluster import ClusterForeign
from linn.core.metadata.embedded import EmbeddedMetadata
from linn.core.metadata.store import REMOVED
from linn.core.plugins.manager import built_in
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

DATA = "/linn"
ORDERS, MAILS = "5f0c9d7e-0000-4000-8000-000000000001", "5f0c9d7e-0000-4000-8000-000000000002"
SHARED: dict[str, Any] = {
    "topics/orders": {"id": ORDERS, "settings": {"kind": "queue", "partitions": 2}, "live_bindings": []},
    "exchanges/live": {"settings": {"type": "direct"}, "live_bindings": []},
    "secrets/producers": "5f" * 32,
    "users/ann": {"roles": [], "scram": "", "certificate": "", "uid": None},
}
ALONE = {**SHARED, "topics/__audit": {"id": MAILS, "settings": {"kind": "stream"}, "live_bindings": []}}
TOML = '[broker]\ndata_dir = "/linn"\n[exchanges.filed]\ntype = "fanout"\n'


def config() -> Config:
    return load_config(TomlSource(TOML, "test.toml"), built_in())


@asynccontextmanager
async def folders(env: SimEnv) -> AsyncIterator[tuple[WorkerFolders, EmbeddedMetadata]]:
    """The folders, and the store that the workers share."""
    async with trio.open_nursery() as nursery:
        env.disk.make_dir(shared_folder(DATA))
        for folder in ("/", DATA, shared_folder(DATA)):
            await env.disk.sync_dir(folder)
        found = WorkerFolders(config(), env, nursery.start_soon)
        yield found, found.store(shared_folder(DATA))
        nursery.cancel_scope.cancel()


async def values(env: SimEnv, folder: str) -> dict[str, Any]:
    async with folders(env) as (found, _):
        return {key: value for key, (_, value) in (await found.store(folder).load()).entries.items()}


async def begin_alone(env: SimEnv) -> None:
    async with folders(env) as (found, _):
        await found.store(DATA).put_all(ALONE, {})


async def share(env: SimEnv) -> None:
    async with folders(env) as (found, store):
        await store.load()
        await found.share(store)


async def end_sharing(env: SimEnv) -> None:
    async with folders(env) as (found, _):
        await found.end_sharing()


def run(scenario: Callable[[SimEnv], Awaitable[None]]) -> None:
    run_simulation(0, scenario)


async def check_shared(env: SimEnv) -> None:
    """Check that all of it is shared, and that worker 1 holds the records."""
    found = await values(env, shared_folder(DATA))
    assert {key: found[key] for key in SHARED} == SHARED
    assert found["exchanges/filed"] == {"settings": {"type": "fanout", "bindings": []}, "live_bindings": []}
    assert "topics/__audit" not in found
    own = await values(env, DATA)
    assert sorted(own) == ["topics/__audit", "topics/orders"]
    note = await Folder(env.disk, DATA).load()
    assert note is not None
    async with folders(env) as (_, store):
        snapshot = await store.load()
        state = ClusterState.of(snapshot.revision, snapshot.entries)
    assert state.cluster is not None
    assert (note.node, note.cluster_id, note.folder_id) == (1, state.cluster.id, state.nodes[1].folder_id)
    assert sorted(state.parts) == [f"parts/{ORDERS}/0"]
    assert {(part.leader, part.isr, part.replicas) for part in state.parts.values()} == {(0, (1,), (1,))}
    assert min(part.epoch for part in state.parts.values()) > 1, "records of earlier epochs are in the log"


async def check_alone(env: SimEnv) -> None:
    found = await values(env, DATA)
    assert {key: found.get(key) for key in ALONE} == ALONE
    assert not [key for key in found if key.startswith(("nodes/", "parts/", "cluster"))]
    assert await Folder(env.disk, DATA).load() is None


def test_the_data_of_one_broker_becomes_that_of_worker_1() -> None:
    async def scenario(env: SimEnv) -> None:
        await begin_alone(env)
        await share(env)
        await check_shared(env)
        await share(env)
        await check_shared(env)

    run(scenario)


def test_a_new_folder_is_left_to_the_workers() -> None:
    async def scenario(env: SimEnv) -> None:
        await share(env)
        assert await values(env, shared_folder(DATA)) == {}
        assert not env.disk.exists(f"{DATA}/node")

    run(scenario)


def test_a_broker_alone_gets_everything_back() -> None:
    async def scenario(env: SimEnv) -> None:
        await begin_alone(env)
        await share(env)
        await end_sharing(env)
        await check_alone(env)
        await end_sharing(env)
        await share(env)
        await check_shared(env)

    run(scenario)


def test_the_log_of_transactions_is_no_topic_of_a_broker_alone() -> None:
    own = {"topics/__transactions": {"id": MAILS, "settings": {"kind": "stream"}, "live_bindings": []}}

    async def scenario(env: SimEnv) -> None:
        await begin_alone(env)
        await share(env)
        async with folders(env) as (found, store):
            await store.load()
            await store.put_all(own, {})
            of_worker_1 = found.store(DATA)
            await of_worker_1.load()
            await of_worker_1.put_all(own, {})  # It has the logs.
        await end_sharing(env)
        await check_alone(env)
        assert "topics/__transactions" not in await values(env, DATA)

    run(scenario)


def test_a_broker_alone_goes_on_with_the_deletion_of_a_topic() -> None:
    async def scenario(env: SimEnv) -> None:
        await begin_alone(env)
        await share(env)
        async with folders(env) as (_, store):
            await store.load()
            await store.put_all({"topics/orders": REMOVED}, {})
        await end_sharing(env)
        assert (await values(env, DATA))["topics/orders"] == {**SHARED["topics/orders"], "deleted": True}

    run(scenario)


@pytest.mark.parametrize("back", [False, True])
def test_a_power_failure_at_any_step_loses_nothing(back: bool) -> None:
    async def prepared(env: SimEnv) -> None:
        await begin_alone(env)
        if back:
            await share(env)

    change, check = (end_sharing, check_alone) if back else (share, check_shared)

    async def scenario(env: SimEnv, crash_at: int) -> bool:
        await prepared(env)
        env.disk.crash_at = len(env.disk.operations) + crash_at
        died = await env.run_until_death(change)
        after = env.restart() if died else env
        after.disk.crash_at = None
        await change(after)
        await check(after)
        return died

    crashed = 0
    for seed in range(3):
        crash_at = 0
        while run_simulation(seed, lambda env, at=crash_at: scenario(env, at)):  # type: ignore[misc]
            crash_at += 1
        crashed += crash_at
    assert crashed > 30


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_workers_than_hold_topics_are_refused(count: int) -> None:
    async def scenario(env: SimEnv) -> None:
        part = {"leader": 3, "session": "s", "epoch": 1, "isr": [3], "replicas": [1, 3]}
        async with folders(env) as (found, store):
            await store.put_all({**SHARED, "cluster": {"id": "c", "level": 2}, f"parts/{ORDERS}/0": part}, {})
            await found.check_count(store, 3)
            with pytest.raises(ClusterForeign, match=r"topic orders would not be served.*--workers 3 or more"):
                await found.check_count(store, count)
            with pytest.raises(ClusterForeign, match=r"topic orders would not be served without workers"):
                await found.end_sharing()
        assert not env.disk.exists(f"{DATA}/metadata.json"), "nothing was changed"

    run(scenario)


def test_the_folder_of_another_node_is_refused() -> None:
    async def scenario(env: SimEnv) -> None:
        await begin_alone(env)
        await share(env)
        note = await Folder(env.disk, DATA).load()
        assert note is not None
        async with folders(env) as (found, store):
            folder = Folder(env.disk, DATA)
            await folder.load()
            await found.store(DATA).put_all({"secrets/producers": "5f" * 32}, {})
            await folder.save(msgspec.structs.replace(note, node=2))
            with pytest.raises(ClusterForeign, match="node 2"):
                await found.share(store)

    run(scenario)
