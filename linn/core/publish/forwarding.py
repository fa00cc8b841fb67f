"""The port through which a publish goes on to the broker that leads its topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from linn.core.errors.tree import LinnError
from linn.core.ports.principal import Principal
from linn.core.publish.request import PublishRequest, PublishResult

Told = Callable[[Sequence[PublishResult] | LinnError], None]
"""Called with the outcome of a publish; never raises."""


class PassedPublishes(Protocol):
    """The publishes of one connection that go on to other brokers, several at a time."""

    async def begin(self, node: int, request: PublishRequest, producers: Mapping[int, int], tell: Told) -> None:
        """Pass a publish on when there is room for it. One task at a time.

        A node carries these publishes out in the order in which they came; so if one is refused, later ones may be
        under way. `producers`: the first ids of the blocks that the batches use, with the keys that prove whose they
        are. `tell` is called once, later, with the results, an error of the publish with the texts of the other broker,
        or PeerUnknown: it may be stored, or not; not after `close`. A publish of numbered batches, which can be sent
        again in any case, ends with PeerUnreachable in place of PeerUnknown.

        Raises PeerUnreachable, PeerRefused, PeerStale: it was not passed on. Cancellation: it was not passed on.
        """

    def close(self) -> None:
        """Close the lanes. Publishes under way may be stored, or not. Idempotent."""


class PublishLinks(Protocol):
    """Links to the other brokers of the cluster."""

    @property
    def delays(self) -> bool:
        """Whether all brokers know delayed records and the logs in which they wait."""

    def passing(self, principal: Principal) -> PassedPublishes:
        """Begin to pass on the publishes of one connection; `close` it."""
