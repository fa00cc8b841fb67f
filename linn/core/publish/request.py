"""Requests to publish, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.core.log.mark import Mark
from linn.core.queue.semantics import Acks


class PublishRequest(NamedTuple):
    """A publish of batches to one topic, or to one exchange."""

    target: str
    batches: Sequence[RecordBatch]
    """The batches, not verified yet. Their bytes belong to the broker once they are published."""
    to_exchange: bool = False
    partition: int = -1
    """A partition of the topic; -1: the topic's partitioner chooses. For a transfer, the partition that the records
    come from: the one of that number in each topic, counted round.
    """
    acks: Acks = "all"
    wants_returned: bool = False
    """Whether the results list the records that no topic takes."""
    topics: Sequence[str] = ()
    """The topics behind the exchange that the batches go to, as the broker that they come from has found; none: the
    exchange decides.
    """


class RefusedRecords(NamedTuple):
    """Records of one batch that were refused, and are stored nowhere."""

    error: LinnError
    records: list[int]
    """Ranges of indexes: first, end, first, end and so on."""

    @property
    def number(self) -> int:
        """Number of the records."""
        return sum(self.records[1::2]) - sum(self.records[::2])


class PublishResult(NamedTuple):
    """The result of publishing one batch."""

    partition: int
    """The partition of all records that were not refused; -1: they went to several or to none, or some were not stored.
    """
    base_offset: int
    """The offset of the first of them; -1 if `partition` is -1."""
    copies: int
    """Number of records stored, in all topics together."""
    returned: list[int]
    """Ranges of indexes that no topic takes, as first, end, first, end and so on; empty unless requested."""
    leader_epoch: int = 0
    """The epoch in which it was appended; 0 if it went to several topics or to none."""
    topic_id_high: int = 0
    """Upper half of the topic's id; 0 if there are several or none."""
    topic_id_low: int = 0
    """Lower half of the topic's id."""
    refused: Sequence[RefusedRecords] = ()


class PublishAnswers(Protocol):
    """Receives the outcome of each publish, by the ticket given to it."""

    def stored(self, ticket: int, results: Sequence[PublishResult], awaits: Sequence[tuple[Mark, int]]) -> None:
        """A publish is stored; it is confirmed once each mark has passed its offset."""

    def refused(self, ticket: int, error: LinnError) -> None:
        """A publish was refused; nothing of it is stored unless the `LinnError` says otherwise."""

    def failed(self, ticket: int, error: Exception) -> None:
        """A publish failed because of a bug of linn or of a plugin."""

    def room(self) -> None:
        """Called when fewer bytes of publishes wait than before."""
