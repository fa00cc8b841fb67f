"""The membership of a node: its session, and the places of other nodes, from its view of the metadata store."""

from __future__ import annotations

from linn.core.cluster.node import ClusterNode
from linn.core.cluster.peers import PeerPlace


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
    def session(self) -> str:
        """The last session of this node; "": it has none yet."""
        return self._node.session

    def place_of(self, node: int) -> PeerPlace | None:
        """See `Membership.place_of`."""
        entry = self._node.view.state.sessions.get(node)
        if entry is None or self._listener not in entry.addresses:
            return None
        return PeerPlace(entry.session, entry.addresses[self._listener], self._is_tls)
