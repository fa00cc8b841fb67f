"""The verbs about transactions: which are known and open, what each holds back, and how an operator aborts one.

Law: a transaction that was aborted by an operator is on record, with who asked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from linn.core.admin.administered import Administered
from linn.core.admin.exchanges import text_of
from linn.core.admin.verb import only_validates
from linn.core.batch.steps import Steps
from linn.core.errors.tree import ConfigError, TransactionUnknown
from linn.core.log.partition import Partition
from linn.core.transactions.holder import holder_of
from linn.core.transactions.producer import State, TransactionalProducer

logger = logging.getLogger("linn.administration")

Arguments = Mapping[str, Any]

TRANSACTIONS_SHOWN_MAX = 1_000
"""Limit of the transactions in one answer, which is about 250 KiB; the others are counted."""
_ABORTED = ("number", "open_s", "partitions", "offsets", "queue_partitions")
"""Keys of the summary that the answer to an abort has."""
_STEP = 100
"""Entries that are described in one step, which takes well below a millisecond."""


class TransactionAdministration:
    """Transactions, shown and aborted while the broker runs."""

    def __init__(self, broker: Administered) -> None:
        self._broker = broker

    async def list_all(self, arguments: Arguments) -> Any:
        """The names: those with an open transaction, the oldest first, then those whose end is under way, then idle
        ones.
        """
        state, limit = _state(arguments), _limit(arguments)
        return await self._broker.long_work.run(self._first_of(state, limit), immediate=True)

    def _first_of(self, state: State | None, limit: int) -> Steps[dict[str, Any]]:
        coordinator = self._broker.transactions
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

    def _summary(self, each: TransactionalProducer) -> dict[str, Any]:
        work, is_idle = each.work, each.state is State.IDLE
        return {
            "name": each.name,
            "state": each.state.value,
            "producer_id": each.producer_id,
            "epoch": each.epoch,
            "number": each.number,
            "open_s": None if is_idle else round(self._broker.env.clock.monotonic() - each.began_s, 3),
            "timeout_s": None if each.is_closed else each.timeout_s,
            "partitions": len({place for places in work.wrote.values() for place in places}),
            "branches": len(each.branches),
            "offsets": len(work.offsets),
            "queue_partitions": len(work.held),
            "since_ms": each.opened_ms,
        }

    async def show(self, arguments: Arguments) -> Any:
        """One name: the same, and what its transaction has touched."""
        each = self._broker.transactions.named(text_of(arguments, "name"))
        return await self._broker.long_work.run(self._described(each), immediate=True)

    def _described(self, each: TransactionalProducer) -> Steps[dict[str, Any]]:
        shown, work, number = self._summary(each), each.work, each.number
        wrote: dict[tuple[str, int], dict[str, Any]] = {}
        for branch, places in list(work.wrote.items()):
            for topic, index in list(places):
                row: dict[str, Any] = {"topic": topic.name, "partition": index, "held_from": None}
                row = wrote.setdefault((topic.name, index), row)
                first = _first(topic.partitions[index], branch, number)
                if first is not None and (row["held_from"] is None or first < row["held_from"]):
                    row["held_from"] = first
            yield
        holds = yield from self._holds(each)
        offsets = [
            {"group": group, "topic": topic, "partition": partition, "offset": pending.committed.offset}
            for (group, topic, partition), pending in work.offsets.items()
        ]
        return shown | {"wrote": [wrote[key] for key in sorted(wrote)], "holds": holds, "commits": offsets}

    def _holds(self, each: TransactionalProducer) -> Steps[list[dict[str, Any]]]:
        """The partitions of queues of which its transaction holds records."""
        found, held, holder = [], dict.fromkeys(each.work.held), holder_of(each.producer_id, each.number)
        for _, topic in sorted(self._broker.topics.items()):
            for _, queue in sorted(topic.subscriptions.items()):
                for partition, partition_queue in enumerate(queue.partition_queues):
                    if partition_queue in held:
                        records = sum(end - first for first, end, _ in partition_queue.subscription.decided_to(holder))
                        place = {"topic": queue.topic, "subscription": queue.name, "partition": partition}
                        found.append(place | {"records": records})
                yield
        return found

    async def abort(self, arguments: Arguments, caller: str) -> Any:
        """Abort a name's open transaction, for a client that is lost, or in the way of others.

        With a `number` only that one: a client goes on with the next one as soon as one has ended.
        """
        name, coordinator = text_of(arguments, "name"), self._broker.transactions
        asked, each = _number(arguments), coordinator.opened(name)
        if asked not in (None, each.number):
            raise TransactionUnknown(f'"{name}" is at transaction {each.number}, not {asked}')
        summary = self._summary(each)
        result = {key: summary[key] for key in _ABORTED} | {"warnings": [{"text": text} for text in _warnings(each)]}
        if only_validates(arguments):
            return result
        about = summary | {"caller": caller}
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


def _warnings(each: TransactionalProducer) -> list[str]:
    """Warnings of what an abort may lead to."""
    return [f"a client that is still at work in transaction {each.number} gets transaction.aborted, and has to redo it"]


def _state(arguments: Arguments) -> State | None:
    """The state that is asked for; None: any. Raises ConfigError."""
    asked = arguments.get("state")
    for state in State:
        if asked == state.value:
            return state
    if asked is not None:
        raise ConfigError('the argument "state" must be "idle", "open" or "ending"')
    return None


def _number(arguments: Arguments) -> int | None:
    """The number of the transaction that is meant; None: the present one. Raises ConfigError."""
    number = arguments.get("number")
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise ConfigError('the argument "number" must be a whole number')
    return number


def _limit(arguments: Arguments) -> int:
    limit = arguments.get("limit", TRANSACTIONS_SHOWN_MAX)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigError('the argument "limit" must be a whole number above 0')
    return min(limit, TRANSACTIONS_SHOWN_MAX)
