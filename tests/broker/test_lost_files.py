"""The loss of any one file of a broker that was killed: it is refused, or nothing is lost, or the log says what is."""

from __future__ import annotations

import pytest
from raw_client import broker_on, connected

from linn.core.broker.broker import Broker
from linn.core.errors.tree import LogCorrupt
from linn.testing.deterministic import run_simulation
from linn.testing.sim_disk import SimDisk
from linn.testing.sim_env import SimEnv

FOLDER = "data/segmented-log"
IDLE_S = {"always": 0, "interval": 3, "os": 40}
"""By policy, the time without work after which everything is on stable storage, and known to be."""

State = tuple[list[str], int | None, int]


def text_of(fsync: str) -> str:
    return f'[storage.segmented-log]\nfsync = "{fsync}"\n[topics.s]\nkind = "stream"\n[topics.q]\n'


async def live(env: SimEnv, text: str, idle_s: float, found: list[State]) -> None:
    """A life in which records are stored, and in part acked and committed; it ends by a kill."""
    async with broker_on(env, text) as broker:
        client = await connected(env)
        for topic in ("s", "q"):
            for number in range(5):
                await client.publish(topic, [f"{topic}{number}"])
        assert await client.taken("s", group="g", count=3) == ["s0", "s1", "s2"]
        assert await client.taken("q", count=2) == ["q0", "q1"]
        await env.clock.sleep(idle_s)
        found.append(await state_of(env, broker))
        env.kill()


async def state_of(env: SimEnv, broker: Broker) -> State:
    """The records of the stream, the group's offset in it, and the number of unsettled records of the queue."""
    group, queue = broker.groups.groups.get("g"), broker.topics["q"].queue
    assert queue is not None
    position = group.position("s", 0) if group is not None else None
    return await (await connected(env)).fetch("s"), position, queue.unsettled_count()


def files(disk: SimDisk, folder: str = FOLDER) -> list[str]:
    """All files below a folder."""
    found: list[str] = []
    for name in sorted(disk.list_dir(folder)):
        path = f"{folder}/{name}"
        found += [path] if name.startswith(("0000", "checkpoint")) else files(disk, path)
    return found


def lose(disk: SimDisk, path: str, loss: str) -> None:
    if loss == "missing":
        disk.unlink(path)
    else:
        disk.open(path).truncate(0)


async def live_and_lose(env: SimEnv, fsync: str, place: int, loss: str) -> tuple[str, bool]:
    """Kill a broker, lose one file, "" if there are not so many, and start again: its path, and whether that is refused
    or all is there.
    """
    found: list[State] = []
    text = text_of(fsync)
    assert await env.run_until_death(lambda env: live(env, text, IDLE_S[fsync], found))
    env = env.restart()
    paths = files(env.disk)
    if place >= len(paths):
        return "", True
    lose(env.disk, paths[place], loss)
    try:
        async with broker_on(env, text) as broker:
            return paths[place], await state_of(env, broker) == found[0]
    except LogCorrupt as error:
        return paths[place], paths[place].rpartition("/")[0] in error.text


@pytest.mark.parametrize("loss", ["missing", "empty"])
@pytest.mark.parametrize("fsync", IDLE_S)
def test_no_file_is_lost_in_silence(fsync: str, loss: str) -> None:
    place, path = 0, "first"
    while path:
        path, is_fine = run_simulation(0, lambda env, at=place: live_and_lose(env, fsync, at, loss))  # type: ignore[misc]
        assert is_fine, f"{path} is {loss}"
        place += 1
    assert place > 8
