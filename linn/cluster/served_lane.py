"""A lane on the side that serves it: a session for the principal of a connection elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from linn.cluster.channel import Channel
from linn.cluster.served_copies import ServedCopies
from linn.cluster.served_follower import FollowerNode, ServedFollower
from linn.cluster.window import LANE_BYTES_MAX, LANE_REQUESTS_MAX, OPEN_CHARACTERS_MAX, Window, counts_in_link
from linn.core.batch.flat_message import Buffer
from linn.core.env.file_region import Sendable
from linn.core.errors.tree import BrokerStopping, LinnError, ProtocolError, RequestUnknown
from linn.core.gateway.gateway import Gateway
from linn.core.ports.principal import Principal
from linn.core.security.users import node_user
from linn.protocols.capnp.administering import Administering
from linn.protocols.capnp.publishing import Publishing
from linn.protocols.capnp.reading import Reading
from linn.protocols.capnp.responder import Responder
from linn.protocols.capnp.subscribing import Subscribing
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of


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
        self._early: list[Event] | None = []
        """Requests that came before the task of the lane has begun; None: it has."""
        self._closed = trio.Event()
        principal = Principal(
            opened.connection, opened.client, opened.user, login=opened.login, roles=tuple(opened.roles)
        )
        self._responder = _LaneResponder(gateway, _LaneOutput(channel, number), opened.connection)
        self._responder.on_answer = self._give_back
        self._responder.session = gateway.session(principal)
        self._responder.session.forwards = False
        self._producers = opened.producers
        subscribing = Subscribing(self._responder)
        self._administering = Administering(self._responder, subscribing)
        self._publishing = Publishing(self._responder, subscribing)
        self._reading = Reading(self._responder)
        self._follower = ServedFollower(self._responder, channel, who)
        self._copies: ServedCopies | None = None
        """Set in a lane of the other broker itself: its publishes are copies of dead letters."""
        if opened.user == node_user(who.node):
            self._copies = ServedCopies(self._responder, gateway, who)

    async def run(self) -> None:
        """Carry out requests until the lane is closed, and tell the other side that it has ended.

        Cancellation: a change that has begun is completed.
        """
        try:
            async with trio.open_nursery() as self._responder.nursery:
                early, self._early = self._early or [], None
                for event in early:
                    self._begin(event)
                await self._closed.wait()
                self._responder.nursery.cancel_scope.cancel()
        finally:
            self._publishing.close()
            self._follower.leave()
            await self._responder.session.aclose()
            for correlation in list(self._sizes):
                self._give_back(correlation)
            self._channel.put([codec.put_in_lane(frames_of(m.CloseLane())[0], self._number)])

    def drain(self) -> None:
        """Answer fetches that wait for records now."""
        self._reading.end_waits()

    def close(self) -> None:
        """Let `run` end. Requests in progress get no answer."""
        self._closed.set()

    def handle(self, event: Event, size: int) -> None:
        """Begin a request. Raises ProtocolError: it is over the lane's window, or wants no answer."""
        if self._closed.is_set() or not event.correlation or event.correlation in self._sizes:
            raise ProtocolError("a request of a lane has a number of its own, and comes before the lane is closed")
        if not self.window.has_room(size):
            raise ProtocolError(
                f"a lane has more than {LANE_REQUESTS_MAX} requests, or {LANE_BYTES_MAX:,} bytes of them"
            )
        self.window.take(size)
        self._sizes[event.correlation] = size, counts_in_link(event.message)
        if self._early is not None:
            self._early.append(event)
        else:
            self._begin(event)

    def _begin(self, event: Event) -> None:
        try:
            if isinstance(event.message, m.Replicate):  # Publishes in progress wait for acknowledgements.
                self._follower.replicate(event)
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
            else:
                raise RequestUnknown(f"{type(event.message).__name__} is not forwarded by this version")
        except LinnError as error:
            self._responder.fail(event.correlation, error)
        except Exception as error:
            self._responder.fail_unforeseen(event.correlation, error)

    def _give_back(self, correlation: int) -> None:
        size, counts = self._sizes.pop(correlation)
        self.window.give_back(size)
        if counts:
            self._answered(size)


class _LaneOutput:
    """The output of a lane: that of its link, with the lane's number."""

    is_short = False

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number

    def put(self, frames: Sequence[Sendable]) -> None:
        """See `Output.put`."""
        first, *rest = frames
        assert isinstance(first, Buffer), "a message begins with its own bytes"
        self._channel.put([codec.put_in_lane(first, self._number), *rest])

    def hold(self, frames: Sequence[Sendable]) -> None:
        """See `Output.hold`. A link's writer joins what waits anyway."""
        self.put(frames)

    def has_room(self) -> bool:
        """See `Output.has_room`."""
        return self._channel.has_room()

    async def wait_room(self) -> None:
        """See `Output.wait_room`."""
        await self._channel.wait_room()


class _LaneResponder(Responder):
    """Answers the requests of a lane, and counts them."""

    __slots__ = ("on_answer",)

    on_answer: Callable[[int], None]

    def answer(self, correlation: int, frames: Sequence[Sendable]) -> None:
        """See `Responder.answer`."""
        super().answer(correlation, frames)
        self.on_answer(correlation)
