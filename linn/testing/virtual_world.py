"""VirtualWorld: a broker and clients in simulated time, on a simulated network and disk, in the test's own trio loop.

Laws: no real time passes in a wait; everything follows from the seed. Leaving the block stops the broker in order. Make
clients with `connect`, or give them `env`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import trio
import trio.testing

from linn.client import Client, Message, Password, Receipt, connect
from linn.core.broker.broker import Broker, running_broker
from linn.core.errors.group import raise_once
from linn.core.errors.tree import ConnectionLost, RequestTimeout
from linn.testing import broker_view
from linn.testing.advance import Advance, seconds_of
from linn.testing.broker_setup import BrokerSetup, Tables
from linn.testing.deterministic import deterministic_schedule
from linn.testing.publishing import publish
from linn.testing.sim_env import SimClock, SimEnv
from linn.testing.sim_programs import SimPrograms

T = TypeVar("T")
ADDRESS = "127.0.0.1:5466"
WAIT_S = 3600.0
"""Default timeout, in virtual time, of a test's wait for its own code; a timeout takes no real time."""
_DATA = "/linn"
_FREE_BYTES = 1 << 40


class _BrokerClock(SimClock):
    """The broker's clock, which a test can advance."""

    def __init__(self, advance: Advance) -> None:
        super().__init__()
        self._advance = advance

    async def sleep(self, seconds: float) -> None:
        await super().sleep(self._advance.sleep_s(seconds, self))


def check_virtual() -> None:
    """Raise RuntimeError unless time is virtual."""
    with contextlib.suppress(RuntimeError):  # The loop is not trio's.
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, trio.testing.MockClock) and clock.autojump_threshold == 0:
            return
    raise RuntimeError("time is not virtual here: a trio test also asks for autojump_clock; others use run()")


class VirtualWorld:
    """A world for a test: `async with VirtualWorld(topics={...}) as world`, under trio's autojumping `MockClock`.

    Example:
        def test_a_job_comes_back_when_its_lease_ends():
            async def scenario(world):
                async with world.connect() as client, client.consumer("jobs") as consumer:
                    await world.publish("jobs", b"dig")
                    await anext(consumer)
                    await world.advance(hours=1)
                    assert (await anext(consumer)).attempt == 2

            VirtualWorld(topics={"jobs": {"kind": "queue", "lease": "1h"}}).run(scenario)
    """

    def __init__(
        self,
        config: str | Path | None = None,
        *,
        topics: Tables | None = None,
        exchanges: Tables | None = None,
        roles: Tables | None = None,
        users: Mapping[str, Sequence[str]] | None = None,
        seed: int = 0,
    ) -> None:
        """Prepare, but start nothing yet.

        Args:
            config, topics, exchanges, roles, users: as for `BrokerThread`.
            seed: determines the order of events, and the delays of the network.
        """
        self.setup = BrokerSetup(
            config=config,
            topics=topics or {},
            exchanges=exchanges or {},
            roles=roles or {},
            users=users or {},
        )
        self.seed = seed
        self.url = f"linn://{ADDRESS}"
        """URL of the broker, for clients whose `env` is this world's."""
        self._advance = Advance()
        self._broker_env = SimEnv(seed, name="broker")
        self._broker_env.clock = _BrokerClock(self._advance)
        self.env = SimEnv(seed, name="client", world=self._broker_env.world)
        """The world as clients see it: `linn.connect(world.url, env=world.env)`."""
        self._broker: Broker | None = None
        self._nursery: trio.Nursery
        self._running: AbstractAsyncContextManager[None] | None = None

    # --- life ---

    def run(self, scenario: Callable[[VirtualWorld], Awaitable[T]]) -> T:
        """Run `scenario(world)` in a trio loop of its own, with the broker running. Raises the scenario's errors."""

        async def main() -> T:
            async with self:
                return await scenario(self)

        with deterministic_schedule(self.seed):
            return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    async def __aenter__(self) -> VirtualWorld:
        """Start the broker. Raises ConfigError, PluginError; RuntimeError if time is not virtual."""
        check_virtual()
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop the broker. Raises the error that ended it before."""
        assert self._running is not None
        return await self._running.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        try:
            async with trio.open_nursery() as self._nursery:
                await self._start()
                yield
                if self._broker is not None:
                    self._broker.stop()
        except BaseExceptionGroup as group:
            raise_once(group)

    async def restart(self) -> None:
        """Start the broker again after `kill` or `lose_power`, on the rest of its disk."""
        assert self._broker is None, "it runs"
        await self._start()

    async def _start(self) -> None:
        if self._broker_env.is_dead:
            self._broker_env = self._broker_env.restart()
        await self._nursery.start(self._live)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        async def serve(env: SimEnv) -> None:
            config, plugins = self.setup.load(_DATA, ADDRESS)
            async with running_broker(config, env, plugins) as self._broker:
                task_status.started()
                await self._broker.wait_stopped()

        await self._broker_env.run_until_death(serve)

    @property
    def programs(self) -> SimPrograms:
        """The programs of the broker's machine, such as the drivers of Spark pipelines; they outlive `restart`."""
        return self._broker_env.programs

    # --- clients ---

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """Make a client in this world, with the options of `linn.connect`."""
        return connect(self.url, env=self.env, **options)

    def login(self, user: str) -> Password:
        """Return the login of a user: `world.connect(login=world.login("ann"))`. Raises ConfigError: no such user."""
        return self.setup.login(user)

    async def publish(self, topic: str, *values: bytes | None, **properties: Any) -> list[Receipt]:
        """Publish messages with the same properties. Takes and raises the same as `linn.client.Producer.publish`."""
        return await publish(self.url, topic, None, values, properties, self.env, None, self.setup.helper)

    async def publish_to(self, exchange: str, *values: bytes | None, **properties: Any) -> list[Receipt]:
        """Publish messages to an exchange, as `publish` does to a topic."""
        return await publish(self.url, None, exchange, values, properties, self.env, None, self.setup.helper)

    # --- time ---

    async def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Advance the time of the broker and all clients; timers fire in order.

        Raises ValueError for a negative time.
        """
        total_s = seconds_of(days, hours, minutes, seconds)
        check_virtual()
        await self._advance.run(total_s, self.env.clock)

    # --- faults ---

    def kill(self) -> None:
        """End the broker's process as SIGKILL does: its disk keeps all writes, memory is lost."""
        self._broker_env.kill()
        self._broker = None

    def lose_power(self) -> None:
        """Turn the broker's machine off: its disk keeps synced writes, and some of the others, chosen by the seed."""
        self._broker_env.crash()
        self._broker = None

    def cut_network(self) -> None:
        """Hold back everything between the broker and its clients, until `heal_network`."""
        self._broker_env.world.cut("broker", "client")

    def heal_network(self) -> None:
        """Let everything through that `cut_network` held back."""
        self._broker_env.world.heal("broker", "client")

    def fill_disk(self) -> None:
        """Leave no room on the broker's disk, until `free_disk`."""
        self._broker_env.disk.capacity_bytes = self._broker_env.disk.used_bytes

    def free_disk(self) -> None:
        """Make room again."""
        self._broker_env.disk.capacity_bytes = _FREE_BYTES

    # --- inspection and waits ---

    @property
    def broker(self) -> Broker:
        """The broker itself. Raises ConnectionLost while there is none."""
        if self._broker is None:
            raise ConnectionLost("the broker of this world is down: `async with` and restart() start it")
        return self._broker

    async def records(self, topic: str) -> list[Message]:
        """Return a topic's records, by partition and offset; of a queue, the unsettled ones. Raises TopicUnknown."""
        return await broker_view.records(self.broker, topic)

    def summary(self) -> str:
        """Describe each topic in a line: published, kept, unsettled, and so on. Shown when a test fails."""
        return broker_view.summary(self._broker) if self._broker is not None else "the broker is down"

    async def wait_records(self, topic: str, count: int, *, timeout_s: float = WAIT_S) -> list[Message]:
        """Wait until `count` messages were published to a topic since the start; returns `records(topic)`.

        Raises TopicUnknown, RequestTimeout.
        """
        what = f'{count} messages in "{topic}"'
        await self._within(timeout_s, what, broker_view.wait_records(self.broker, topic, count))
        return await self.records(topic)

    async def wait_settled(self, topic: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until every message of a queue is settled.

        Raises TopicUnknown, SubscriptionWrongKind, RequestTimeout.
        """
        await self._within(timeout_s, f'"{topic}" to be settled', broker_view.wait_settled(self.broker, topic))

    async def wait_committed(self, topic: str, group: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until a group has committed all records of a stream.

        Raises TopicUnknown, SubscriptionWrongKind, RequestTimeout.
        """
        what = f'group "{group}" to commit all of "{topic}"'
        await self._within(timeout_s, what, broker_view.wait_committed(self.broker, topic, group))

    async def _within(self, timeout_s: float, what: str, work: Awaitable[None]) -> None:
        with trio.move_on_after(timeout_s) as scope:
            await work
        if scope.cancelled_caught:
            raise RequestTimeout(f"waited {timeout_s:g} virtual s for {what}; there is:\n{self.summary()}")
