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


class MetadataInvalid(MetadataError):
    """An entry of the metadata store is none that this version of linn writes."""

    code = "metadata.invalid"


class MetadataLater(MetadataError):
    """A later version of linn wrote the metadata of the cluster."""

    code = "metadata.later"
