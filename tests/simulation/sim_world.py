"""State shared by the clients of a simulation: the history, their machines, and the times to behave and to end."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio
from raw_client import RawClient, Refused
from sim_plan import ADDRESS, NODES, Plan

from linn.core.errors.tree import LinnError
from linn.testing.history import History
from linn.testing.sim_env import SimEnv

REQUEST_S_MAX = 60.0
"""Longer than any fault lasts: a request that is not answered by then never will be."""


class World:
    """Made once per run."""

    def __init__(self, plan: Plan, broker: SimEnv) -> None:
        self.plan = plan
        self.history = History(plan.promises(), broker.clock.monotonic)
        self.broker = broker
        """The Env of the broker's process of now."""
        self.nodes = {name: SimEnv(plan.seed, name=name, world=broker.world) for name in (*NODES, "probe")}
        self.is_closing = False
        """Producers have ended, and consumers settle whatever comes."""
        self.is_over = False
        self.life = 0

    def rng(self, actor: str) -> random.Random:
        """An actor's own, so that one more or less changes nothing for the others."""
        return random.Random(f"{self.plan.seed}/{actor}")

    async def connect(self, node: str) -> tuple[RawClient, int]:
        """A client that has said hello, and the broker's life. Raises LinnError, EOFError."""
        client = RawClient(await self.nodes[node].net.connect(ADDRESS))
        try:
            with trio.fail_after(REQUEST_S_MAX):
                welcome = await client.greet()
        except BaseException:
            await client.stream.aclose()
            raise
        return client, int(welcome.broker)

    async def keep_at(self, node: str, actor: str, work: Callable[[RawClient, int], Awaitable[None]]) -> None:
        """Do work on one connection after another, until it returns or the run is over."""
        rng = self.rng(f"{actor}/connections")
        while not self.is_over:
            try:
                client, life = await self.connect(node)
            except (LinnError, EOFError, trio.TooSlowError):
                await trio.sleep(rng.uniform(0.01, 0.2))
                continue
            try:
                await work(client, life)
                return
            except (LinnError, EOFError, Refused, trio.TooSlowError) as error:
                check_foreseen(error)
            finally:
                client.stream.close()  # type: ignore[attr-defined]
            await trio.sleep(rng.uniform(0.05, 0.4))


def check_foreseen(error: BaseException | str) -> None:
    """A refusal that says that the broker has a bug is one."""
    code = error if isinstance(error, str) else getattr(error, "code", "")
    if code == "linn.internal":
        raise AssertionError("the broker failed to carry out a request, which it did not foresee")
