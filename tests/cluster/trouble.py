"""Trouble of a cluster in simulation: faults of brokers, of their machines, of links, and of the metadata store.

Laws: a fault lasts for some seconds, then it is mended. No fault takes what the cluster does not promise to keep: a
disk, or what was not synced, is lost only where each topic of the broker has another in-sync member with another
leader, and only while no earlier loss is unhandled.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import trio
from broker_world import BrokerWorld, SimBroker
from raw_client import Refused
from sim_store import SimWrite

from linn.core.errors.tree import LinnError

Mend = Callable[[], None]
CLOCK_JUMPS_MS = (-86_400_000, -4_000, 4_000, 86_400_000)
DRIFT_MAX = 0.1
"""Greatest share by which a clock runs fast or slow: far more than a real one, and less than a lease allows for."""
GIVEN_UP_S = 15.0
"""Time in which a dead broker's topics have other leaders, if they can."""
FREE_BYTES = 1 << 40
OPERATION_S = 20.0
"""Longest time for an operation of the cluster: the store may be away."""


def mend_nothing() -> None:
    """Mend nothing."""


class Trouble:
    """Faults at random times at the brokers of one world. Several `run` may go on at once: each takes other brokers."""

    def __init__(
        self,
        world: BrokerWorld,
        brokers: Sequence[SimBroker],
        rng: random.Random,
        *,
        is_synced: bool = False,
        pause_s: float = 3.0,
        hold_s: float = 9.0,
    ) -> None:
        """`is_synced`: all logs are synced before a record counts. `pause_s`, `hold_s`: longest time before a fault,
        and until it is mended."""
        self.said: list[str] = []
        """The faults so far."""
        self._world = world
        self._brokers = brokers
        self._rng = rng
        self._is_synced = is_synced
        self._pause_s, self._hold_s = pause_s, hold_s
        self._taken: list[SimBroker] = []
        self._lossy: list[SimBroker] = []
        """Brokers whose loss may be unhandled."""

    async def run(self, faults: Sequence[Fault], count: int) -> None:
        """Cause so many faults, one after the other, each at a broker that has no other trouble."""
        rng = self._rng
        for _ in range(count):
            await trio.sleep(rng.uniform(0, self._pause_s))
            fault, broker = rng.choice(faults), rng.choice(self._free())
            self._taken.append(broker)
            self.said.append(f"{trio.current_time():.1f} {fault.__name__} {broker.number}")
            mend = await fault(self, broker)
            await trio.sleep(rng.uniform(0, self._hold_s))
            mend()
            if broker.has_ended:
                await broker.start()
            self._taken.remove(broker)

    def _free(self) -> list[SimBroker]:
        return [it for it in self._brokers if it not in self._taken]

    def _other(self, broker: SimBroker) -> str:
        return self._rng.choice([it.env.name for it in self._brokers if it is not broker])

    # --- the metadata store ------------------------------------------------------------------------------------------

    async def store_stops(self, broker: SimBroker) -> Mend:
        """Stop the store."""
        self._world.store.stop()
        return self._world.store.start

    async def store_is_cut(self, broker: SimBroker) -> Mend:
        """Cut a broker from the store, in one direction or both."""
        self._world.store.cut(broker.env.name, requests=self._rng.random() < 0.5, answers=True)
        return partial(self._world.store.heal, broker.env.name)

    async def all_leases_end(self, broker: SimBroker) -> Mend:
        """End all leases of the store at once."""
        self._world.store.end_all_leases()
        return mend_nothing

    async def leases_end(self, broker: SimBroker) -> Mend:
        """End a broker's leases, though it renews them."""
        self._world.store.end_leases(broker.env.name)
        return mend_nothing

    async def watches_end(self, broker: SimBroker) -> Mend:
        """End all watches of the store."""
        self._world.store.lose_watches()
        return mend_nothing

    async def watches_are_slow(self, broker: SimBroker) -> Mend:
        """Let a broker see changes of the store late."""
        self._world.store.slow_watches(broker.env.name, (0.0, 5.0))
        return partial(self._world.store.slow_watches, broker.env.name, (0.0, 0.01))

    async def store_is_slow(self, broker: SimBroker) -> Mend:
        """Let a broker's requests to the store take long."""
        self._world.store.slow(broker.env.name, (0.0, 1.0))
        return partial(self._world.store.slow, broker.env.name, self._world.store.delay_s)

    # --- processes ---------------------------------------------------------------------------------------------------

    async def is_killed(self, broker: SimBroker) -> Mend:
        """Kill a process."""
        broker.env.kill()
        await broker.ended()
        return mend_nothing

    async def is_stopped(self, broker: SimBroker) -> Mend:
        """Stop a process in order."""
        await broker.stop()
        return mend_nothing

    async def restart_all(self, broker: SimBroker) -> Mend:
        """Stop and start all brokers, one after the other, as an upgrade does."""
        self._taken.remove(broker)
        for each in self._brokers:
            if each not in self._taken:
                self._taken.append(each)
                await each.stop()
                await trio.sleep(self._rng.uniform(0, 1))
                await each.start()
                self._taken.remove(each)
                await trio.sleep(self._rng.uniform(0, 4))
        while broker in self._taken:
            await trio.sleep(1)
        self._taken.append(broker)
        return mend_nothing

    async def controller_dies_between_writes(self, broker: SimBroker) -> Mend:
        """Kill a broker, and the controller after its first write about that."""
        store = self._world.store
        entry = store.content().get("controller")
        controllers = [it for it in self._brokers if entry is not None and it.number == entry.value["node"]]

        def kill_writer(write: SimWrite) -> None:
            for controller in controllers:
                if write.node == controller.env.name and any(key.startswith("parts/") for key in write.changes):
                    controller.env.kill()
                    store.on_write = None

        if not controllers or (controllers[0] is not broker and controllers[0] in self._taken):
            return mend_nothing
        store.on_write = kill_writer
        if controllers[0] is not broker:
            self._taken.append(controllers[0])
            broker.env.kill()
            await broker.ended()
        store.end_leases(broker.env.name)
        with trio.move_on_after(2 * self._hold_s):
            await controllers[0].ended()
        store.on_write = None
        if controllers[0] is not broker:
            if controllers[0].has_ended:
                await controllers[0].start()
            self._taken.remove(controllers[0])
        return mend_nothing

    # --- machines ----------------------------------------------------------------------------------------------------

    async def loses_power(self, broker: SimBroker) -> Mend:
        """Turn a machine off. Where records count before they are synced, only if others have them."""
        if self._is_synced or await self._may_lose(broker):
            await broker.lose_power()
        return mend_nothing

    async def loses_disk(self, broker: SimBroker) -> Mend:
        """Give a machine an empty disk, if others have what was on the old one."""
        if await self._may_lose(broker):
            broker.replace_disk()
        return mend_nothing

    async def disk_is_full(self, broker: SimBroker) -> Mend:
        """Leave little or no room on a disk."""
        disk = broker.env.disk
        disk.capacity_bytes = disk.used_bytes + self._rng.choice([0, 0, 1_000, 20_000])

        def free() -> None:
            disk.capacity_bytes = FREE_BYTES

        return free

    async def clock_jumps(self, broker: SimBroker) -> Mend:
        """Set a wall clock forward or back, for some time."""
        ms = self._rng.choice(CLOCK_JUMPS_MS)
        broker.env.clock.jump(ms)
        return partial(broker.env.clock.jump, -ms)

    async def clock_drifts(self, broker: SimBroker) -> Mend:
        """Let a machine's clocks run fast or slow, from now on."""
        speed = 1 + self._rng.uniform(-DRIFT_MAX, DRIFT_MAX)
        broker.env.clock.drift(speed)
        self._world.store.drift(broker.env.name, 1 / speed)
        return mend_nothing

    async def _may_lose(self, broker: SimBroker) -> bool:
        """Kill a broker; return whether all that its disk has, or has not synced, is confirmed by others as well."""
        broker.env.kill()
        await broker.ended()
        self._lossy = [it for it in self._lossy if not self._is_handled(it)]
        if self._lossy:
            return False
        self._lossy.append(broker)  # Now: another fault of this kind has to wait.
        with trio.move_on_after(GIVEN_UP_S):
            while not self._is_left(broker):
                await trio.sleep(0.5)
            return True
        self._lossy.remove(broker)
        return False

    def _is_left(self, broker: SimBroker) -> bool:
        """Whether a broker was given up, and leads nothing; each topic has another in-sync member."""
        content = self._world.store.content()
        parts = [it.value for key, it in content.items() if key.startswith("parts/")]
        is_alone = any(part["isr"] == [broker.number] or part["leader"] == broker.number for part in parts)
        return f"sessions/{broker.number}" not in content and not is_alone

    def _is_handled(self, broker: SimBroker) -> bool:
        content = self._world.store.content()
        node, session = content.get(f"nodes/{broker.number}"), content.get(f"sessions/{broker.number}")
        if node is None or session is None or broker.has_ended:
            return False
        return bool(session.value["lost"] == "none" or node.value.get("handled") == session.value["session"])

    # --- links -------------------------------------------------------------------------------------------------------

    async def link_is_cut(self, broker: SimBroker) -> Mend:
        """Cut two brokers from each other."""
        other = self._other(broker)
        self._world.env.world.cut(broker.env.name, other)
        return partial(self._world.env.world.heal, broker.env.name, other)

    async def link_is_cut_one_way(self, broker: SimBroker) -> Mend:
        """Hold back what one broker sends to another, or to all."""
        others = [self._other(broker)]
        if self._rng.random() < 0.3:
            others = [it.env.name for it in self._brokers if it is not broker]
        for other in others:
            self._world.env.world.cut_one_way(broker.env.name, other)

        def heal() -> None:
            for other in others:
                self._world.env.world.heal(broker.env.name, other)

        return heal

    async def link_is_slow(self, broker: SimBroker) -> Mend:
        """Slow a link down, in time or in throughput."""
        net, link = self._world.env.world, (broker.env.name, self._other(broker))
        delay_s, bytes_per_s = self._rng.choice([((0.0, 0.5), 1e6), ((1.0, 3.0), 1e6), ((0.0, 0.01), 5_000.0)])
        net.slow(*link, delay_s=delay_s, bytes_per_s=bytes_per_s)
        return partial(net.slow, *link, delay_s=(0.0, 0.002))

    async def links_break(self, broker: SimBroker) -> Mend:
        """Reset the connections of a broker to the others."""
        for other in self._brokers:
            if other is not broker:
                self._world.env.world.sever(broker.env.name, other.env.name)
        return mend_nothing

    async def is_isolated(self, broker: SimBroker) -> Mend:
        """Cut a broker from the store and from all others, but not from its clients."""
        self._world.store.cut(broker.env.name)
        for other in self._brokers:
            if other is not broker:
                self._world.env.world.cut(broker.env.name, other.env.name)

        def heal() -> None:
            self._world.store.heal(broker.env.name)
            for other in [self._world, *self._brokers]:
                self._world.env.world.heal(broker.env.name, other.env.name)

        return heal

    async def hears_nothing(self, broker: SimBroker) -> Mend:
        """Do the same, and hold back the requests of its clients, as if the process were stopped for a while."""
        heal = await self.is_isolated(broker)
        self._world.env.world.cut_one_way(self._world.env.name, broker.env.name)
        return heal

    # --- operators ---------------------------------------------------------------------------------------------------

    async def topic_moves(self, broker: SimBroker) -> Mend:
        """Move a topic to other nodes, or another order of them; perhaps go back before it is there."""
        topic = self._rng.choice(sorted(broker.broker.topics) or ["none"])
        count = len(self._part(topic)["replicas"])
        nodes = self._rng.sample([it.number for it in self._brokers], min(count, len(self._brokers)))
        await self._operate(broker, "cluster.reassign", topic=topic, nodes=nodes)
        if self._rng.random() < 0.3:
            await trio.sleep(self._rng.uniform(0, 2))
            await self._operate(broker, "cluster.cancel", topic=topic)
        return mend_nothing

    async def node_drains(self, broker: SimBroker) -> Mend:
        """Drain a node for some time, if it may."""
        await self._operate(broker, "cluster.drain", node=broker.number)

        def undrain() -> None:
            self._world.nursery.start_soon(partial(self._undrain, broker))

        return undrain

    async def _undrain(self, broker: SimBroker) -> None:
        while self._world.store.content()[f"nodes/{broker.number}"].value.get("draining"):
            at = self._rng.choice([it for it in self._brokers if not it.has_ended] or [broker])
            await self._operate(at, "cluster.undrain", node=broker.number)
            await trio.sleep(1)

    async def _operate(self, broker: SimBroker, verb: str, **asked: object) -> None:
        """Ask a broker, which may refuse, fail or not answer."""
        with trio.move_on_after(OPERATION_S), suppress(Refused, LinnError, trio.BrokenResourceError, EOFError, OSError):
            await (await broker.client()).administer(verb, **asked)

    def _part(self, topic: str) -> Mapping[str, Any]:
        """The entry of a topic in the store."""
        content = self._world.store.content()
        entry = content.get(f"topics/{topic}")
        found = content.get(f"parts/{entry.value['id']}/0") if entry is not None else None
        return found.value if found is not None else {"replicas": [1]}


Fault = Callable[[Trouble, SimBroker], Awaitable[Mend]]

OF_STORE: tuple[Fault, ...] = (
    Trouble.store_stops,
    Trouble.store_is_cut,
    Trouble.store_is_slow,
    Trouble.all_leases_end,
    Trouble.leases_end,
    Trouble.watches_end,
    Trouble.watches_are_slow,
)
OF_PROCESSES: tuple[Fault, ...] = (
    Trouble.is_killed,
    Trouble.is_killed,
    Trouble.is_stopped,
    Trouble.restart_all,
    Trouble.controller_dies_between_writes,
)
OF_MACHINES: tuple[Fault, ...] = (
    Trouble.loses_power,
    Trouble.loses_disk,
    Trouble.disk_is_full,
    Trouble.clock_jumps,
    Trouble.clock_drifts,
)
OF_LINKS: tuple[Fault, ...] = (
    Trouble.link_is_cut,
    Trouble.link_is_cut_one_way,
    Trouble.link_is_slow,
    Trouble.links_break,
)
OF_OPERATORS: tuple[Fault, ...] = (
    Trouble.topic_moves,
    Trouble.topic_moves,
    Trouble.topic_moves,
    Trouble.node_drains,
)
ALL_FAULTS = (*OF_STORE, *OF_PROCESSES, *OF_MACHINES, *OF_LINKS, *OF_OPERATORS)


def run_named(run_seed: Callable[[int], object]) -> None:
    """Run the seeds that the command line names, and say how long each took."""
    for text in sys.argv[1:]:
        began_s = time.process_time()
        done = run_seed(int(text))
        print(f"{text}: {time.process_time() - began_s:.2f} s, {done}", flush=True)
