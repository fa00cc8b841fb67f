"""A lane on the side that serves it: a session for the principal of a connection elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from linn.cluster.channel import Channel
from linn.cluster.lane_output import LaneOutput
from linn.cluster.served_copies import ServedCopies
from linn.cluster.served_follower import FollowerNode, ServedFollower
from linn.cluster.served_transactions import ServedTransactions
from linn.cluster.window import LANE_BYTES_MAX, LANE_REQUESTS_MAX, OPEN_CHARACTERS_MAX, Window, counts_in_link
from linn.core.env.file_region import Sendable
from linn.core.errors.auth import Forbidden
from linn.core.errors.tree import BrokerStopping, LinnError, ProtocolError, RequestUnknown
from linn.core.gateway.gateway import Gateway
from linn.core.ports.principal import Principal
from linn.core.security.users import node_user
from linn.protocols.capnp.administering import Administering
from linn.protocols.capnp.publishing import Publishing
from linn.protocols.capnp.reading import Reading
from linn.protocols.capnp.responder import Responder
from linn.protocols.capnp.subscribing import Subscribing
from linn.protocols.capnp.transacting import Transacting
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of

HOLDING_POLL_S = 0.05
"""Interval at which a client that leaves is asked whether it holds leases."""


class ServedLane:
    """One lane: a session whose requests and answers go through the link."""

    def __init__(
        self,
        gateway: Gateway,
        channel: Channel,
        number: int,
        opened: m.OpenLane,
        who: FollowerNode,
        answered: Callable[[int], None],
    ) -> None:
        """
        Args:
            who: the broker that has opened it.
            answered: called with the size of each request that has got its answer and counts in the link's window.

        Raises ProtocolError: the texts are too long.
        """
        texts = opened.connection, opened.client, opened.user, opened.login, *opened.roles
        if sum(map(len, texts)) > OPEN_CHARACTERS_MAX:
            raise ProtocolError(f"a lane is opened with more than {OPEN_CHARACTERS_MAX:,} characters")
        self._number = number
        self._gateway = gateway
        self._channel = channel
        self.window = Window(LANE_REQUESTS_MAX, LANE_BYTES_MAX)
        """Its requests without an answer."""
        self._sizes: dict[int, tuple[int, bool]] = {}
        """Requests without an answer, by correlation: the size of each, and whether it counts in the link's window."""
        self._answered = answered
        self._waiting: deque[Event] = deque()
        """Requests that wait for the task of the lane to begin, or for settlements that are carried out in turns."""
        self._has_begun = False
        self._consumes: bool | None = None
        """Whether it is the lane of a consumer, as its first request tells; None: there was none."""
        self._closed = trio.Event()
        principal = Principal(
            opened.connection, opened.client, opened.user, login=opened.login, roles=tuple(opened.roles)
        )
        self._output = LaneOutput(channel, number)
        self._responder = _LaneResponder(gateway, self._output, opened.connection)
        self._responder.on_answer, self._responder.on_change = self._give_back, self._go_on
        self._responder.session = gateway.session(principal)
        self._responder.session.forwards = False
        self._producers = opened.producers
        self._subscribing = Subscribing(self._responder)
        self._administering = Administering(self._responder, self._subscribing, list)
        self._publishing = Publishing(self._responder, self._subscribing)
        self._follower = ServedFollower(self._responder, channel, who)
        self._reading = Reading(self._responder)
        self._transacting = Transacting(self._responder, self._subscribing)
        self._copies: ServedCopies | None = None
        """Set in a lane of the other broker itself: its publishes are copies of dead letters."""
        self._transactions: ServedTransactions | None = None
        """Set in such a lane, too."""
        if opened.user == node_user(who.node):
            self._copies = ServedCopies(self._responder, gateway, who)
            self._transactions = ServedTransactions(self._responder, gateway)

    async def run(self) -> None:
        """Carry out requests until the lane is closed, and tell the other side that it has ended.

        Cancellation: a change that has begun is completed.
        """
        try:
            async with trio.open_nursery() as self._responder.nursery:
                self._has_begun = True
                self._go_on()
                await self._closed.wait()
                self._responder.nursery.cancel_scope.cancel()
        finally:
            self._waiting.clear()
            self._publishing.close()
            self._subscribing.close()
            self._follower.leave()
            await self._responder.session.aclose()
            for correlation in list(self._sizes):
                self._give_back(correlation)
            self._channel.put([codec.put_in_lane(frames_of(m.CloseLane())[0], self._number)])

    def drain(self) -> None:
        """Answer requests that wait for records, and push no more."""
        self._reading.end_waits()
        self._subscribing.drain()

    def is_holding(self) -> bool:
        """Whether its consumer holds leases that its client can still settle."""
        return self._subscribing.is_holding()

    def close(self) -> None:
        """Let `run` end. Requests in progress get no answer."""
        self._closed.set()

    def handle(self, event: Event, size: int) -> None:
        """Begin a request. Raises ProtocolError: it is over the lane's window, wants no answer, or is in a lane of
        another kind."""
        if self._closed.is_set() or not event.correlation or event.correlation in self._sizes:
            raise ProtocolError("a request of a lane has a number of its own, and comes before the lane is closed")
        consumes = type(event.message) in CONSUMING
        if self._consumes is None:
            self._consumes = consumes
            is_fit = consumes == isinstance(event.message, m.Subscribe)
        else:
            is_fit = consumes == self._consumes and not isinstance(event.message, m.Subscribe)
        if not is_fit:
            raise ProtocolError(f"{type(event.message).__name__} in a lane that is for something else")
        if not self.window.has_room(size):
            raise ProtocolError(
                f"a lane has more than {LANE_REQUESTS_MAX} requests, or {LANE_BYTES_MAX:,} bytes of them"
            )
        self.window.take(size)
        self._sizes[event.correlation] = size, counts_in_link(event.message)
        self._waiting.append(event)
        self._go_on()

    def pong(self) -> None:
        """Take the answer to a ping. Raises ProtocolError: there was none."""
        self._output.pong()

    def _go_on(self) -> None:
        while self._waiting and self._has_begun and not self._subscribing.is_settling:
            self._begin(self._waiting.popleft())

    def _begin(self, event: Event) -> None:
        try:
            if isinstance(event.message, m.Replicate):  # Publishes in progress wait for acknowledgements.
                self._follower.replicate(event)
                return
            if self._consumes and not isinstance(event.message, m.Subscribe):  # A broker that stops lets them settle.
                CONSUMING[type(event.message)](self, event)
                return
            if self._gateway.connections.draining.is_set():
                raise BrokerStopping("the broker is stopping")
            if self._copies is not None and isinstance(event.message, m.Publish):
                self._copies.store(event)
            elif self._copies is not None and isinstance(event.message, m.FindOffset):
                self._copies.find_place(event)
            elif isinstance(event.message, m.Publish):
                for producer in self._producers:
                    self._responder.session.claim_producer_id(producer.producer_id, producer.producer_key)
                self._publishing.publish(event)
            elif isinstance(event.message, m.Administer):
                self._administering.administer(event)
            elif isinstance(event.message, m.Fetch):
                self._reading.fetch(event)
            elif isinstance(event.message, m.FindOffset):
                self._reading.find_offset(event)
            elif isinstance(event.message, m.Describe):
                self._administering.describe(event)
            elif isinstance(event.message, m.Follow):
                self._follower.follow(event)
            elif isinstance(event.message, m.Subscribe):
                self._subscribe(event)
            elif isinstance(event.message, m.JoinTransaction | m.MarkTransaction) and self._transactions is not None:
                self._transactions.begin(event)
            elif isinstance(event.message, m.OpenTransactions):
                self._transacting.open(event)
            elif isinstance(event.message, m.AddBranch):
                self._transacting.add_branch(event)
            elif isinstance(event.message, m.EndTransaction):
                self._transacting.end(event)
            else:
                raise RequestUnknown(f"{type(event.message).__name__} is not forwarded by this version")
        except LinnError as error:
            self._responder.fail(event.correlation, error)
        except Exception as error:
            self._responder.fail_unforeseen(event.correlation, error)

    def _subscribe(self, event: Event) -> None:
        self._output.pace()
        try:
            self._subscribing.subscribe(event)
        except Forbidden as error:
            if not error.undecided:
                raise
            subscribe = partial(self._subscribing.subscribe, event)
            self._responder.in_task(event, partial(self._responder.session.decided, subscribe))

    def _leave(self, event: Event) -> None:
        """Push no more, and answer when the client holds nothing: its broker stops, or the client says goodbye."""
        self._subscribing.pause()

        async def work() -> None:
            while self._subscribing.is_holding():
                await self._gateway.env.clock.sleep(HOLDING_POLL_S)
            self._responder.reply(event.correlation, m.Done())

        self._responder.in_task(event, work)

    def _give_back(self, correlation: int) -> bool:
        """Count the answer to a request; returns whether one is wanted still: not after the end of the lane."""
        if correlation not in self._sizes:
            return False
        size, counts = self._sizes.pop(correlation)
        self.window.give_back(size)
        if counts:
            self._answered(size)
        return True


class _LaneResponder(Responder):
    """Answers the requests of a lane, and counts them."""

    __slots__ = ("on_answer", "on_change")

    on_answer: Callable[[int], bool]
    on_change: Callable[[], None]

    def budget_changed(self) -> None:
        """See `Responder.budget_changed`."""
        super().budget_changed()
        self.on_change()

    def answer(self, correlation: int, frames: Sequence[Sendable]) -> None:
        """See `Responder.answer`. A publish may be confirmed, or fail, when its lane has ended."""
        if self.on_answer(correlation):
            super().answer(correlation, frames)


CONSUMING: Mapping[type[m.Message], Callable[[Any, Event], None]] = {
    m.Subscribe: ServedLane._subscribe,
    m.Unsubscribe: lambda lane, event: lane._subscribing.unsubscribe(event),
    m.Credit: lambda lane, event: lane._subscribing.credit(event),
    m.Pull: lambda lane, event: lane._subscribing.pull(event),
    m.Settle: lambda lane, event: lane._subscribing.settle(event),
    m.Heartbeat: lambda lane, event: lane._subscribing.heartbeat(event),
    m.Seek: lambda lane, event: lane._subscribing.seek(event),
    m.Commit: lambda lane, event: lane._subscribing.commit(event),
    m.Resolve: lambda lane, event: lane._subscribing.resolve(event),
    m.SettleInTransaction: lambda lane, event: lane._transacting.settle(event),
    m.Goodbye: ServedLane._leave,
}
"""The requests of a consumer. The first one is in the lane's `_begin`, too: a broker that stops refuses it."""
