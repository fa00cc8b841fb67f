"""The membership of a node: its session, and the places of other nodes, from its view of the metadata store."""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.cluster.node import ClusterNode
from linn.core.cluster.peers import PeerPlace
from linn.core.env.address import is_wildcard_address


class NodeMembership:
    """The port `Membership` of one node.

    All nodes have a listener for brokers of the same name, with TLS or without.
    """

    def __init__(self, node: ClusterNode, secret: bytes, listener: str, *, is_tls: bool) -> None:
        self._node = node
        self.secret = secret
        self._listener = listener
        self._is_tls = is_tls

    @property
    def cluster(self) -> str:
        """The id of the cluster."""
        return self._node.cluster_id

    @property
    def node(self) -> int:
        """The number of this node."""
        return self._node.number

    @property
    def level(self) -> int:
        """The level of the cluster."""
        return self._node.view.state.level

    @property
    def session(self) -> str:
        """The last session of this node that others can know; "": it has none yet.

        One that can't be registered, because the store is away or empty, ends no link: the replicas of this node's
        topics follow on, and so it may lead on.
        """
        return self._node.registered_session

    def place_of(self, node: int) -> PeerPlace | None:
        """See `Membership.place_of`."""
        entry = self._node.view.state.sessions.get(node)
        if entry is None or self._listener not in entry.addresses:
            return None
        return PeerPlace(entry.session, entry.addresses[self._listener], self._is_tls)

    def note_clock(self, node: int, ahead_s: float) -> None:
        """See `Membership.note_clock`."""
        self._node.clocks.note(node, ahead_s)

    def client_addresses(self, listener: str) -> Sequence[tuple[int, str]]:
        """See `Membership.client_addresses`."""
        sessions = sorted(self._node.view.state.sessions.items())
        told = [(node, entry.addresses.get(listener, "")) for node, entry in sessions]
        return [(node, address) for node, address in told if address and not is_wildcard_address(address)]
