"""Latency lines: the latency of messages at a given load, counted from the moment when each was due.

Law: messages are sent by the clock, whether or not earlier ones have been answered, and each one's time counts from its
place in the schedule. A server that stops for a second delays everything that was due meanwhile, and all of that
counts; a load that waits for its answers would have sent nothing then, and measured one slow message.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

import trio

from benchmarks.floor import send_all
from benchmarks.line import Line, Mark, Pair, line_of_pairs
from benchmarks.load import (
    CREDIT,
    DELIVER_BYTES,
    PUBLISHED_BYTES,
    PUBLISHED_HEAD,
    Batches,
    LoadFailed,
    Target,
    ask,
    connected,
)
from benchmarks.matrix.point import Point, make_topics
from benchmarks.matrix.shipment import Shipment, shipment
from benchmarks.plan import MatrixPlan, Plan
from benchmarks.relay import JOIN, JOINING
from benchmarks.servers import broker, fresh_folder, relay, target_of
from linn.wire import messages

PERCENTILES = (50.0, 99.0, 99.9)
SPIN_S = 0.002
"""Time before a message in which the clock is polled: the kernel's timer is a millisecond late."""
SEND_MAX = 64
"""Limit of the overdue messages that are sent together; then replies are looked at."""
SATURATION = 1e9
"""Messages per second: more than any server can take."""
OPEN_MAX = 500
"""Unanswered messages while the sustainable rate is searched: half of what a connection may have open."""
STEP_DOWN = 0.95
"""Factor from an unsustainable rate to the next one tried."""
BEHIND_SHARE = 10
"""The last 1/n of a run is looked at."""
BEHIND_S_MAX = 0.02
"""Limit of the median wait in it if a server keeps up; if not, waits grow with each second."""


@dataclass(frozen=True)
class Schedule:
    """The times at which messages are due, in seconds from the start, evenly spaced at a rate per second."""

    rate: float
    count: int

    def at(self, number: int) -> float:
        """The time at which a message is due; the first is number 0."""
        return number / self.rate

    def due(self, elapsed_s: float) -> int:
        """The number of messages due by then."""
        return min(self.count, int(elapsed_s * self.rate) + 1)


@dataclass
class Waits:
    """The wait of each message from the time when it was due, in order."""

    schedule: Schedule
    seconds: array[float] = field(default_factory=lambda: array("d"))

    def arrived(self, count: int, elapsed_s: float) -> None:
        """Record so many more arrivals."""
        first = len(self.seconds)
        self.seconds.extend(elapsed_s - self.schedule.at(number) for number in range(first, first + count))

    @property
    def is_complete(self) -> bool:
        """Whether all have arrived."""
        return len(self.seconds) == self.schedule.count


def percentile(seconds: list[float], percent: float) -> float:
    """The least value that so many percent of all do not exceed; `seconds` is sorted."""
    place = -(-len(seconds) * percent // 100)
    return seconds[max(0, int(place) - 1)]


class Flow:
    """One connection that publishes by a schedule, and one that consumes."""

    def __init__(self, publishing: trio.socket.SocketType, consuming: trio.socket.SocketType, goods: Shipment) -> None:
        self._publishing = publishing
        self._consuming = consuming
        self._goods = goods
        self._started = 0.0

    async def run(self, schedule: Schedule, open_max: int = 1 << 60) -> tuple[Waits, Waits]:
        """Run until all are confirmed and delivered; `open_max`: pause at so many unanswered messages."""
        confirmed, delivered = Waits(schedule), Waits(schedule)
        self._started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._confirm, confirmed)
            nursery.start_soon(self._deliver, delivered)
            sent = 0
            while sent < schedule.count:
                answered = min(len(confirmed.seconds), len(delivered.seconds))
                due = min(schedule.due(self._elapsed()) - sent, SEND_MAX, open_max - sent + answered)
                if due > 0:
                    await send_all(self._publishing, [self._goods.last * due])
                    sent += due
                else:
                    await self._until(schedule.at(sent))
        return confirmed, delivered

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started

    async def _until(self, at_s: float) -> None:
        left = at_s - self._elapsed()
        if left > SPIN_S:
            await trio.sleep(left - SPIN_S)
        else:
            await trio.lowlevel.checkpoint()

    async def _confirm(self, waits: Waits) -> None:
        data = b""
        while not waits.is_complete:
            more = await self._publishing.recv(65536)
            data += more
            if not more or (len(data) >= len(PUBLISHED_HEAD) and data[: len(PUBLISHED_HEAD)] != PUBLISHED_HEAD):
                raise LoadFailed("the server did not confirm a publish")
            count = len(data) // PUBLISHED_BYTES
            waits.arrived(count, self._elapsed())
            data = data[count * PUBLISHED_BYTES :]

    async def _deliver(self, waits: Waits) -> None:
        batches = Batches()
        while not waits.is_complete:
            waits.arrived(await batches.more(self._consuming, self._goods.batch_bytes), self._elapsed())


@asynccontextmanager
async def flow(target: Target, goods: Shipment) -> AsyncIterator[Flow]:
    """Open both connections; the consumer is sent messages published from now on. Raises LoadFailed."""
    async with connected(target) as publishing, connected(target) as consuming:
        if target.is_linn:
            latest = messages.Subscribe("t0", credit=CREDIT, start=messages.START_LATEST)
            await ask(consuming, latest, messages.Subscribed)
        else:
            await send_all(consuming, [JOIN.pack(JOINING, 0, 1, 8, 8, DELIVER_BYTES)])
        yield Flow(publishing, consuming, goods)


async def bears(target: Target, goods: Shipment, count: int) -> float:
    """The rate of messages per second under a saturating load."""
    async with flow(target, goods) as one:
        confirmed, delivered = await one.run(Schedule(SATURATION, count), OPEN_MAX)
    return count / max(confirmed.seconds[-1], delivered.seconds[-1])


def keeps_up(seconds: Sequence[float]) -> bool:
    """Whether the messages of a run, in order, did not wait longer and longer."""
    last = seconds[-max(1, len(seconds) // BEHIND_SHARE) :]
    return median(last) <= BEHIND_S_MAX


def sustained(target: Target, goods: Shipment, rate: float, run_s: float) -> float:
    """The first rate, of `rate` and lower ones, that the server sustains with evenly spaced messages.

    It is less than the result of `bears`: messages that come one by one each wake the server.
    """
    while rate > 1:
        schedule = Schedule(rate, max(10, int(rate * run_s)))
        if all(map(keeps_up, trio.run(waited, target, goods, schedule))):
            return rate
        rate *= STEP_DOWN
    raise LoadFailed("no load at all is borne")


async def waited(target: Target, goods: Shipment, schedule: Schedule) -> tuple[list[float], list[float]]:
    """The seconds that each message of a run took to its confirmation, and to the consumer."""
    async with flow(target, goods) as one:
        confirmed, delivered = await one.run(schedule)
    return confirmed.seconds.tolist(), delivered.seconds.tolist()


def latency_lines(plan: Plan) -> Iterator[Line]:
    """Lines of linn and of the relay at equal rates: fractions of linn's sustained rate, which is measured first."""
    point, matrix = Point(batch_bytes=0), plan.matrix
    goods = shipment(point)
    with fresh_folder(plan.folder) as folder, broker(folder, point.config) as process, relay() as bare:
        linn = target_of(process)
        trio.run(make_topics, linn, point, False)
        for target in (bare, linn):  # Not counted.
            trio.run(bears, target, goods, matrix.saturating)
        most = [median(trio.run(bears, target, goods, matrix.saturating) for _ in range(3)) for target in (bare, linn)]
        rate = sustained(linn, goods, most[1], matrix.load_s)
        yield _borne_line("in bursts", most[0], most[1])
        yield _borne_line("evenly spaced", sustained(bare, goods, rate, matrix.load_s), rate)
        for load in matrix.loads:
            schedule = Schedule(load * rate, max(10, int(load * rate * matrix.load_s)))
            yield from _at_load(matrix, (bare, linn), goods, schedule, load)


def _borne_line(how: str, bare: float, linn: float) -> Line:
    pairs = [Pair(bare / 1e3, linn / 1e3)]
    return line_of_pairs("matrix", f"Latency, messages at 100 % load, {how}", None, pairs, "krecords/s")


def _at_load(
    matrix: MatrixPlan, sides: Sequence[Target], goods: Shipment, schedule: Schedule, load: float
) -> Iterator[Line]:
    """Measure the percentiles, over all rounds' messages together."""
    waits: list[list[list[float]]] = [[[], []], [[], []]]
    for _ in range(matrix.load_rounds):
        for side, target in enumerate(sides):
            confirmed, delivered = trio.run(waited, target, goods, schedule)
            waits[side][0] += confirmed
            waits[side][1] += delivered
    for place, until in enumerate(("confirmed", "delivered")):
        bare, linn = sorted(waits[0][place]), sorted(waits[1][place])
        for percent in PERCENTILES:
            yield _line(load, until, percent, percentile(bare, percent) * 1e3, percentile(linn, percent) * 1e3)


def _line(load: float, until: str, percent: float, bare_ms: float, linn_ms: float) -> Line:
    line = Line("matrix", f"Latency at {load:.0%} load, {until}, p{percent:g}", "ms", None, [linn_ms])
    line.floor, line.linn, line.detail_unit = bare_ms, linn_ms, "ms"
    line.mark = Mark("latency", f"{until} p{percent:g}", f"{load * 100:g} %")
    return line
