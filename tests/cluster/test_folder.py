"""The file `node` of a data folder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from linn.core.cluster.entries import ClusterEntry, ClusterState, Loss
from linn.core.cluster.folder import Folder, FolderNote, loss_at_start
from linn.core.errors.cluster import ClusterEmptied, ClusterForeign
from linn.core.errors.tree import LogCorrupt
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

DATA = "/linn"
NOTE = FolderNote("folder", "cluster", 3, "boot", "tail", "session")


def run(scenario: Callable[[SimEnv], Awaitable[None]]) -> None:
    async def main(env: SimEnv) -> None:
        env.disk.make_dir(DATA)
        await env.disk.sync_dir("/")
        await scenario(env)

    run_simulation(0, main)


def test_a_note_is_durable_when_it_is_saved() -> None:
    async def scenario(env: SimEnv) -> None:
        folder = Folder(env.disk, DATA)
        assert await folder.load() is None
        await folder.save(NOTE)
        env.crash()
        assert await Folder(env.restart().disk, DATA).load() == NOTE

    run(scenario)


@pytest.mark.parametrize("damage", [b"", b"00000000\n{}", b"no checksum", b"\xff" * 100])
def test_a_damaged_note_is_an_error_and_stays_as_it_is(damage: bytes) -> None:
    async def scenario(env: SimEnv) -> None:
        file = env.disk.open(f"{DATA}/node", create=True)
        file.write([damage])
        file.close()
        with pytest.raises(LogCorrupt, match="/linn/node"):
            await Folder(env.disk, DATA).load()
        assert env.disk.read_named(f"{DATA}/node", 1000) == damage

    run(scenario)


def test_a_folder_belongs_to_one_node_of_one_cluster() -> None:
    async def scenario(env: SimEnv) -> None:
        folder = Folder(env.disk, DATA)
        folder.check(4)
        folder.check_cluster(ClusterState())
        await folder.save(NOTE)
        folder.check(3)
        folder.check_cluster(ClusterState(cluster=ClusterEntry("cluster", 1)))
        with pytest.raises(ClusterForeign, match="belongs to node 3, and this is node 4"):
            folder.check(4)
        with pytest.raises(ClusterForeign, match="belongs to the cluster cluster, and the metadata store has"):
            folder.check_cluster(ClusterState(cluster=ClusterEntry("other", 1)))
        with pytest.raises(ClusterEmptied, match="Nothing was deleted"):
            folder.check_cluster(ClusterState())

    run(scenario)


@pytest.mark.parametrize(
    ("pending", "before", "now", "handled", "lost"),
    [
        ("none", "b1", "b1", "", "memory"),
        ("none", "", "b2", "", "memory"),
        ("none", "b1", "b2", "", "tail"),
        ("tail", "b1", "b1", "", "tail"),
        ("all", "b1", "b2", "", "all"),
        ("all", "b1", "b1", "s", "memory"),
        ("all", "b1", "b2", "s", "tail"),
        ("all", "b1", "b1", "of another session", "all"),
    ],
)
def test_what_a_start_has_lost(pending: Loss, before: str, now: str, handled: str, lost: Loss) -> None:
    assert loss_at_start(FolderNote("f", "c", 1, before, pending, "s"), now, handled) == lost


def test_a_loss_that_was_not_told_was_not_handled() -> None:
    assert loss_at_start(FolderNote("f", "c", 1, "b", "all"), "b", "") == "all"
