"""A served store with clients in other processes, which are killed and stopped."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from served_world import served

from linn.core.env.real.env import RealEnv
from linn.core.errors.metadata import MetadataError
from linn.core.metadata.store import MetadataStore, Stored

pytestmark = pytest.mark.system
WAIT_S = 60.0
"""Time after which a test counts as stuck."""
LONG_TTL_S = 600.0
"""A lease that ends for no other reason within a test."""
SHORT_TTL_S = 2.0
KILLS = 5
COUNTED = 20
"""Writes of each client between two kills."""
OUTAGE_S = 0.05


class Processes:
    """A server and its clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"unix:{folder}/store.sock"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start_server(self) -> None:
        self._start("server", "server", self.address, str(self._folder / "data"))

    def start_client(self, name: str, ttl_s: float) -> None:
        self._start(name, "client", self.address, name, str(ttl_s))

    def _start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name("store_process.py")), *arguments]
        with (self._folder / f"{name}.out").open("ab") as output:
            self._running[name] = subprocess.Popen(command, stdout=output)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self._running[name].pid, number)

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def said(self, name: str) -> list[list[str]]:
        """The lines of a process, in words; the last one may be cut off."""
        text = (self._folder / f"{name}.out").read_text()
        return [line.split() for line in text.splitlines()[: None if text.endswith("\n") else -1]]


@contextmanager
def processes_in(folder: Path) -> Iterator[Processes]:
    """A server, and clients to start; all are killed at the end."""
    processes = Processes(folder)
    try:
        processes.start_server()
        yield processes
    finally:
        processes.kill_all()


async def seen(store: MetadataStore, is_wanted: Callable[[Mapping[str, Stored]], bool]) -> dict[str, Stored]:
    """Wait until the store's content is wanted, through the outages of its server."""
    while True:
        try:
            async with store.watch() as watch:
                known = dict(watch.snapshot.entries)
                while not is_wanted(known):
                    for key, stored in (await watch.next()).entries.items():
                        known.pop(key, None)
                        if stored is not None:
                            known[key] = stored
                return known
        except MetadataError:
            await trio.sleep(OUTAGE_S)


def are_beyond(last: Mapping[str, int], known: Mapping[str, Stored]) -> bool:
    """Whether each client has a session and has counted on."""
    keys = [f"{kind}/{name}" for kind in ("sessions", "counts") for name in last]
    return all(key in known for key in keys) and all(
        known[f"counts/{name}"].value > count + COUNTED for name, count in last.items()
    )


async def test_a_killed_client_is_given_up_at_once_and_a_stopped_one_in_time(tmp_path: Path) -> None:
    with trio.fail_after(WAIT_S), processes_in(tmp_path) as processes:
        store = served(RealEnv(), processes.address)
        processes.start_client("killed", LONG_TTL_S)
        processes.start_client("stopped", SHORT_TTL_S)
        both = {"sessions/killed", "sessions/stopped"}
        await seen(store, lambda known: both <= known.keys())
        assert stat.S_IMODE((tmp_path / "store.sock").stat().st_mode) == 0o600
        processes.kill("killed")
        await seen(store, lambda known: "sessions/killed" not in known)
        processes.signal("stopped", signal.SIGSTOP)
        await seen(store, lambda known: "sessions/stopped" not in known)
        processes.signal("stopped", signal.SIGCONT)
        await seen(store, lambda known: "sessions/stopped" in known)
        assert ["lost"] in processes.said("stopped")
        await store.aclose()


async def test_after_kills_of_the_server_its_clients_go_on_with_all_that_was_confirmed(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    with trio.fail_after(2 * WAIT_S), processes_in(tmp_path) as processes:
        store = served(RealEnv(), processes.address)
        for name in names:
            processes.start_client(name, LONG_TTL_S)
        last = dict.fromkeys(names, 0)
        revision = 0
        for _ in range(KILLS):
            found = await seen(store, partial(are_beyond, last))
            assert max(stored.revision for stored in found.values()) > revision
            processes.kill("server")
            revision = max(stored.revision for stored in found.values())
            last = {name: found[f"counts/{name}"].value for name in names}
            processes.start_server()
        await seen(store, partial(are_beyond, last))
        for name in names:
            processes.kill(name)
        found = await seen(store, lambda known: not any(key.startswith("sessions/") for key in known))
        for name in names:
            said = processes.said(name)
            confirmed = [int(count) for word, *rest in said if word == "confirmed" for count in rest]
            assert confirmed[-1] > last[name]
            assert found[f"counts/{name}"].value in (confirmed[-1], confirmed[-1] + 1)
            assert {word for word, *_ in said} <= {"confirmed", "lost", "metadata.unavailable", "metadata.unknown"}
            assert any(word in ("metadata.unavailable", "metadata.unknown") for word, *_ in said)
        await store.aclose()
