"""A simulated world in which single messages and log records of a protocol go wrong: one seed is one run.

Clients that may be killed and started again reach the broker through a proxy, which sees each message, and the broker's
logs tell of each record. At those that the seed names a side is killed, power is lost, the disk fills up, or the
message is lost, cut, stalled, sent twice, late, or over a connection whose client has gone on over another one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Protocol

import trio
from raw_client import ADDRESS, after_power_loss, broker_on

from linn.core.broker.broker import Broker
from linn.core.env.env import AcceptedStream, Stream
from linn.core.errors.tree import LinnError, SyncFailed
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, frames_of

PROXY = "127.0.0.1:6000"
DEATHS = ("kill the broker", "lose power", "kill the client")
Fault = tuple[str, str]
"""An arrow, and what happens to it."""
ROOM_BYTES = 1 << 30
DONE_S_MAX = 400.0
REQUEST_TIMEOUT_S = 2.0
OF_THE_PROXY = 1 << 40
"""Correlations from here on are those of copies: the client does not know them."""


def deaths_at(arrows: Iterable[str]) -> list[Fault]:
    """All deaths before and after each of some arrows."""
    return list(product(arrows, [f"{death} {when} it" for death in DEATHS for when in ("before", "after")]))


class Mortal(Protocol):
    """A client that may be killed."""

    env: SimEnv

    async def run(self) -> None: ...


class ArrowWorld:
    """The world of one seed. A protocol's own world says which messages and records are arrows."""

    faults_of_protocol: Sequence[Fault]
    rare: Sequence[str] = ()
    """Arrows of which a run has a few at most."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.seed = seed
        every = self.faults_of_protocol
        arrow, what = every[seed % len(every)]
        more = rng.choice([0, 1, 2, 4]) if seed >= len(every) else 0
        self.faults = Counter[tuple[str, int, str]]()
        for arrow_, what_ in [(arrow, what), *rng.choices(every, k=more)]:
            self.add_fault(arrow_, what_)
        self.sync_delay_s = 0.0
        self.seen = Counter[str]()
        self.made = Counter[Fault]()
        """The faults that came about."""
        self.untrue = ""
        """Something that the broker has told, and that was not so."""
        self.text = ""
        self.copies = 0
        self.is_full = 0
        """Number of faults that fill the disk now."""
        self.running: Broker
        self.clients: Sequence[Mortal]
        self.is_over = False

    def add_fault(self, arrow: str, what: str) -> None:
        """Have a fault come about at one of an arrow's first messages."""
        self.faults[arrow, self.rng.randrange(1 if arrow in self.rare else 8), what] += 1

    async def run(self, env: SimEnv) -> None:
        """Live until all work is done. Raises AssertionError with a promise that was broken."""
        self.probe = env
        self.broker = SimEnv(self.seed, name="broker", world=env.world)
        self.clients = self.make_clients()
        proxy = SimEnv(self.seed, name="proxy", world=env.world)
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            await nursery.start(self._serve)
            await self.set_up()
            nursery.start_soon(self._proxy, proxy)
            for client in self.clients:
                nursery.start_soon(client.run)
            nursery.start_soon(self.disturb)
            with trio.fail_after(DONE_S_MAX):
                await self.work()
            self.is_over = True
            await self.check()
            nursery.cancel_scope.cancel()

    # --- a protocol's own ---

    def make_clients(self) -> Sequence[Mortal]:
        """The clients, whose machines are in `self.probe.world`."""
        raise NotImplementedError

    async def set_up(self) -> None:
        """Prepare the first broker."""

    def look_at(self, broker: Broker) -> None:
        """Look at a broker that has just started, and watch its logs."""

    async def disturb(self) -> None:
        """Make faults that belong to no message."""

    async def work(self) -> None:
        """Give the clients work, and wait until it is done."""
        raise NotImplementedError

    async def check(self) -> None:
        """Check the result. Raises AssertionError."""
        raise NotImplementedError

    def request_arrow(self, event: Event) -> str:
        """The arrow that a request is; "" if it is none."""
        raise NotImplementedError

    def answer_arrow(self, event: Event, asked: str) -> str:
        """The arrow that a message of the broker is, which answers the arrow `asked`; "" if it is none."""
        raise NotImplementedError

    def told(self, message: m.Message) -> None:
        """Record what a client was told."""

    def do_else(self, what: str) -> None:
        """Make a fault of the protocol's own."""
        raise NotImplementedError

    # --- the broker ---

    async def _serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async def process(env: SimEnv) -> None:
            async with broker_on(env, self.text) as self.running:
                self.look_at(self.running)
                task_status.started()
                await self.running.wait_stopped()

        while True:
            self.broker.disk.sync_delay_s_max = self.sync_delay_s
            try:
                if not await self.broker.run_until_death(process):
                    self.broker.kill()  # What an ended process leaves open, the system closes.
            except* SyncFailed:
                self.broker.kill()
                self.broker = self.broker.restart()
                self.broker.crash()
            await trio.sleep(self.rng.choice([0.05, 0.5, 2.5]))
            task_status = trio.TASK_STATUS_IGNORED
            self.broker.disk.capacity_bytes = ROOM_BYTES  # Cutting a log needs some.
            self.broker = await after_power_loss(self.broker, self.text)
            self.broker.disk.capacity_bytes = self.broker.disk.used_bytes if self.is_full else ROOM_BYTES

    def watch(self, log: Any, method: str, arrows_of: Callable[..., Sequence[str]]) -> None:
        """Have faults come about before and after a call that logs something. `arrows_of` gets its arguments."""
        call = getattr(log, method)

        def watched(*arguments: Any, **named: Any) -> Any:
            faults = [fault for arrow in arrows_of(*arguments, **named) for fault in self.faults_of(arrow)]
            for what in faults:
                if not what.endswith("after it"):
                    self.kill(what)
            result = call(*arguments, **named)
            for what in faults:
                if what.endswith("after it"):
                    self.kill(what)
            return result

        setattr(log, method, watched)

    # --- faults ---

    def faults_of(self, arrow: str) -> list[str]:
        """The faults that the seed has for the message or record that comes now."""
        number = self.seen[arrow]
        self.seen[arrow] += 1
        found = [what for (name, nth, what) in self.faults if (name, nth) == (arrow, number)]
        self.made.update((arrow, what) for what in found)
        return [] if self.is_over else found

    def kill(self, what: str) -> None:
        """Have a side die, or its disk full for a while."""
        if what.startswith("fill the disk"):
            self.nursery.start_soon(self._fill_the_disk)
        elif what.startswith("kill the broker"):
            self.broker.kill()
        elif what.startswith("lose power"):
            self.broker.crash()
        elif what.startswith("kill the client"):
            self.rng.choice(self.clients).env.kill()
        else:
            self.do_else(what)

    async def _fill_the_disk(self) -> None:
        self.is_full += 1
        self.broker.disk.capacity_bytes = self.broker.disk.used_bytes
        await trio.sleep(self.rng.choice([0.3, 1.0, 4.0]))
        self.is_full -= 1
        self.broker.disk.capacity_bytes = ROOM_BYTES

    # --- the proxy ---

    async def _proxy(self, env: SimEnv) -> None:
        listener = await env.net.listen(PROXY)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._connect_through, env, await listener.accept(), nursery)

    async def _connect_through(self, env: SimEnv, client: AcceptedStream, nursery: trio.Nursery) -> None:
        try:
            broker = await env.net.connect(ADDRESS)
        except LinnError:
            await client.aclose()
            return
        connection = Proxied(self, client, broker)
        await connection.run()
        await client.aclose()
        if connection.held is None:
            await broker.aclose()
        else:
            nursery.start_soon(self._send_late, broker, connection.held)

    async def _send_late(self, broker: Stream, content: list[Any]) -> None:
        """Send a message that was held back while its client came back over another connection."""
        with suppress(LinnError, trio.BrokenResourceError):
            await trio.sleep(self.rng.choice([0.05, 0.5, 2.0, 6.0]))
            await broker.send(content)
            await trio.sleep(1)
        await broker.aclose()


class Proxied:
    """One connection of a client, through the proxy."""

    def __init__(self, world: ArrowWorld, client: AcceptedStream, broker: Stream) -> None:
        self._world = world
        self._client = client
        self._broker = broker
        self._asked: dict[int, str] = {}
        """The arrow of each request that is not answered."""
        self._scope = trio.CancelScope()
        self.held: list[Any] | None = None
        """A message that the broker shall get later."""

    async def run(self) -> None:
        """Pass on what comes until one side ends."""
        async with trio.open_nursery() as both:
            self._scope = both.cancel_scope
            both.start_soon(self._pass_on, self._client, self._broker, self._request_arrow, both)
            both.start_soon(self._pass_on, self._broker, self._client, self._answer_arrow, both)

    async def _pass_on(self, source: Any, target: Any, arrow_of: Callable[[Event], str], both: trio.Nursery) -> None:
        codec = Connection()
        codec.allow_frames(1 << 24)
        with suppress(LinnError, trio.BrokenResourceError):
            while count := await source.receive_into(codec.buffer()):
                for event in codec.received(count):
                    if event.correlation < OF_THE_PROXY:
                        await self._pass_one(event, arrow_of(event), target, both)
        self._scope.cancel()

    async def _pass_one(self, event: Event, arrow: str, target: Any, both: trio.Nursery) -> None:
        content = frames_of(event.message, event.correlation, event.batches)
        faults = self._world.faults_of(arrow) if arrow else []
        for what in faults:
            if not what.endswith("after it"):
                await self._spoil(what, event, content, target, both)
        await target.send(content)
        if target is self._client:
            self._world.told(event.message)
        for what in faults:
            if what.endswith("after it"):
                await trio.sleep(self._world.rng.choice([0, 0.0005, 0.002, 0.01]))
                self._world.kill(what)

    async def _spoil(self, what: str, event: Event, content: list[Any], target: Any, both: trio.Nursery) -> None:
        if what == "lose it":
            raise trio.BrokenResourceError
        if what == "cut it in the middle":
            whole = b"".join(content)
            await target.send([whole[: len(whole) // 2]])
            raise trio.BrokenResourceError
        if what == "stall it":
            await trio.sleep(self._world.rng.choice([1.1, 1.5, 3.0]) * REQUEST_TIMEOUT_S)
        elif what == "send it over a fenced connection":
            self.held = [b"".join(content)]
            raise trio.BrokenResourceError
        elif what.startswith("send it"):
            delay_s = 0.0 if what == "send it twice" else self._world.rng.choice([0.05, 0.3, 2.0, 6.0])
            both.start_soon(self._send_again, event, delay_s)
        else:
            self._world.kill(what)

    async def _send_again(self, event: Event, delay_s: float) -> None:
        self._world.copies += 1
        copy = b"".join(frames_of(event.message, OF_THE_PROXY + self._world.copies, event.batches))
        await trio.sleep(delay_s)
        with suppress(LinnError, trio.BrokenResourceError):
            await self._broker.send([copy])

    def _request_arrow(self, event: Event) -> str:
        arrow = self._world.request_arrow(event)
        if arrow and event.correlation:
            self._asked[event.correlation] = arrow
        return arrow

    def _answer_arrow(self, event: Event) -> str:
        asked = self._asked.pop(event.correlation, "")
        return self._world.answer_arrow(event, asked)
