"""Copies of another broker's dead letters, in a lane that it has opened for itself.

Law: a copy comes from the present session of its broker. What an earlier session sent may arrive after the next one has
looked for it, and would be a second copy.
"""

from __future__ import annotations

from linn.cluster.served_follower import FollowerNode
from linn.core.errors.peers import PeerStale
from linn.core.errors.tree import ProtocolError, RequestUnknown
from linn.core.gateway.gateway import Gateway
from linn.protocols.capnp.responder import Responder
from linn.wire import messages as m
from linn.wire.connection import Event


class ServedCopies:
    """The copies in one lane."""

    def __init__(self, responder: Responder, gateway: Gateway, who: FollowerNode) -> None:
        self._responder = responder
        self._gateway = gateway
        self._who = who

    def store(self, event: Event) -> None:
        """Store a copy, and answer when it is committed. Raises LinnErrors for the answer."""
        asked = event.message
        assert isinstance(asked, m.Publish)
        self._check_session()
        if len(event.batches) != 1 or asked.to_exchange:
            raise ProtocolError("a copy of dead letters is one batch for one partition")
        (batch,) = event.batches
        offset, mark, end = self._gateway.copies.store(asked.target, asked.partition, batch)
        answer = m.Published([m.Placement(asked.partition, offset, batch.count)])
        self._responder.when_passed([(mark, end)], event.correlation, answer)

    def find_place(self, event: Event) -> None:
        """Answer with the place of copies. Raises LinnErrors for the answer."""
        asked = event.message
        assert isinstance(asked, m.FindOffset)
        self._check_session()
        if asked.place != m.Place.LATEST:
            raise RequestUnknown("only the end of a partition is a place for copies")

        async def work() -> None:
            place = await self._gateway.copies.place(asked.topic, asked.partition)
            self._responder.reply(event.correlation, m.FoundOffset(place))

        self._responder.in_task(event, work)

    def _check_session(self) -> None:
        membership = self._gateway.membership
        place = membership.place_of(self._who.node) if membership is not None else None
        if place is None or place.session != self._who.session:
            raise PeerStale(f"node {self._who.node} has another session than the one that sends a copy")
