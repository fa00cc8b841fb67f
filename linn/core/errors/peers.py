"""Errors of the links between the brokers of a cluster; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import LinnError


class PeerError(LinnError):
    """A link to another broker of the cluster failed."""

    code = "peer.failed"


class PeerRefused(PeerError):
    """The other side has not proved that it is the broker of this cluster that it should be."""

    code = "peer.refused"


class PeerStale(PeerError):
    """A session in the proof is not the present one of its broker: one side has restarted, or knows an old state."""

    code = "peer.stale"
    retriable = True


class PeerUnreachable(PeerError):
    """There is no link to the other broker; nothing was done."""

    code = "peer.unreachable"
    retriable = True


class PeerUnknown(PeerError):
    """The link was lost before the answer: the request may have been carried out, or not, or in part."""

    code = "peer.unknown"
