"""LeftOpen: the transactions that a start of the broker finds open in the topics' logs.

Laws: the transactions' log decides each of them: it is marked as committed or aborted, or goes on. A transaction that
the log does not know, or decides without naming the producer, is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from linn.core.groups.coordinator import GroupCoordinator
from linn.core.topics.topic import Topic
from linn.core.transactions.holder import ProducerTransaction, transactions_in
from linn.core.transactions.producer import TransactionalProducer


class LeftOpen:
    """Open transactions, each of which goes on or ends here."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        groups: GroupCoordinator,
        names: Iterable[TransactionalProducer],
        name_of: Callable[[int], TransactionalProducer | None],
        take_up: Callable[[TransactionalProducer], None],
    ) -> None:
        """`names`: all of them, as the log has them. `name_of` returns a name by one of its producers; `take_up` is
        called for a name whose present transaction has something open.
        """
        self._topics = topics
        self._groups = groups
        self._name_of = name_of
        self._take_up = take_up
        self._committed: dict[ProducerTransaction, TransactionalProducer] = {}
        self.unmarked: dict[TransactionalProducer, None] = {}
        """Names whose last commit may not be marked everywhere yet."""
        for name_state in names:
            if (decision := name_state.committed) is not None:
                parts = name_state.producer_id, *decision.branches
                self._committed.update({ProducerTransaction(id, decision.number): name_state for id in parts})
                self.unmarked[name_state] = None

    def end(self) -> None:
        """End decided transactions, and let the others go on. Can be repeated.

        Raises StorageError: something is not marked.
        """
        for topic in list(self._topics.values()):
            for partition in topic.written_logs():
                for producer_id, opened in list(partition.open_transactions().items()):
                    part = ProducerTransaction(producer_id, opened.number)
                    if (name_state := self._present(part)) is not None:
                        name_state.work.add(producer_id, topic, partition, partition.log.bounds()[1])
                        self._take_up(name_state)
                        continue
                    committer = self._committed.get(part)
                    partition.end_transaction(producer_id, 0, opened.number, is_commit=committer is not None)
                    if committer is not None:
                        committer.markers.append((partition.committed, partition.log.bounds()[1]))
            for partition_queue in topic.partition_queues():
                for holder, held in transactions_in(partition_queue):
                    if (name_state := self._present(held)) is not None:
                        name_state.work.held[partition_queue] = None
                        self._take_up(name_state)
                        continue
                    committer = self._committed.get(held)
                    marked = partition_queue.end_held(holder, is_commit=committer is not None)
                    if committer is not None and marked is not None:
                        committer.markers.append(marked)

        for group, topic_name, numbers in list(self._groups.pending()):
            part = ProducerTransaction(*numbers)
            if (name_state := self._present(part)) is not None:
                for place, offset in self._groups.groups[group].pending[numbers].items():
                    name_state.work.offsets[group, *place] = offset.offset
                name_state.work.pending[group, topic_name] = ()
                self._take_up(name_state)
                continue
            committer = self._committed.get(part)
            awaits = self._groups.end_pending(group, topic_name, numbers, is_commit=committer is not None)
            if committer is not None:
                committer.markers += awaits
                committer.unsynced.add(topic_name)

    def _present(self, part: ProducerTransaction) -> TransactionalProducer | None:
        """Return the name whose present transaction this is; None: it has ended, or the log has no such name."""
        name_state = self._name_of(part.producer_id)
        return name_state if name_state is not None and name_state.number == part.number else None
