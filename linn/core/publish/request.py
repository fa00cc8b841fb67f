"""What is asked of a publish, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.core.log.partition import Partition
from linn.core.queue.semantics import Acks


class PublishRequest(NamedTuple):
    """Batches for one topic, or for one exchange."""

    target: str
    batches: Sequence[RecordBatch]
    """Not verified yet. Their bytes belong to the broker once they are published."""
    to_exchange: bool = False
    partition: int = -1
    """Of a topic; -1: the topic's partitioner chooses."""
    acks: Acks = "all"
    wants_returned: bool = False
    """Whether the results say which records no topic takes."""


class PublishResult(NamedTuple):
    """What became of one published batch."""

    partition: int
    """Of the whole batch; -1: it went to several, to none, or not all of it went anywhere."""
    base_offset: int
    """-1 where `partition` is."""
    copies: int
    """Records stored, in all topics together."""
    returned: list[int]
    """Where it was asked for: ranges of indexes that no topic takes, as first, end, first, end and so on."""


class PublishAnswers(Protocol):
    """Takes what became of publishes, each by the ticket that it was given."""

    def stored(self, ticket: int, results: Sequence[PublishResult], awaits: Sequence[tuple[Partition, int]]) -> None:
        """A publish is stored, and confirmed once each partition has committed up to its offset."""

    def refused(self, ticket: int, error: LinnError) -> None:
        """Nothing of a publish is stored, but for what `LinnError` says."""

    def failed(self, ticket: int, error: Exception) -> None:
        """A publish failed by a bug, of linn or of a plugin."""

    def room(self) -> None:
        """Less waits than before."""
