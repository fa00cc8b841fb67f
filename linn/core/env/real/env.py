"""RealEnv: the real world, behind the ports of `linn.core.env.env`.

Laws: an `OSError` never leaves `disk`, `net` or `stream`. Nothing blocks the loop except the calls that the ports
document as synchronous.
"""

from __future__ import annotations

import time

import trio

from linn.core.env.real.disk import RealDisk
from linn.core.env.real.net import RealNet
from linn.core.env.real.process import RealProcess
from linn.core.env.real.programs import RealPrograms
from linn.core.env.real.rng import RealRng
from linn.core.env.real.threads import RealThreads


class RealClock:
    """The machine's clocks. `monotonic` is trio's clock, to match trio's deadlines; it needs a running loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class RealEnv:
    """Time, randomness, files, network, programs and threads of this machine."""

    def __init__(self) -> None:
        self.clock = RealClock()
        self.rng = RealRng()
        self.disk = RealDisk()
        self.net = RealNet()
        self.process = RealProcess()
        self.programs = RealPrograms()
        self.threads = RealThreads()
