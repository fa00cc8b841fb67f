"""The verbs about transactions: which are known and open, what each holds back, and how an operator aborts one.

Law: a transaction that was aborted by an operator is on record, with who asked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from linn import verbs
from linn.core.batch.steps import Steps
from linn.core.env.env import Clock
from linn.core.errors.tree import TransactionUnknown
from linn.core.log.partition import Partition
from linn.core.loop.long_work import LongWork
from linn.core.topics.topic import Topic
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.core.transactions.holder import holder_of
from linn.core.transactions.producer import State, TransactionalProducer
from linn.descriptions import (
    CommittedOffset,
    HeldRecords,
    TransactionDescription,
    TransactionSummaries,
    TransactionSummary,
    WrittenPartition,
)

logger = logging.getLogger("linn.administration")

TRANSACTIONS_SHOWN_MAX = 1_000
"""Limit of the transactions in one answer, which is about 250 KiB; the others are counted."""
_STEP = 100
"""Entries that are described in one step, which takes well below a millisecond."""


class TransactionAdministration:
    """Transactions, shown and aborted while the broker runs."""

    def __init__(
        self, topics: Mapping[str, Topic], transactions: TransactionCoordinator, clock: Clock, long_work: LongWork
    ) -> None:
        self._topics = topics
        self._transactions = transactions
        self._clock = clock
        self._long_work = long_work

    async def list_all(self, asked: verbs.TransactionFilter) -> TransactionSummaries:
        """The names: those with an open transaction, the oldest first, then those whose end is under way, then idle
        ones.
        """
        state = None if asked.state is None else State(asked.state)
        limit = min(asked.limit or TRANSACTIONS_SHOWN_MAX, TRANSACTIONS_SHOWN_MAX)
        return await self._long_work.run(self._first_of(state, limit), immediate=True)

    def _first_of(self, state: State | None, limit: int) -> Steps[TransactionSummaries]:
        coordinator = self._transactions
        order = {State.OPEN: 0, State.ENDING: 1, State.IDLE: 2}
        opened = dict.fromkeys(coordinator.open_now())
        others = [each for _, each in sorted(coordinator.names.items()) if each not in opened]
        yield
        chosen = [each for each in (*opened, *others) if state in (None, each.state)]
        chosen.sort(key=lambda each: order[each.state])
        yield
        shown = []
        for at, each in enumerate(chosen[:limit]):
            shown.append(self._summary(each))
            if at % _STEP == _STEP - 1:
                yield
        return {"transactions": shown, "more": len(chosen) - len(shown)}

    def _summary(self, each: TransactionalProducer) -> TransactionSummary:
        work, is_idle = each.work, each.state is State.IDLE
        return {
            "name": each.name,
            "state": each.state.value,
            "producer_id": each.producer_id,
            "epoch": each.epoch,
            "number": each.number,
            "open_s": None if is_idle else round(self._clock.monotonic() - each.began_s, 3),
            "timeout_s": None if each.is_closed else each.timeout_s,
            "partitions": len({place for places in work.wrote.values() for place in places}),
            "branches": len(each.branches),
            "offsets": len(work.offsets),
            "queue_partitions": len(work.held),
            "since_ms": each.opened_ms,
        }

    async def show(self, asked: verbs.Named) -> TransactionDescription:
        """One name: the same, and what its transaction has touched."""
        each = self._transactions.named(asked.name)
        return await self._long_work.run(self._described(each), immediate=True)

    def _described(self, each: TransactionalProducer) -> Steps[TransactionDescription]:
        shown, work, number = self._summary(each), each.work, each.number
        wrote: dict[tuple[str, int], WrittenPartition] = {}
        for branch, places in list(work.wrote.items()):
            for topic, index in list(places):
                row: WrittenPartition = {"topic": topic.name, "partition": index, "held_from": None}
                row = wrote.setdefault((topic.name, index), row)
                first = _first(topic.partitions[index], branch, number)
                if first is not None and (row["held_from"] is None or first < row["held_from"]):
                    row["held_from"] = first
            yield
        holds = yield from self._holds(each)
        offsets: list[CommittedOffset] = [
            {"group": group, "topic": topic, "partition": partition, "offset": pending.committed.offset}
            for (group, topic, partition), pending in work.offsets.items()
        ]
        return {**shown, "wrote": [wrote[key] for key in sorted(wrote)], "holds": holds, "commits": offsets}

    def _holds(self, each: TransactionalProducer) -> Steps[list[HeldRecords]]:
        """The partitions of queues of which its transaction holds records."""
        found: list[HeldRecords] = []
        held, holder = dict.fromkeys(each.work.held), holder_of(each.producer_id, each.number)
        for _, topic in sorted(self._topics.items()):
            for _, queue in sorted(topic.subscriptions.items()):
                for partition, partition_queue in enumerate(queue.partition_queues):
                    if partition_queue in held:
                        records = sum(end - first for first, end, _ in partition_queue.subscription.decided_to(holder))
                        found.append(
                            {
                                "topic": queue.topic,
                                "subscription": queue.name,
                                "partition": partition,
                                "records": records,
                            }
                        )
                yield
        return found

    async def abort(self, asked: verbs.TransactionAbort, caller: str) -> verbs.Aborted:
        """Abort a name's open transaction, for a client that is lost, or in the way of others.

        With a `number` only that one: a client goes on with the next one as soon as one has ended.
        """
        name, coordinator = asked.name, self._transactions
        each = coordinator.opened(name)
        if asked.number not in (None, each.number):
            raise TransactionUnknown(f'"{name}" is at transaction {each.number}, not {asked.number}')
        summary = self._summary(each)
        warning = f"a client that is still at work in transaction {each.number} gets transaction.aborted"
        result: verbs.Aborted = {
            "number": summary["number"],
            "open_s": summary["open_s"] or 0.0,
            "partitions": summary["partitions"],
            "offsets": summary["offsets"],
            "queue_partitions": summary["queue_partitions"],
            "warnings": [{"text": f"{warning}, and has to redo it"}],
        }
        if asked.validate_only:
            return result
        about = {**summary, "caller": caller}
        coordinator.abort_by_operator(name)
        text = (
            'an operator, %(caller)s, has aborted transaction %(number)d of "%(name)s", which was open for '
            "%(open_s)g s: %(partitions)d partitions, %(offsets)d offsets, %(queue_partitions)d partitions of queues"
        )
        logger.warning(text, about)
        return result


def _first(partition: Partition, branch: int, number: int) -> int | None:
    """The offset from which a producer's transaction holds readers of a partition back; None if it does not."""
    opened = partition.open_transactions().get(branch)
    return opened.first if opened is not None and opened.number == number else None
