"""Consuming from a topic that another broker of the cluster leads: the port of its legs.

A leg is a consumer at another broker, for as long as it lives. The client's messages to it go on as the protocol has
them, so that credit, order and the races between them are the leader's, as without a door in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from linn.core.batch.steps import Steps
from linn.core.errors.tree import LinnError
from linn.core.gateway.elsewhere import ReadLinks
from linn.core.gateway.inbox import InboxLinks
from linn.core.ports.principal import Principal


class Door(Protocol):
    """The side of a leg at the broker to which the client is connected. Its methods do not wait, and raise nothing."""

    def pushed(self, event: Any) -> None:
        """Take a push of the consumer's broker, in order with its answers."""

    def ended(self, error: LinnError) -> None:
        """The leg is over, and why: retriable if the other broker was lost. Called once, before the requests without an
        answer are told."""


class Leg(Protocol):
    """A consumer at another broker."""

    def ask(self, message: Any, answered: Callable[[Any], None]) -> None:
        """Pass a request on, after all earlier ones. `answered` gets the answer as an event, or a LinnError, once."""

    def tell(self, message: Any) -> None:
        """Send a message that has no answer. Dropped if the leg is over."""

    async def run(self) -> None:
        """Reach the other broker, and pass requests on until the leg is over.

        Cancellation: the other broker takes it for the loss of the client's connection.
        """

    def end(self, reason: LinnError) -> None:
        """End the leg for a reason here. The consumer ends as with the loss of its connection."""

    def close(self) -> None:
        """End the leg: requests without an answer get PeerUnreachable, and nothing is pushed any more. Idempotent."""

    def disconnect(self) -> Steps[None]:
        """End the leg without answers, because the client's connection was lost. Idempotent."""


class ConsumerLinks(Protocol):
    """Links to the other brokers of the cluster."""

    def leg(self, node: int, principal: Principal, door: Door) -> Leg:
        """Make a leg to a node for a principal; `run` it.

        It ends with PeerUnreachable, PeerRefused or PeerStale if there is no link, or none any more, and with
        LimitExceeded if there are too many legs to the node.
        """


class SessionLinks(ReadLinks, ConsumerLinks, InboxLinks, Protocol):
    """Links for the requests that a session passes on by itself."""
