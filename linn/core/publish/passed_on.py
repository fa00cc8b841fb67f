"""The publishes of one connection that are at other brokers.

Laws: they are all at the same brokers, and no publish of the connection is carried out anywhere else meanwhile; so
publishes are stored in the order in which they came. While a batch may still be sent again that was refused, or lost
with the link, later ones of its producer are refused (`LaneOrder`): by the other broker if they were under way, else
here. Other connections don't know of it: their clients may send it again through a third broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from linn.core.errors.tree import LinnError
from linn.core.ports.principal import Principal
from linn.core.publish.forwarding import PublishLinks, Told
from linn.core.publish.lane_order import LaneOrder
from linn.core.publish.producer_ids import OwnedProducers
from linn.core.publish.request import PublishResult
from linn.core.publish.split_publish import Share, SplitPublish


class PassedOn:
    """The publishes under way, and the order of later ones."""

    def __init__(self, links: PublishLinks, principal: Principal, owned: OwnedProducers) -> None:
        self.count = 0
        """Publishes under way, and one that is about to be."""
        self._passed = links.passing(principal)
        self._owned = owned
        self._nodes = frozenset[int]()
        self.order = LaneOrder()
        """The order of batches for topics elsewhere, whichever broker refused them."""
        self._none = trio.lowlevel.ParkingLot()

    def takes(self, nodes: frozenset[int]) -> bool:
        """Whether a publish to these brokers may begin now; otherwise once there is none under way."""
        return not self.count or nodes == self._nodes

    async def until_none(self) -> None:
        """Wait until no publish is under way."""
        while self.count:
            await self._none.park()

    async def begin(self, split: SplitPublish, told: Told) -> None:
        """Pass the shares of a publish on, of brokers that `takes` has agreed to. One task at a time.

        `told` gets the outcome of the whole, perhaps at once. Cancellation: some shares were passed on.
        """
        self._nodes = split.nodes
        self.count += 1
        try:
            for share in split.shares:
                tell = partial(self._told, split, share, told)
                try:
                    keys = self._owned.keys_of(share.request.batches)
                    await self._passed.begin(share.node, share.request, keys, tell)
                except LinnError as error:
                    tell(error)
        except BaseException:
            self._ended()
            raise

    def _told(
        self, split: SplitPublish, share: Share, told: Told, outcome: Sequence[PublishResult] | LinnError
    ) -> None:
        whole = split.told(share, outcome)
        if whole is None:
            return
        if isinstance(whole, LinnError):
            self.order.refused(split.request, whole)
        else:
            self.order.settled(split.request)
        self._ended()
        told(whole)

    def _ended(self) -> None:
        self.count -= 1
        if not self.count:
            self._none.unpark_all()

    def close(self) -> None:
        """Close the lanes: the connection is gone."""
        self._passed.close()
