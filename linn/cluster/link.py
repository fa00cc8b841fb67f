"""A link to another broker, on the side that dialed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio

from linn.cluster.channel import Channel
from linn.cluster.introduction import is_present
from linn.cluster.requests import Outcome, Requests, Tell
from linn.cluster.window import Limits, counts_in_link, size_of
from linn.core.batch.batch import RecordBatch
from linn.core.cluster.peers import Membership
from linn.core.errors.codes import error_from_code
from linn.core.errors.peers import PeerStale, PeerUnknown, PeerUnreachable
from linn.core.errors.tree import LimitExceeded, LinnError, ProtocolError
from linn.core.ports.principal import Principal
from linn.core.publish.request import PublishRequest, PublishResult, RefusedRecords
from linn.verbs import VERBS
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of

ACKS = ("none", "leader", "all")
"""Acks by their number in the schema."""


class Link:
    """A link whose other side has proved who it is. `run` it; `perform` asks over it."""

    def __init__(
        self,
        channel: Channel,
        welcome: m.PeerWelcome,
        membership: Membership,
        node: int,
        session: str,
        own_session: str,
    ) -> None:
        self._channel = channel
        self._membership = membership
        self._node = node
        self._sessions = session, own_session
        channel.on_clock = partial(membership.note_clock, node)
        self._is_leaving = False
        """Whether the other side has said goodbye: it answers earlier requests, and takes no more."""
        self._resting: dict[int, Callable[[], object]] = {}
        """Open lanes without a request, least recently used first, each with what its end is told to."""
        self._requests = Requests(
            Limits(
                welcome.lanes_max,
                welcome.lane_requests_max,
                welcome.lane_bytes_max,
                welcome.requests_max,
                welcome.bytes_max,
            )
        )

    @property
    def error(self) -> LinnError | None:
        """The reason for its end; None: it lives."""
        return self._channel.error

    async def run(self) -> LinnError:
        """Keep the link until it is lost; returns the reason after all requests were told."""
        channel = self._channel
        try:
            return await channel.run(self._handle, self.check_sessions)
        finally:
            error = channel.error or PeerUnreachable("the broker is stopping")
            self._resting.clear()
            self._requests.lose(channel.handed_bytes, error)
            with trio.CancelScope(shield=True):
                await channel.aclose()

    def check_sessions(self) -> None:
        """End the link unless both sides still have the sessions in which they made it. Never raises."""
        if not is_present(self._membership, self._node, *self._sessions):
            self._channel.lose(PeerStale(f"the link to node {self._node} was one between earlier sessions"))

    def _handle(self, event: Event) -> None:
        if self.error is not None:
            return  # It has broken the protocol: no word of it counts any more.
        if event.lane:
            self._requests.take(event)
            self._channel.changed.unpark_all()
        elif isinstance(event.message, m.Goodbye):
            self._is_leaving = True
            while self._resting:
                self._evict()
            self._channel.changed.unpark_all()
        else:
            raise ProtocolError(f"{type(event.message).__name__} outside of a lane")
        if self._is_leaving and not self._requests.has_lanes:
            raise PeerUnreachable(f"node {self._node} is stopping")

    # --- requests ---

    async def perform(self, verb: str, arguments: str, principal: Principal) -> str:
        """Let the other broker carry out a verb. Raises and is cancelled as `PeerLinks.perform`."""
        known = VERBS.get(verb)
        lane = await self.open_lane(principal)
        try:
            asked = m.Administer(verb, arguments)
            answer = (await self.ask(lane, asked, is_repeatable=known is not None and not known.acts)).message
        finally:
            self.close_lane(lane)
        if isinstance(answer, m.Administered):
            return answer.result
        raise self.unexpected(answer, "a verb")

    def unexpected(self, answer: m.Message, asked: str, *, is_repeatable: bool = False) -> LinnError:
        """End the link for an answer that is none; returns the error of the request."""
        text = self.distrust(f"answered {asked} with {type(answer).__name__}")
        return PeerUnreachable(f"it can be done again: {text}") if is_repeatable else PeerUnknown(text)

    def distrust(self, deed: str) -> str:
        """End the link for a deed of the other side that breaks the protocol; returns it as a sentence."""
        error = ProtocolError(f"node {self._node} {deed}")
        self._channel.lose(error)
        return error.text

    async def open_lane(self, principal: Principal, producers: Mapping[int, int] | None = None) -> int:
        """Open a lane for a principal, when there is room for one; returns its number.

        `producers`: the first ids of the blocks that its publishes use, with their keys. Raises PeerUnreachable.
        """
        while True:
            self._check_lives()
            if self._channel.has_room():
                if (lane := self._requests.open_lane()) is not None:
                    break
                if self._resting and not self._requests.closing:
                    self._evict()
            await self._channel.changed.park()
        connection, client, user, _, login, roles = principal
        keys = [m.ProducerKey(id, key) for id, key in (producers or {}).items()]
        self._put(lane, m.OpenLane(connection, client, user, login, [*roles], keys))
        return lane

    def rest(self, lane: int, closed: Callable[[], object]) -> None:
        """Keep a lane for later: it is closed if others need its place, which is told to `closed`."""
        if self.error is None:
            self._resting[lane] = closed
            self._channel.changed.unpark_all()

    def use(self, lane: int) -> None:
        """Use a lane that rests again."""
        del self._resting[lane]

    def _evict(self) -> None:
        """Close the lane that has rested for the longest time."""
        lane = next(iter(self._resting))
        self._resting.pop(lane)()
        self.close_lane(lane)

    async def ask(
        self, lane: int, message: m.Message, batches: Sequence[RecordBatch] = (), *, is_repeatable: bool
    ) -> Event:
        """Make a request when there is room for it, and wait for its answer.

        Raises the error of its answer; PeerUnreachable, PeerUnknown.
        """
        answered, outcomes = trio.Event(), list[Outcome]()

        def tell(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        await self.begin(lane, message, batches, tell, is_repeatable=is_repeatable)
        await answered.wait()
        if isinstance(outcomes[0], LinnError):
            raise outcomes[0]
        return outcomes[0]

    async def begin(
        self, lane: int, message: m.Message, batches: Sequence[RecordBatch], tell: Tell, *, is_repeatable: bool
    ) -> None:
        """Make a request when there is room for it. Raises PeerUnreachable. Cancellation: it was not made."""
        while True:
            self._check_lives(message)
            if self.begin_nowait(lane, message, batches, tell, is_repeatable=is_repeatable):
                return
            await self._channel.changed.park()

    def begin_nowait(
        self, lane: int, message: m.Message, batches: Sequence[RecordBatch], tell: Tell, *, is_repeatable: bool
    ) -> bool:
        """Make a request if there is room for it; False: there is none, or the link is lost."""
        if self.error is not None or not self._channel.has_room():
            return False
        size, counts = size_of(message, batches), counts_in_link(message)
        correlation = self._requests.next_correlation(lane, size, counts=counts)
        if correlation is None:
            return False
        self._put(lane, message, correlation, batches)
        ends_at = self._channel.put_bytes
        self._requests.asked(lane, correlation, size, ends_at, tell, is_repeatable=is_repeatable, counts=counts)
        return True

    async def open_leg(
        self, principal: Principal, pushed: Callable[[Event], None], lost: Callable[[LinnError], None]
    ) -> int:
        """Open a lane for a consumer; returns its number.

        Args:
            pushed: called with each push of the other side, until the lane is closed.
            lost: called once if the link is lost before the lane is closed.

        Raises PeerUnreachable; LimitExceeded: other lanes would have no room.
        """
        if not self._requests.has_room_for_leg(len(self._resting)):
            raise LimitExceeded(f"node {self._node} has as many consumers by way of this broker as a link takes")
        lane = await self.open_lane(principal)
        self._requests.listen(lane, pushed, lost)
        return lane

    def tell(self, lane: int, message: m.Message) -> None:
        """Send a message that has no answer. Dropped if the link is lost."""
        self._put(lane, message)

    async def wait_changed(self) -> None:
        """Wait until there may be more room, or the link is lost."""
        await self._channel.changed.park()

    def close_lane(self, lane: int) -> None:
        """Close a lane. Its requests without an answer get none."""
        if self.error is None:
            self._resting.pop(lane, None)
            self._requests.close_lane(lane)
            self._put(lane, m.CloseLane())

    def _put(self, lane: int, message: m.Message, correlation: int = 0, batches: Sequence[RecordBatch] = ()) -> None:
        first, *rest = frames_of(message, correlation, list(batches))
        self._channel.put([codec.put_in_lane(first, lane), *rest])

    def _check_lives(self, message: m.Message | None = None) -> None:
        """Check that the other side takes a request. Raises PeerUnreachable."""
        if self.error is not None:
            raise PeerUnreachable(f"nothing was done: {self.error.text}")
        # A leader that stops still takes acknowledgements, for which its last publishes wait.
        if self._is_leaving and not isinstance(message, m.Replicate):
            raise PeerUnreachable(f"nothing was done: node {self._node} is stopping")


def publish_of(request: PublishRequest) -> m.Publish:
    """The message that asks another broker to publish."""
    acks = ACKS.index(request.acks)
    return m.Publish(
        request.target, request.to_exchange, acks, request.partition, request.wants_returned, [*request.topics]
    )


def result_of(placement: m.Placement) -> PublishResult:
    """The result of a batch that another broker has published."""
    refused = [RefusedRecords(error_from_code(each.code, each.text), each.records) for each in placement.refused]
    return PublishResult(
        placement.partition,
        placement.base_offset,
        placement.copies,
        placement.returned,
        placement.leader_epoch,
        placement.topic_id_high,
        placement.topic_id_low,
        refused,
    )
