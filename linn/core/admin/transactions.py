"""The verbs about transactions: list the known and open ones, show what a transaction holds back, and abort it.

Law: when an operator aborts a transaction, the log records it with the caller.
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
from linn.core.ports.principal import Principal
from linn.core.security.access import Access
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
from linn.rights import GROUP, SEE, TOPIC, TRANSACTION

logger = logging.getLogger("linn.administration")

TRANSACTIONS_SHOWN_MAX = 1_000
"""Limit of the transactions in one answer of about 250 KiB; further transactions are counted."""
_STEP = 100
"""Entries described in one step, which takes well below a millisecond."""


class TransactionAdministration:
    """Transactions, shown and aborted while the broker runs."""

    def __init__(
        self, topics: Mapping[str, Topic], transactions: TransactionCoordinator, clock: Clock, long_work: LongWork
    ) -> None:
        self._topics = topics
        self._transactions = transactions
        self._clock = clock
        self._long_work = long_work

    async def list_all(self, asked: verbs.TransactionFilter, caller: Principal) -> TransactionSummaries:
        """The names: with an open transaction, oldest first; then names whose end is under way; then idle names."""
        state = None if asked.state is None else State(asked.state)
        limit = min(asked.limit or TRANSACTIONS_SHOWN_MAX, TRANSACTIONS_SHOWN_MAX)
        return await self._long_work.run(self._first_of(caller.access, state, limit), immediate=True)

    def _first_of(self, access: Access, state: State | None, limit: int) -> Steps[TransactionSummaries]:
        coordinator = self._transactions
        order = {State.OPEN: 0, State.ENDING: 1, State.IDLE: 2}
        opened = dict.fromkeys(coordinator.open_now())
        others = [name_state for _, name_state in sorted(coordinator.names.items()) if name_state not in opened]
        yield
        every = [name_state for name_state in (*opened, *others) if state in (None, name_state.state)]
        visible = set(access.visible(TRANSACTION, [name_state.name for name_state in every]))
        chosen = [name_state for name_state in every if name_state.name in visible]
        chosen.sort(key=lambda name_state: order[name_state.state])
        yield
        shown = []
        for at, name_state in enumerate(chosen[:limit]):
            shown.append(self._summary(name_state))
            if at % _STEP == _STEP - 1:
                yield
        return {"transactions": shown, "more": len(chosen) - len(shown)}

    def _summary(self, name_state: TransactionalProducer) -> TransactionSummary:
        work, is_idle = name_state.work, name_state.state is State.IDLE
        return {
            "name": name_state.name,
            "state": name_state.state.value,
            "producer_id": name_state.producer_id,
            "epoch": name_state.epoch,
            "number": name_state.number,
            "open_s": None if is_idle else round(self._clock.monotonic() - name_state.began_s, 3),
            "timeout_s": name_state.timeout_s,
            "partitions": len({place for places in work.wrote.values() for place in places}) + len(name_state.joined),
            "branches": len(name_state.branches),
            "offsets": len(work.offsets),
            "queue_partitions": len(work.held),
            "since_ms": name_state.opened_ms,
        }

    async def show(self, asked: verbs.Named, caller: Principal) -> TransactionDescription:
        """One name, and everything that its transaction has touched in topics that the caller may see."""
        name_state = self._transactions.named(asked.name)
        return await self._long_work.run(self._described(name_state, caller.access), immediate=True)

    def _described(self, name_state: TransactionalProducer, access: Access) -> Steps[TransactionDescription]:
        shown, work, number = self._summary(name_state), name_state.work, name_state.number
        wrote: dict[tuple[str, int], WrittenPartition] = {}
        for branch, places in list(work.wrote.items()):
            for topic, partition in list(places):
                index = partition.id.index
                row: WrittenPartition = {"topic": topic.name, "partition": index, "held_from": None}
                row = wrote.setdefault((topic.name, index), row)
                first = _first(topic.partitions[index], branch, number)
                if first is not None and (row["held_from"] is None or first < row["held_from"]):
                    row["held_from"] = first
            yield
        elsewhere = self._joined(name_state, wrote)
        yield
        holds = yield from self._holds(name_state)
        offsets: list[CommittedOffset] = [
            {"group": group, "topic": topic, "partition": partition, "offset": offset}
            for (group, topic, partition), offset in work.offsets.items()
            if access.may(SEE, TOPIC, topic) and access.may(SEE, GROUP, group)
        ]
        seen = [wrote[key] for key in sorted(wrote) if access.may(SEE, TOPIC, key[0])]
        holds = [held for held in holds if access.may(SEE, TOPIC, held["topic"])]
        elsewhere = [topic for topic in elsewhere if access.may(SEE, TOPIC, topic)]
        return {**shown, "wrote": seen, "holds": holds, "commits": offsets, "elsewhere": elsewhere}

    def _joined(self, name_state: TransactionalProducer, wrote: dict[tuple[str, int], WrittenPartition]) -> list[str]:
        """Add the partitions of topics that have joined, and are led here, to `wrote`; returns the other topics."""
        elsewhere = []
        for (name, _), branches in sorted(name_state.joined.items()):
            topic = self._topics.get(name)
            if topic is None or topic.led_by is not None:
                elsewhere.append(name)
                continue
            for index, partition in topic.partitions.items():
                firsts = [_first(partition, branch, name_state.number) for branch in branches]
                found = [first for first in firsts if first is not None]
                if found:
                    wrote[name, index] = {"topic": name, "partition": index, "held_from": min(found)}
        return elsewhere

    def _holds(self, name_state: TransactionalProducer) -> Steps[list[HeldRecords]]:
        """The partitions of queues with records held by the transaction."""
        found: list[HeldRecords] = []
        held, holder = dict.fromkeys(name_state.work.held), holder_of(name_state.producer_id, name_state.number)
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

    async def abort(self, asked: verbs.TransactionAbort, caller: Principal) -> verbs.Aborted:
        """Abort a name's open transaction, for a client that is lost or blocks others.

        With a `number`, abort only that transaction: a client starts the next one as soon as the last has ended.
        """
        name, coordinator = asked.name, self._transactions
        name_state = coordinator.opened(name)
        if asked.number not in (None, name_state.number):
            raise TransactionUnknown(f'"{name}" is at transaction {name_state.number}, not {asked.number}')
        summary = self._summary(name_state)
        warning = f"a client that is still at work in transaction {name_state.number} gets transaction.aborted"
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
        about = {**summary, "caller": caller.described()}
        coordinator.abort_by_operator(name)
        text = (
            'an operator, %(caller)s, has aborted transaction %(number)d of "%(name)s", which was open for '
            "%(open_s)g s: %(partitions)d partitions, %(offsets)d offsets, %(queue_partitions)d partitions of queues"
        )
        logger.warning(text, about)
        return result


def _first(partition: Partition, branch: int, number: int) -> int | None:
    """The first offset that a producer's transaction holds back from a partition's readers; None if there is none."""
    opened = partition.open_transactions().get(branch)
    return opened.first if opened is not None and opened.number == number else None
