"""A consumer at another broker, on the side of the broker to which its client is connected.

Laws: a leg has a lane for itself, as long as it lives, so that the end of the lane is the loss of the client's
connection. Its requests go on in their order. Each has one outcome, unless the client is gone. Pushes arrive in
order with the answers; a message that is no consumer's ends the link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import trio

from linn.cluster.link import Link
from linn.core.batch.steps import Steps, no_steps
from linn.core.cluster.peers import Forwarded
from linn.core.errors.peers import PeerError, PeerUnknown, PeerUnreachable
from linn.core.errors.tree import LinnError
from linn.core.gateway.legs import Door
from linn.core.ports.principal import Principal
from linn.wire import messages as m
from linn.wire.connection import Event

ANSWERS: Mapping[type[m.Message], type[m.Message]] = {
    m.Subscribe: m.Subscribed,
    m.Unsubscribe: m.Done,
    m.Credit: m.Done,
    m.Pull: m.Deliver,
    m.Settle: m.Settled,
    m.Heartbeat: m.Done,
    m.Seek: m.Done,
    m.Commit: m.Done,
    m.Resolve: m.Resolved,
    m.SettleInTransaction: m.Done,
    m.Goodbye: m.Done,
}
"""The answer to each request of a leg."""
GONE = "the consumer at the other broker is gone"
PUSHES = m.Deliver, m.Assigned, m.LeaseEnded, m.Ended, m.Ping


class _Asked:
    """A request, and who waits for its answer."""

    __slots__ = ("answered", "message")

    def __init__(self, message: m.Message, answered: Callable[[Any], None]) -> None:
        self.message = message
        self.answered = answered

    @property
    def is_repeatable(self) -> bool:
        """Whether its outcome does not matter once the consumer is gone. A settlement or a decision stays; one in a
        transaction counts only if the client was told, and commits."""
        return not isinstance(self.message, m.Settle | m.Resolve | m.Commit)


class ConsumerLeg:
    """The port `Leg`, over a link."""

    def __init__(
        self, reach: Callable[[], Awaitable[Link]], principal: Principal, door: Door, forwarded: Forwarded
    ) -> None:
        """`reach`: returns the link to the other broker. Raises PeerUnreachable, PeerRefused, PeerStale."""
        self._reach = reach
        self._principal = principal
        self._door = door
        self._forwarded = forwarded
        self._scope = trio.CancelScope()
        self._wake = trio.Event()
        self._waiting: deque[_Asked] = deque()
        """Requests that were not put into the link's output."""
        self._unanswered: dict[_Asked, None] = {}
        self._link: Link | None = None
        self._lane = 0
        self._is_over = False

    # --- what the client says ---

    def ask(self, message: Any, answered: Callable[[Any], None]) -> None:
        """See `Leg.ask`."""
        if self._is_over:
            answered(PeerUnreachable(GONE))
            return
        asked = _Asked(message, answered)
        if self._waiting or self._link is None or not self._begin(self._link, asked):
            self._waiting.append(asked)
            self._wake.set()

    def tell(self, message: Any) -> None:
        """See `Leg.tell`."""
        if self._link is not None:
            self._link.tell(self._lane, message)

    def _begin(self, link: Link, asked: _Asked) -> bool:
        """Put a request into the output; False: there is no room."""

        def tell(outcome: Event | LinnError) -> None:
            if asked in self._unanswered:
                del self._unanswered[asked]
                asked.answered(self._checked(link, asked, outcome))

        if not link.begin_nowait(self._lane, asked.message, (), tell, is_repeatable=asked.is_repeatable):
            return False
        self._unanswered[asked] = None
        return True

    def _checked(self, link: Link, asked: _Asked, outcome: Event | LinnError) -> Event | LinnError:
        if isinstance(outcome, LinnError):
            return outcome
        kind, message = type(asked.message), outcome.message
        if isinstance(message, ANSWERS[kind]) and _is_of_lane(message):
            self._count(outcome)
            return outcome
        deed = f"answered {kind.__name__} with {type(message).__name__}, or for another consumer"
        return PeerUnknown(link.distrust(deed))

    # --- life ---

    async def run(self) -> None:
        """See `Leg.run`."""
        with self._scope:
            try:
                link = await self._reach()
                self._lane = await link.open_leg(self._principal, self._pushed, self._lost)
            except LinnError as error:
                self._end_for(error)
                return
            self._link = link
            try:
                await self._pass_on(link)
            finally:
                self._link = None
                link.close_lane(self._lane)

    async def _pass_on(self, link: Link) -> None:
        while True:
            while self._waiting and self._begin(link, self._waiting[0]):
                self._waiting.popleft()
            if self._waiting:
                await link.wait_changed()
            else:
                self._wake = trio.Event()
                await self._wake.wait()

    def _pushed(self, event: Event) -> None:
        link = self._link
        if self._is_over or link is None:
            return
        message = event.message
        if not (isinstance(message, PUSHES) and _is_of_lane(message)):
            link.distrust(f"sent {type(message).__name__} to a consumer that has not asked for it")
            return
        self._count(event)
        self._door.pushed(event)

    def _count(self, event: Event) -> None:
        if event.batches:
            self._forwarded.delivered_bytes += sum([batch.size for batch in event.batches])

    def _lost(self, error: LinnError) -> None:
        """End, because the link is lost. It tells the requests that it has taken by itself."""
        if isinstance(error, PeerError) and error.retriable:
            self._end_for(error)
        else:
            self._end_for(PeerUnreachable(f"{GONE}: {error.text}"))

    def _end_for(self, error: LinnError) -> None:
        if not self._is_over:
            self._is_over = True
            self._scope.cancel()
            self._door.ended(error)
            self._refuse(self._waiting, error)

    def _refuse(self, requests: Collection[_Asked], error: LinnError) -> None:
        refused = list(requests)
        self._waiting.clear()
        for asked in refused:
            self._unanswered.pop(asked, None)
            asked.answered(error)

    # --- the end from this side ---

    def end(self, reason: LinnError) -> None:
        """See `Leg.end`."""
        self._end_for(reason)
        self._refuse(self._unanswered, reason)

    def close(self) -> None:
        """See `Leg.close`."""
        if not self._is_over:
            self._is_over = True
            self._scope.cancel()
            self._refuse([*self._unanswered, *self._waiting], PeerUnreachable(GONE))

    def disconnect(self) -> Steps[None]:
        """See `Leg.disconnect`."""
        self._is_over = True
        self._scope.cancel()
        self._waiting.clear()
        self._unanswered.clear()
        return no_steps()


def _is_of_lane(message: m.Message) -> bool:
    """Whether a message is about the lane's only subscription, or about none."""
    return bool(getattr(message, "subscription", m.LANE_SUBSCRIPTION) == m.LANE_SUBSCRIPTION)
