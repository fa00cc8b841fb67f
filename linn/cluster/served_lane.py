"""A lane on the side that serves it: a session for the principal of a connection elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from linn.cluster.channel import Channel
from linn.cluster.lane_output import LaneOutput
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
from linn.protocols.capnp.replying import Replying
from linn.protocols.capnp.responder import Responder
from linn.protocols.capnp.subscribing import Subscribing
from linn.protocols.capnp.transacting import Transacting
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of

_Requests = dict[type[Any], Callable[[Event], None]]
"""Methods that begin requests, by the class of the message."""
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
        self._responder.session = gateway.session(principal, forwards=False)
        self._producers = opened.producers
        self._subscribing = Subscribing(self._responder)
        self._administering = Administering(self._responder, self._subscribing, list)
        self._publishing = Publishing(self._responder, self._subscribing)
        self._follower = ServedFollower(self._responder, channel, who)
        self._reading = Reading(self._responder)
        self._transacting = Transacting(self._responder, self._subscribing)
        self._requests = self._other_requests(who if opened.user == node_user(who.node) else None)
        self._consuming = self._consumer_requests()

    def _other_requests(self, other: FollowerNode | None) -> _Requests:
        """The requests of a lane without a consumer. `other`: the broker whose own lane it is, if one's."""
        requests: _Requests = {
            m.Publish: self._publish,
            m.Fetch: self._reading.fetch,
            m.FindOffset: self._reading.find_offset,
            m.Describe: self._administering.describe,
            m.Administer: self._administering.administer,
            m.Follow: self._follower.follow,
            m.Replicate: self._follower.replicate,
            m.OpenTransactions: self._transacting.open,
            m.AddBranch: self._transacting.add_branch,
            m.EndTransaction: self._transacting.end,
            m.Reply: Replying(self._responder).reply,
        }
        if other is not None:
            transactions = ServedTransactions(self._responder, self._gateway)
            requests |= {
                m.JoinTransaction: transactions.begin,
                m.MarkTransaction: transactions.begin,
            }
        return requests

    def _consumer_requests(self) -> _Requests:
        """The requests of a lane that begins with `Subscribe`: no other lane takes them."""
        return {
            m.Subscribe: self._subscribe,
            m.Unsubscribe: self._subscribing.unsubscribe,
            m.Credit: self._subscribing.credit,
            m.Pull: self._subscribing.pull,
            m.Settle: self._subscribing.settle,
            m.Heartbeat: self._subscribing.heartbeat,
            m.Seek: self._subscribing.seek,
            m.Commit: self._subscribing.commit,
            m.Resolve: self._subscribing.resolve,
            m.SettleInTransaction: self._transacting.settle,
            m.Goodbye: self._leave,
        }

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
        consumes = type(event.message) in self._consuming
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
            kind = type(event.message)
            begin = (self._consuming if self._consumes else self._requests).get(kind)
            if begin is None:
                raise RequestUnknown(f"{kind.__name__} is not forwarded by this version")
            # A broker that stops lets consumers settle, and followers acknowledge what is published already.
            ends_work = kind is m.Replicate or (self._consumes and kind is not m.Subscribe)
            if not ends_work and self._gateway.connections.draining.is_set():
                raise BrokerStopping("the broker is stopping")
            begin(event)
        except LinnError as error:
            self._responder.fail(event.correlation, error)
        except Exception as error:
            self._responder.fail_unforeseen(event.correlation, error)

    def _publish(self, event: Event) -> None:
        for producer in self._producers:
            self._responder.session.claim_producer_id(producer.producer_id, producer.producer_key)
        self._publishing.publish(event)

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
