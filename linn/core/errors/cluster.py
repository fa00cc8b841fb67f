"""Errors of a broker that is one of a cluster; a part of the tree."""

from __future__ import annotations

from linn.core.errors.metadata import MetadataError
from linn.core.errors.tree import LinnError


class ClusterError(LinnError):
    """This broker can't be a part of the cluster that its configuration names."""

    code = "cluster.failed"


class ClusterForeign(ClusterError):
    """The data folder belongs to another cluster, or to another node of it."""

    code = "cluster.foreign"


class ClusterEmptied(ClusterError):
    """The metadata store has nothing of the cluster to which the data folder belongs."""

    code = "cluster.emptied"


class NodeTaken(ClusterError):
    """Another broker of the cluster, with another data folder, has this broker's number."""

    code = "cluster.node_taken"


class SecretDiffers(ClusterError):
    """Brokers of the cluster that are alive have another secret than this one."""

    code = "cluster.secret"


class ClusterAbsent(ClusterError):
    """The broker is alone, and the request is about a cluster."""

    code = "cluster.absent"


class ClusterRefused(ClusterError):
    """An operation would leave a topic without enough replicas, or is not possible now: nothing was changed."""

    code = "cluster.refused"


class LevelTooLow(ClusterError):
    """The cluster does not use this feature yet: its brokers may be of versions that do not know it."""

    code = "cluster.level"


class NodeUnknown(ClusterError):
    """The cluster has no node of this number."""

    code = "cluster.node_unknown"


class MetadataInvalid(MetadataError):
    """An entry of the metadata store is none that this version of linn writes."""

    code = "metadata.invalid"


class MetadataLater(MetadataError):
    """A later version of linn wrote the metadata of the cluster."""

    code = "metadata.later"
