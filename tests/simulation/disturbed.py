"""Failures that belong to no message: a world of arrows in which anything may also fail at any time.

Power losses in the middle of a disk operation, failed syncs, a full and a slow disk, cut and severed networks, jumps of
the wall clock, orderly stops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio
from arrow_world import ArrowWorld

HOUR_MS = 3_600_000


class Disturbed(ArrowWorld):
    """A world in which a seed's disturbances come about, a few seconds apart at most."""

    links: Sequence[tuple[str, str]]
    """Machines between which the network may fail."""

    def choose_disturbances(self) -> None:
        """Choose those of the seed."""
        self.disturbances = self.rng.choices(DISTURBANCES, k=self.rng.choice([2, 4, 8]))

    async def make_disturbances(self) -> None:
        """Make what the seed has planned, one after the other and sometimes on top of one another."""
        async with trio.open_nursery() as nursery:
            for disturbance in self.disturbances:
                await trio.sleep(self.rng.choice([0.02, 0.1, 0.3, 1.0]))
                nursery.start_soon(disturbance, self)

    # --- the broker ends ---

    async def die_in_an_operation(self) -> None:
        disk = self.broker.disk
        disk.crash_at = len(disk.operations) + self.rng.randint(0, 25)

    async def fail_a_sync(self) -> None:
        disk = self.broker.disk
        disk.fail_sync_at = disk.sync_count + self.rng.randint(0, 10)

    async def stop(self) -> None:
        self.running.stop()

    async def kill_the_broker(self) -> None:
        self.kill("kill the broker")

    async def lose_power(self) -> None:
        self.kill("lose power")

    async def kill_a_client(self) -> None:
        self.kill("kill the client")

    # --- it lives on ---

    async def have_no_room(self) -> None:
        self.kill("fill the disk")

    async def slow_down(self) -> None:
        self.broker.disk.sync_delay_s_max = 0.4
        await trio.sleep(self.rng.uniform(0.1, 2))
        self.broker.disk.sync_delay_s_max = self.sync_delay_s

    async def cut(self) -> None:
        link = self.rng.choice(self.links)
        self.broker.world.cut(*link)
        await trio.sleep(self.rng.uniform(0.05, 12))
        self.broker.world.heal(*link)

    async def cut_one_way(self) -> None:
        one, other = self.rng.choice(self.links)
        pair = (one, other) if self.rng.random() < 0.5 else (other, one)
        self.broker.world.cut_one_way(*pair)
        await trio.sleep(self.rng.uniform(0.05, 12))
        self.broker.world.heal(one, other)

    async def sever(self) -> None:
        self.broker.world.sever(*self.rng.choice(self.links))

    async def jump(self) -> None:
        self.broker.clock.jump(self.rng.choice([-24, -1, 1, 24 * 400]) * HOUR_MS)


DISTURBANCES: list[Callable[[Disturbed], Awaitable[None]]] = [
    Disturbed.die_in_an_operation,
    Disturbed.die_in_an_operation,
    Disturbed.fail_a_sync,
    Disturbed.stop,
    Disturbed.kill_the_broker,
    Disturbed.lose_power,
    Disturbed.kill_a_client,
    Disturbed.kill_a_client,
    Disturbed.have_no_room,
    Disturbed.slow_down,
    Disturbed.cut,
    Disturbed.cut_one_way,
    Disturbed.sever,
    Disturbed.jump,
]
