"""Leaders: a client's connections to the brokers that lead its topics, beside the one to the broker at hand.

Descriptions of topics say who leads them. That is advice: whatever is sent to another broker is passed on to the
leader, so that a leader that can't be reached is served through the broker at hand, and old news does no harm.

Laws: of two leaders of a topic the one with the later epoch counts. There is at most one connection to a broker, and
one attempt at a time to make it. A connection counts only if it has reached the broker that was named, of the same
cluster. It is not made again by itself when it is lost, but when the next description names that broker. An attempt
that failed is repeated after a rest, as long as that broker leads a topic with a producer or a consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from linn.client.connection.connection import Connection
from linn.client.connection.url import BrokerUrl, place_of
from linn.core.env.env import Clock
from linn.core.errors.tree import ConnectFailed, LinnError
from linn.wire.messages import Description, TopicInfo

REACH_S = 1.0
"""Longest wait of a producer or a consumer for the leader: then it begins at the broker at hand."""
REST_S = 5.0
REST_S_MAX = 60.0
"""Longest time for which a broker that could not be reached is not tried again; it doubles with each failure."""
KEEPALIVE_S = 1.0
"""Longest interval of signs of life where there is another broker to go to: one that is frozen is lost after three of
these, before a publish fails."""
TOPICS_MAX = 1_024
"""Topics without a producer or a consumer whose leader is remembered, for fetches."""

logger = logging.getLogger("linn.client")

Moved = Callable[[], None]
"""Called when the connection to a topic's leader may be another one, or is lost."""
AtHand = Callable[[], Connection | None]


class Led(NamedTuple):
    """A topic's leader, as a description named it."""

    topic_id: tuple[int, int]
    epoch: int
    node: int


UNKNOWN = Led((0, 0), 0, 0)


class Leaders:
    """The leaders of one client's topics."""

    def __init__(
        self, open_at: Callable[[BrokerUrl], Awaitable[Connection]], at_hand: AtHand, clock: Clock, tasks: TaskGroup
    ) -> None:
        """`open_at` connects to an address and is welcomed; `at_hand` returns the connection to the broker at hand."""
        self._open_at = open_at
        self._at_hand = at_hand
        self._clock = clock
        self._tasks = tasks
        self._led: dict[str, Led] = {}
        """By topic, the latest last."""
        self._watchers: dict[str, dict[Moved, None]] = {}
        """By topic."""
        self._addresses: dict[int, str] = {}
        self._connections: dict[int, Connection] = {}
        self._opening: dict[int, anyio.Event] = {}
        self._tried: set[int] = set()
        """Nodes with a connection, with an attempt under way, or resting after one."""
        self._rests: dict[int, float] = {}
        """Pauses of brokers that could not be reached, by node."""

    # --- what is known ---

    @property
    def is_needed(self) -> bool:
        """Whether the broker at hand is one of several."""
        hand = self._at_hand()
        return hand is not None and hand.welcome.node > 0

    def knows(self, topic: str) -> bool:
        """Whether a description has named the topic's leader."""
        return topic in self._led

    def epoch(self, topic: str) -> int:
        """The epoch of the topic's leader; 0: unknown."""
        return self._led.get(topic, UNKNOWN).epoch

    def is_stray(self, topic: str, connection: Connection, epoch: int) -> bool:
        """Whether what goes over a connection is passed on to the topic's leader, which leads in `epoch` at least."""
        led = self._led.get(topic, UNKNOWN)
        return connection.welcome.node > 0 and (led.node != connection.welcome.node or led.epoch < epoch)

    def at(self, topic: str) -> Connection | None:
        """Return the connection to the topic's leader, if there is one; None: use the broker at hand."""
        connection = self._connections.get(self._led.get(topic, UNKNOWN).node)
        return connection if connection is not None and not connection.is_ending else None

    def told(self, description: Description, *, is_asked: bool = True) -> None:
        """Take the leaders of a description, and connect to the brokers.

        `is_asked`: all of its topics were named, not only watched ones.
        """
        if not self.is_needed:
            return
        self._addresses = {node.id: node.address for node in description.nodes}
        for info in description.topics:
            if info.partitions and (is_asked or info.name in self._watchers):
                self._take(info)

    def _take(self, info: TopicInfo) -> None:
        told = info.partitions[0]
        led, known = Led((info.id_high, info.id_low), told.leader_epoch, told.leader), self._led.get(info.name)
        if known is not None and known.topic_id == led.topic_id and known.epoch > led.epoch:
            return
        self._led.pop(info.name, None)
        self._led[info.name] = led
        self._forget_some()
        self._connect(led.node)
        if known is not None and known.node != led.node:
            self._tell(info.name)

    def _forget_some(self) -> None:
        if len(self._led) > TOPICS_MAX + len(self._watchers):
            for name in [name for name in self._led if name not in self._watchers][: TOPICS_MAX // 2]:
                del self._led[name]

    # --- who wants to know ---

    def watch(self, topic: str, moved: Moved) -> None:
        """Call `moved` from now on."""
        self._watchers.setdefault(topic, {})[moved] = None

    def unwatch(self, topic: str, moved: Moved) -> None:
        """Stop calling it. Idempotent."""
        watchers = self._watchers.get(topic, {})
        watchers.pop(moved, None)
        if not watchers:
            self._watchers.pop(topic, None)

    def _tell(self, topic: str) -> None:
        for moved in list(self._watchers.get(topic, ())):
            moved()

    def _tell_of(self, node: int) -> None:
        for topic in self._led_by(node):
            self._tell(topic)

    def _led_by(self, node: int) -> list[str]:
        """Return the watched topics that a node leads."""
        return [topic for topic in self._watchers if self._led.get(topic, UNKNOWN).node == node]

    # --- connections ---

    async def reach(self, topic: str) -> None:
        """Wait for an attempt to connect to the topic's leader that is under way, at most `REACH_S`."""
        opening = self._opening.get(self._led.get(topic, UNKNOWN).node)
        if opening is not None:
            with anyio.move_on_after(REACH_S):
                await opening.wait()

    def _connect(self, node: int) -> None:
        """Connect to a broker, in a task, unless there is a connection or a reason not to."""
        hand = self._at_hand()
        if hand is None or node in (0, hand.welcome.node) or node not in self._addresses:
            return
        if node not in self._tried:
            self._tried.add(node)
            self._opening[node] = anyio.Event()
            self._tasks.start_soon(self._keep, node, self._addresses[node], hand)

    async def _keep(self, node: int, address: str, hand: Connection) -> None:
        """Connect, and stay connected until the connection is lost."""
        connection = await self._try(node, address, hand)
        if connection is None:
            await self._clock.sleep(self._rests[node])
        else:
            try:
                self._tell_of(node)
                await connection.run()
            finally:
                del self._connections[node]
        self._tried.remove(node)
        self._tell_of(node)
        if connection is None and any(self._led_by(node)):
            self._connect(node)

    async def _try(self, node: int, address: str, hand: Connection) -> Connection | None:
        try:
            connection = await self._opened(node, address, hand)
        except LinnError as error:
            if node not in self._rests:
                text = "broker %(node)d can't be reached, its topics are used through %(broker)s: %(error)s"
                about = {"node": node, "broker": hand.welcome.broker, "error": error.text, "code": error.code}
                logger.warning(text, about)
            self._rests[node] = min(2 * self._rests.get(node, REST_S / 2), REST_S_MAX)
            return None
        finally:
            self._opening.pop(node).set()
        self._rests.pop(node, None)
        self._connections[node] = connection
        return connection

    async def _opened(self, node: int, address: str, hand: Connection) -> Connection:
        """Connect to a node. Raises LinnError: it can't be reached, or another broker answers there."""
        connection = await self._open_at(place_of(address, is_tls=hand.is_tls))
        found = connection.welcome
        if (found.cluster, found.node) != (hand.welcome.cluster, node):
            await connection.aclose()
            raise ConnectFailed(f"another broker answers at {address}")
        connection.keepalive_s_max = KEEPALIVE_S
        return connection

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in list(self._connections.values()):
            await connection.aclose()
