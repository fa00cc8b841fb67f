"""The amount of measuring, and the limits that are the same for every system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers.peer import Durability, Facts

WINDOW = 10_000
"""Records: at most so many are published and not confirmed, and at most so many are delivered and not acked."""
CHUNK = 1_000
"""Records of one call in bulk, where it is not the whole window, and of a transaction; and between two looks at the
clock.
"""
LINGER_MS = 5
"""Time that a client which gathers batches may wait for more."""


@dataclass(frozen=True)
class Plan:
    """Sizes and times of everything."""

    folder: Path
    """Folder for the servers' data, on the disk that is measured."""
    rounds: int = 5
    """In each of them every system has its turn."""
    seconds: float = 0.7
    """Time of publishing in one turn; all of it is then consumed."""
    record_bytes: tuple[int, ...] = (128, 1024)
    stock_bytes_max: int = 256 << 20
    """Limit of bytes published in one turn, so that they stay in memory and are consumed in bounded time."""
    durabilities: tuple[Durability, ...] = ("page cache", "fsync")
    warm_up_s: float = 0.25
    """Time of publishing in one turn of the warm-up."""
    warm_up_s_max: float = 8.0
    """For all turns of one system at one work, if its rates do not stand still before."""
    idle_s: float = 2.0
    """For a look at what the servers take while none of them has work."""
    tool_s: float = 1.5
    """Time of a load tool, as far as its rate is foreseen."""

    def records_max(self, record_bytes: int) -> int:
        """Records of one turn."""
        return self.stock_bytes_max // record_bytes

    def minutes(self, turns: int, tool_turns: int, warm_ups: int) -> float:
        """Estimate how long so many turns take, all systems together.

        A turn publishes, consumes for about as long, and makes and deletes a topic; a load tool's has two processes
        that start. A warm-up is over in half of its time.
        """
        turn_s = 2.0 * self.seconds + 0.3
        tool_turn_s = 2.0 * self.tool_s + 2.5
        return (turns * turn_s + tool_turns * tool_turn_s + warm_ups * self.warm_up_s_max / 2) / 60


def of_three(facts: Facts, settings: Mapping[Durability, str]) -> Facts:
    """The facts of three brokers that each hold all records. They are not measured by load tools."""
    calls = {work: call for work, call in facts.calls.items() if "tool" not in work and "transactions" not in work}
    return replace(facts, name=f"{facts.name}, three brokers", settings=settings, calls=calls)


def quick_plan(folder: Path) -> Plan:
    """Show that everything works, and nothing else: its figures mean nothing."""
    return Plan(folder, 2, 0.05, (128,), 2 << 20, warm_up_s=0.02, warm_up_s_max=1.0, idle_s=0.5, tool_s=0.1)
