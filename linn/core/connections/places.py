"""Places: how many connections there may be, from one machine, and before a login.

A connection waits until its client has logged in, or between two requests where connections only monitor. Waiting ones
cost their clients nothing, and so have fewer places. When these are taken, a new connection gets the place of another,
which ends:

- the oldest of the machine that has most waiting, if it has waited for `YOUNG_S`, or if the new one's machine has
  fewer: who takes all places loses them to the others;
- else the oldest of all, if it has waited for `YOUNG_S`;
- else there is none, and the new connection is refused. A thousand clients that come back at once would otherwise end
  each other; so those that are in the middle of a login finish it, and the others try again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from linn.core.env.env import AcceptedStream
from linn.core.errors.texts import counted
from linn.core.errors.tree import BrokerFull
from linn.core.security.machine import machine_of

YOUNG_S = 1.0
"""Time that a login may take before it can end for another one of the same machine: ten slow round trips."""


class Places:
    """Places that some listeners share."""

    def __init__(
        self,
        connections_max: int,
        machine_max: int,
        waiting_max: int,
        monotonic: Callable[[], float],
        limited_by: str = "connections_max allows",
    ) -> None:
        """
        Args:
            limited_by: what says how many connections there may be, as the end of a message.
            machine_max: limit of the connections from one address. This machine has none: its connections may come
                from a proxy, and whoever runs programs on it needs no connection to take its descriptors.
        """
        self._connections_max = connections_max
        self._machine_max = machine_max
        self._waiting_max = waiting_max
        self._limited_by = limited_by
        self._monotonic = monotonic
        self._machines: dict[AcceptedStream, str] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, dict[AcceptedStream, float]] = {}
        """When each waiting connection began to wait, by machine, oldest first."""
        self.waiting_count = 0
        self._gone = trio.Event()

    @property
    def count(self) -> int:
        """The number of connections."""
        return len(self._machines)

    def take(self, stream: AcceptedStream) -> AcceptedStream | None:
        """Give a new connection a place; it waits. Returns the connection that has lost it and must end, if any.

        Raises BrokerFull.
        """
        machine, loser = machine_of(stream.peer), None
        if machine and self._counts[machine] >= self._machine_max:
            there = counted(self._counts[machine], "connection")
            raise BrokerFull(f"{machine} has {there}, as many as address_connections_max allows")
        if self.count >= self._connections_max or self.waiting_count >= self._waiting_max:
            loser = self._loser(machine)
            if loser is None:
                raise self._full()
            self.leave(loser)
        self._machines[stream] = machine
        self._counts[machine] += 1
        self.begin_waiting(stream)
        return loser

    def _full(self) -> BrokerFull:
        if self.count >= self._connections_max:
            return BrokerFull(f"the broker has {counted(self.count, 'connection')}, as many as {self._limited_by}")
        waiting = counted(self.waiting_count, "connection")
        return BrokerFull(f"{waiting} did not log in yet, as many as handshakes_max allows: try again")

    def _loser(self, machine: str) -> AcceptedStream | None:
        if not self._waiting:
            return None
        most = max(self._waiting.values(), key=len)
        old_s = self._monotonic() - YOUNG_S
        for waiting in (most, min(self._waiting.values(), key=_oldest_s)):
            if _oldest_s(waiting) <= old_s or len(waiting) > len(self._waiting.get(machine, ())) + 1:
                return next(iter(waiting))
        return None

    def begin_waiting(self, stream: AcceptedStream) -> None:
        """Let a connection wait from now on; ignored for one that has lost its place."""
        machine = self._machines.get(stream)
        if machine is not None:
            self.end_waiting(stream)
            self._waiting.setdefault(machine, {})[stream] = self._monotonic()
            self.waiting_count += 1

    def end_waiting(self, stream: AcceptedStream) -> None:
        """Let a connection keep its place, because it has logged in, or has a request. Idempotent."""
        machine = self._machines.get(stream)
        waiting = self._waiting.get(machine) if machine is not None else None
        if machine is not None and waiting is not None and waiting.pop(stream, None) is not None:
            self.waiting_count -= 1
            if not waiting:
                del self._waiting[machine]

    def leave(self, stream: AcceptedStream) -> None:
        """Give a connection's place back. Idempotent."""
        self.end_waiting(stream)
        machine = self._machines.pop(stream, None)
        if machine is not None:
            self._counts[machine] -= 1
            if not self._counts[machine]:
                del self._counts[machine]
            if not self._machines:
                self._gone.set()

    async def wait_until_empty(self, timeout_s: float) -> None:
        """Wait until no connection is left, for at most `timeout_s`. Call it when no new ones can come."""
        if self._machines:
            self._gone = trio.Event()
            with trio.move_on_after(timeout_s):
                await self._gone.wait()


def _oldest_s(waiting: dict[AcceptedStream, float]) -> float:
    return next(iter(waiting.values()))
