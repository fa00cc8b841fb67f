"""SimEnv: an `Env` whose time is virtual and whose every event follows from a seed.

It runs under a trio `MockClock`, as `linn.testing.deterministic.run_simulation` gives it. A SimEnv is one process of a
node. `crash()` is power loss and `kill()` is SIGKILL; after either, `restart()` is the Env of the node's next process.
The disk dies first, then the network, and the node's code is cancelled last, so that no `finally` or `except` block
stores or sends anything.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from linn.testing.sim_device import WAS_KILLED, SimulatedCrash
from linn.testing.sim_disk import SimDisk
from linn.testing.sim_net import SimNet, SimNode
from linn.testing.sim_programs import SimPrograms

_EPOCH_MS = 1_735_689_600_000
"""Wall time at the start of a simulation: 2025-01-01, UTC."""

_MEMORY_BYTES = 1 << 30
"""Memory of the machine of a simulated process."""


class SimClock:
    """trio's virtual time, and a wall clock derived from it that a test may set, or let run fast or slow."""

    def __init__(self) -> None:
        self._jumped_ms = 0.0
        self._speed = 1.0

    def now_ms(self) -> int:
        return _EPOCH_MS + int(trio.current_time() * 1000 * self._speed + self._jumped_ms)

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def jump(self, ms: int) -> None:
        """Set the wall clock forward, or backwards if `ms` is negative; `monotonic` does not notice."""
        self._jumped_ms += ms

    def drift(self, speed: float) -> None:
        """Let the wall clock run `speed` times as fast from now on, without a jump; `monotonic` does not notice."""
        self._jumped_ms += trio.current_time() * 1000 * (self._speed - speed)
        self._speed = speed


class SimRng:
    """Random numbers from one seed, also where RealEnv takes them from the operating system."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(f"{seed}/rng")

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def integer(self, below: int) -> int:
        return self._random.randrange(below)


T = TypeVar("T")


class SimThreads:
    """Computations of a simulated process, which run in its loop and take no time."""

    async def run(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()


class SimProcess:
    """A process without any resource usage."""

    def __init__(self, host: str = "node", boots: int = 1) -> None:
        self._host = host
        self._boots = boots
        self.variables: dict[str, str] = {}
        """The variables of its environment."""

    def memory_bytes(self) -> int:
        return 0

    def memory_bytes_max(self) -> int:
        return _MEMORY_BYTES

    def descriptors(self) -> int:
        return 0

    def descriptors_max(self) -> int:
        return 1024

    def user_id(self) -> int | None:
        return None

    def boot_id(self) -> str:
        return f"{self._host}/{self._boots}"

    def host(self) -> str:
        return self._host

    def variable(self, name: str) -> str | None:
        return self.variables.get(name)

    def processor_s(self) -> float:
        return 0.0


class SimEnv:
    """One process of a simulated node.

    Nodes of one simulation are given one `world` and different names; their faults are independent of one another.
    """

    def __init__(self, seed: int, *, name: str = "node", world: SimNet | None = None) -> None:
        self.name = name
        self.clock = SimClock()
        self.rng = SimRng(f"{seed}/{name}")
        self.programs = SimPrograms()
        self.threads = SimThreads()
        self._world = world if world is not None else SimNet(seed)
        self._seed = seed
        self._boots = 1
        self._disks = 1
        self._be_born(SimDisk(f"{seed}/{name}"))

    def _be_born(self, disk: SimDisk) -> None:
        self.disk = disk
        self.process = SimProcess(self.name, self._boots)
        self.net: SimNode = self._world.node(self.name)
        self._scopes: list[trio.CancelScope] = []
        disk.on_death.append(self._disk_died)

    @property
    def world(self) -> SimNet:
        """The network that this node shares with others; `world.cut`, `heal` and `slow` are its faults."""
        return self._world

    @property
    def is_dead(self) -> bool:
        return self.disk.death is not None

    def crash(self) -> None:
        """Lose power now."""
        self.disk.crash()

    def kill(self) -> None:
        """End the process now, as SIGKILL does."""
        self.disk.kill()

    def _disk_died(self) -> None:
        if self.disk.death == WAS_KILLED:
            self.net.kill()
        else:
            self.net.lose_power()
        for scope in self._scopes:
            scope.cancel()

    def restart(self, *, on_new_disk: bool = False) -> SimEnv:
        """The Env of the node's next process. Clock and randomness continue, planned faults are dropped.

        `on_new_disk`: the old one is lost, and the machine was off meanwhile.
        """
        successor = SimEnv.__new__(SimEnv)
        successor.name, successor.clock, successor.rng = self.name, self.clock, self.rng
        successor.programs, successor.threads = self.programs, self.threads
        successor._world, successor._seed = self._world, self._seed
        successor._boots = self._boots + (on_new_disk or self.disk.death != WAS_KILLED)
        successor._disks = self._disks + on_new_disk
        disk = SimDisk(f"{self._seed}/{self.name}/{successor._disks}") if on_new_disk else self.disk.restart()
        successor._be_born(disk)
        return successor

    async def run_until_death(self, process: Callable[[SimEnv], Awaitable[object]]) -> bool:
        """Run `process(env)` until it returns or this Env dies; returns whether it died.

        A death cancels the process. `SimulatedCrash` ends here; any other error is raised.
        """
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                await process(self)
            except* SimulatedCrash:
                pass
            finally:
                self._scopes.remove(scope)
        return self.is_dead
