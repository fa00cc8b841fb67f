"""`python -m benchmarks.peers.failover`: kill the leader of three brokers with SIGKILL while one client publishes.

Laws: every turn has brokers and data of its own; records go one at a time, each after the confirmation of the one
before it, to all replicas; everything that was confirmed is read again afterwards, in order. Timeouts are the defaults.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from benchmarks.peers.cargo import Cargo, Supply
from benchmarks.peers.peer import Peer, Server
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.systems import SYSTEMS, peer

TOPIC = "failover"
RECORD_BYTES = 1 << 10
BEFORE_S = 3.0
"""Time of publishing before the leader dies."""
AFTER_S = 30.0
"""Time of publishing after that: more than any session timeout."""
RECORDS_MAX = 1_000_000
THREE = [name for name in SYSTEMS if name.endswith("-three")]
FAILED = 1


class LedServer(Server, Protocol):
    """A server of three brokers."""

    def leader_pid(self, topic: str) -> int:
        """The process that leads a topic."""


class FatalSupply(Supply):
    """Records one by one; between two of them the leader is killed, once."""

    def __init__(self, server: LedServer) -> None:
        super().__init__(Cargo(RECORD_BYTES), BEFORE_S + AFTER_S, RECORDS_MAX)
        self.killed_s = 0.0
        self._server = server

    def singles(self) -> Iterator[bytes]:
        """See `Supply.singles`."""
        kill_s = time.perf_counter() + BEFORE_S
        for value in super().singles():
            if not self.killed_s and time.perf_counter() >= kill_s:
                pid = self._server.leader_pid(TOPIC)
                self.killed_s = time.perf_counter()
                os.kill(pid, signal.SIGKILL)
            yield value


def gap_s(system: Peer, folder: Path) -> float:
    """The longest time between two confirmations from the leader's death on. Raises PeerFailed, RecordsLost."""
    with system.server(folder, "page cache") as found:
        server = cast(LedServer, found)
        server.create(TOPIC, "stream")
        supply = FatalSupply(server)
        times = server.publish_one_at_a_time(TOPIC, supply, Stopwatch([]))
        supply.cargo.check(server.read_bulk(TOPIC, supply.taken, Stopwatch([])), supply.taken)
    after = [each for each in times if each >= supply.killed_s]
    return max(end - begin for begin, end in itertools.pairwise([supply.killed_s, *after]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each system; the exit code is 1 where one failed or is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.failover", description=__doc__)
    parser.add_argument("--only", choices=THREE, nargs="+", default=THREE, help="default: all of them")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each system (3)")
    options = parser.parse_args(arguments)
    gaps: dict[str, list[float]] = {name: [] for name in options.only}
    failed = 0
    for _ in range(options.rounds):
        for name in options.only:
            with tempfile.TemporaryDirectory(prefix="linn-failover-") as folder:
                try:
                    gaps[name].append(gap_s(peer(name), Path(folder)))
                except Exception as error:  # A client of each system raises its own.
                    print(f"{name}: {error!r}", file=sys.stderr, flush=True)
                    failed = FAILED
    for name, found in gaps.items():
        if found:
            each = ", ".join(f"{gap:.2f}" for gap in found)
            print(f"{name}: {statistics.median(found):.2f} s without a confirmation ({each})")
    return failed


if __name__ == "__main__":
    sys.exit(main())
