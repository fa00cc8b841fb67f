"""A subscription whose consumer is at the broker that leads the topic: requests go on to it, and its answers come back.

Subscriptions and requests have other numbers in the lane than in this connection. Nothing else of a message changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from linn.api import ConsumerKind, Leg, LinnError, PeerError, SubscribeRequest, SubscriptionOf
from linn.protocols.capnp.responder import Responder
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of, frames_to

ENTRIES_PER_REQUEST = 64
"""Settlements that count as one request in progress, because they may wait here for the link."""


class PassedOn:
    """A subscription at another broker, and the port `Door` of its leg."""

    leg: Leg

    def __init__(self, id: int, request: SubscribeRequest, responder: Responder, over: Callable[[int], None]) -> None:
        """`over` is called with the id when the subscription is over."""
        self.id = id
        self._request = request
        self._responder = responder
        self._over = over
        self._is_begun = self._is_over = False
        self._is_leased = False
        self._is_paused = False
        self._is_quiet = False
        """Whether the client holds no lease, and gets none."""

    def described(self) -> SubscriptionOf:
        """Describe the subscription, for `connection.list`; only the other broker knows how many records it holds."""
        request = self._request
        return SubscriptionOf(request.topic, request.group, request.shared, request.member, 0)

    def is_holding(self) -> bool:
        """Whether the client may hold leases that it can still settle."""
        return self._is_leased and not self._is_quiet

    # --- requests ---

    def subscribe(self, event: Event) -> None:
        """Subscribe at the other broker, which answers, and make a missing shared subscription there."""
        self._ask(event, self._subscribed)

    def _subscribed(self, correlation: int, outcome: Any) -> None:
        if isinstance(outcome, LinnError):
            self._responder.fail(correlation, outcome)
            self._finish()
            return
        subscribed: m.Subscribed = replace(outcome.message, subscription=self.id)
        self._is_begun = True
        self._is_leased = subscribed.kind == ConsumerKind.SHARED and subscribed.lease_ms > 0
        self._responder.outbox.put(frames_of(subscribed, correlation))

    def pass_on(self, event: Event) -> None:
        """Pass a request on; its answer comes back as it is, unless the other broker is lost."""
        if isinstance(event.message, m.Pull):
            self._ask(event, self._pulled)
        elif isinstance(event.message, m.Unsubscribe):
            self._ask(event, self._unsubscribed)
        else:
            self._ask(event, self._answered)

    def _answered(self, correlation: int, outcome: Any) -> None:
        if isinstance(outcome, LinnError):
            self._responder.fail(correlation, outcome)
        elif correlation:
            message = outcome.message
            if isinstance(message, m.Deliver):
                message = replace(message, subscription=self.id)
            self._responder.answer(correlation, frames_to(message, correlation, outcome.batches))

    def _pulled(self, correlation: int, outcome: Any) -> None:
        """Answer a pull: without records if the other broker is lost, because the subscription is over then."""
        if isinstance(outcome, PeerError):
            self._responder.reply(correlation, m.Deliver(self.id, 0, 0, 0))
        else:
            self._answered(correlation, outcome)

    def _unsubscribed(self, correlation: int, outcome: Any) -> None:
        """Answer an unsubscribe. If the other broker is lost, the subscription is over as well."""
        if isinstance(outcome, LinnError) and not isinstance(outcome, PeerError):
            self._responder.fail(correlation, outcome)
        else:
            self._responder.reply(correlation, m.Done())
        self._finish()

    def _ask(self, event: Event, answered: Callable[[int, Any], None]) -> None:
        message: Any = event.message
        weight = 1
        if isinstance(message, m.Settle):
            weight += len(message.entries) // ENTRIES_PER_REQUEST
        if not isinstance(message, m.Subscribe):
            message = replace(message, subscription=m.LANE_SUBSCRIPTION)
        responder = self._responder
        responder.inflight += weight

        def told(outcome: Any) -> None:
            responder.inflight -= weight
            responder.budget_changed()
            answered(event.correlation, outcome)

        self.leg.ask(message, told)

    def pause(self) -> None:
        """Let the other broker stop pushing, and answer pulls at once."""
        if not self._is_paused:
            self._is_paused = True
            self.leg.ask(m.Goodbye(), self._paused)

    def _paused(self, _: object) -> None:
        self._is_quiet = True

    # --- what the other broker sends ---

    def pushed(self, event: Event) -> None:
        """See `Door.pushed`."""
        message: Any = event.message
        if isinstance(message, m.Ping):
            if self._responder.outbox.has_room():
                self.leg.tell(m.Pong())
            else:
                self._responder.spawn(self._pong)
            return
        if isinstance(message, m.Ended):
            self._end(message.code, message.text)
            return
        if isinstance(message, m.Assigned) and self._request.group:
            self._responder.session.share_changed(self.leg, len(message.partitions))
        message = replace(message, subscription=self.id)
        self._responder.outbox.put(frames_to(message, 0, event.batches))

    async def _pong(self) -> None:
        await self._responder.outbox.wait_room()
        self.leg.tell(m.Pong())

    def ended(self, error: LinnError) -> None:
        """See `Door.ended`."""
        self._end(error.code, error.text)

    def _end(self, code: str, text: str) -> None:
        if self._is_begun and not self._is_over:
            self._responder.outbox.put(frames_of(m.Ended(self.id, code, text)))
        self._finish()

    def _finish(self) -> None:
        if not self._is_over:
            self._is_over = self._is_quiet = True
            self._over(self.id)
