"""The cluster around a broker, as the administration of its topics and exchanges needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from linn.core.topics.holder import Holder
from linn.core.topics.topic import Topic


class Elsewhere(Protocol):
    """A cluster, which decides where topics are open."""

    @property
    def number(self) -> int:
        """The number of this broker's node."""

    def check_level(self, what: str) -> None:
        """Refuse what needs the level of transient topics and exchanges. Raises LevelTooLow."""

    def holder(self, epoch: int) -> Holder:
        """This broker as the holder of a new transient topic or exchange. Raises LevelTooLow."""

    def conditions_of(self, topic: Topic) -> Mapping[str, int]:
        """Conditions of a write that hold as long as this broker leads a topic. Raises NotLeader."""

    def close(self, topic: Topic) -> None:
        """Close a new topic until its leader is known."""

    async def forget(self, topic: Topic) -> None:
        """Delete the logs of a topic that is gone. Raises SyncFailed."""

    async def count_nodes(self, enough: int) -> int:
        """Count the nodes that the cluster knows, alive or not, by the metadata store itself unless there are `enough`.

        Raises MetadataError, MetadataInvalid.
        """
