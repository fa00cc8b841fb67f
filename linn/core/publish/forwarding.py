"""The port through which a publish goes on to the broker that leads its topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from linn.core.ports.principal import Principal
from linn.core.publish.request import PublishRequest, PublishResult


class PublishLinks(Protocol):
    """Links to the other brokers of the cluster."""

    async def publish(
        self, node: int, request: PublishRequest, principal: Principal, producers: Mapping[int, int]
    ) -> Sequence[PublishResult]:
        """Let another broker publish to one of its topics, and wait until it has confirmed all of it.

        `producers`: the producer ids in the batches, with the keys that prove whose they are.

        Raises:
            LinnErrors of the publish, with the texts of the other broker.
            PeerUnreachable, PeerRefused, PeerStale: nothing was stored.
            PeerUnknown: it may be stored, or not.
        Cancellation: it may be stored, or not.
        """
