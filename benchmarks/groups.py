"""Group lines: the time until a group of 100 members is balanced again, of which 25 were killed with their process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import linn.sync
from benchmarks.line import Bound, Line
from benchmarks.load import LoadFailed
from benchmarks.plan import Plan
from benchmarks.servers import broker, fresh_folder

MEMBERS, KILLED, PARTITIONS = 100, 25, 400
SESSION_S = 1.0
SLACK_S = 0.2
"""Time beyond the session that a group may take."""
WAIT_S = 60.0
CONFIG = f"""
[topics.shared]
kind = "stream"
storage = "dram"
partitions = {PARTITIONS}
"""


def group_lines(plan: Plan) -> Iterator[Line]:
    """The line, over as many crashes as there are starts of a broker to measure."""
    took_s: list[float] = []
    for number in range(plan.starts):
        with fresh_folder(plan.folder) as folder, broker(folder, CONFIG) as process:
            with linn.sync.connect(process.url) as client:
                took_s.append(_balanced_after_crash_s(client, process.url, f"group-{number}"))
    name = f"group of {MEMBERS}, {KILLED} of them killed, balanced"
    yield Line("groups", name, "s", Bound(SESSION_S + SLACK_S, at_most=True), took_s)


def _balanced_after_crash_s(client: linn.sync.Client, url: str, group: str) -> float:
    join(client, group, MEMBERS - KILLED)
    with _crashing(url, group) as members:
        _wait_balanced(client, group, MEMBERS)
        members.kill()
        members.wait()
        began = time.perf_counter()
    _wait_balanced(client, group, MEMBERS - KILLED)
    return time.perf_counter() - began


def join(client: linn.sync.Client, group: str, count: int) -> list[linn.sync.Consumer]:
    """Add members to a group."""
    return [client.consumer("shared", group, session_timeout_s=SESSION_S) for _ in range(count)]


@contextmanager
def _crashing(url: str, group: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with the members that are to be killed. Raises LoadFailed."""
    command = [sys.executable, "-m", "benchmarks.groups", url, group]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise LoadFailed("the members of a group could not join")
            yield process
        finally:
            process.kill()


def _wait_balanced(client: linn.sync.Client, group: str, members: int) -> None:
    """Wait until so many members own all partitions in equal shares. Raises LoadFailed."""
    give_up = time.perf_counter() + WAIT_S
    while time.perf_counter() < give_up:
        shown = client.admin.group(group)
        shares = Counter(row["member"] for row in shown["offsets"])
        if len(shares) == members and None not in shares and max(shares.values()) - min(shares.values()) <= 1:
            return
        time.sleep(0.01)
    raise LoadFailed(f"a group of {members} is not balanced after {WAIT_S:g} s")


def main() -> None:
    """Join a group with the members to be killed, say so, and stay until killed."""
    url, group = sys.argv[1:]
    with linn.sync.connect(url) as client:
        members = join(client, group, KILLED)
        print(len(members), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
