"""The publishes of one connection that are at another broker.

Laws: they are all at one broker, and no publish of the connection is carried out anywhere else meanwhile; so publishes
are stored in the order in which they came. While a batch may still be sent again that was refused, or lost with the
link, later ones of its producer are refused (`LaneOrder`): by the other broker if they were under way, else here. Other
connections don't know of it: their clients may send it again through a third broker.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from linn.core.errors.tree import LinnError
from linn.core.ports.principal import Principal
from linn.core.publish.forwarding import PublishLinks, Told
from linn.core.publish.lane_order import LaneOrder
from linn.core.publish.producer_ids import OwnedProducers
from linn.core.publish.request import PublishRequest, PublishResult


class PassedOn:
    """The publishes under way, and the order of later ones."""

    def __init__(self, links: PublishLinks, principal: Principal, owned: OwnedProducers) -> None:
        self.count = 0
        """Publishes under way, and one that is about to be."""
        self._passed = links.passing(principal)
        self._owned = owned
        self._node = 0
        self.order = LaneOrder()
        """The order of batches for topics elsewhere, whichever broker refused them."""
        self._none = trio.lowlevel.ParkingLot()

    async def until_none(self) -> None:
        """Wait until no publish is under way."""
        while self.count:
            await self._none.park()

    async def begin(self, node: int, request: PublishRequest, told: Told) -> None:
        """Pass a publish on, after those at other nodes have ended. One task at a time.

        Raises ProducerOutOfOrder, and the errors of `PassedPublishes.begin`: it was not passed on, and `told` is not
        called. Cancellation: it was not passed on.
        """
        if node != self._node:
            await self.until_none()
            self._node = node
        self.order.check(request)

        def tell(outcome: Sequence[PublishResult] | LinnError) -> None:
            self._ended(request, outcome)
            told(outcome)

        self.count += 1
        try:
            await self._passed.begin(node, request, self._owned.keys_of(request.batches), tell)
        except LinnError as error:
            self._ended(request, error)
            raise
        except BaseException:
            self.count -= 1
            raise

    def _ended(self, request: PublishRequest, outcome: Sequence[PublishResult] | LinnError) -> None:
        self.count -= 1
        if isinstance(outcome, LinnError):
            self.order.refused(request, outcome)
        else:
            self.order.settled(request)
        if not self.count:
            self._none.unpark_all()

    def close(self) -> None:
        """Close the lanes: the connection is gone."""
        self._passed.close()
