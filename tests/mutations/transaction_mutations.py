"""Bugs in transactions: decisions that come too early, are forgotten, or are about somebody else's records."""

from __future__ import annotations

from mutation import Mutation

_COORDINATOR = "linn.core.transactions.coordinator"
_LEFT_OPEN = "linn.core.transactions.left_open"
_ENDING = "linn.core.transactions.ending"
_PRODUCER = "linn.core.transactions.producer"
_PARTITION = "linn.core.log.partition"
_LOG = "linn.core.log.transactions"
_PARTICIPANT = "linn.core.transactions.participant"
_CLUSTER_COORDINATOR = "linn.core.transactions.cluster_coordinator"
_TRANSACTIONS = "Transactions"

TRANSACTION_MUTATIONS = (
    Mutation(
        name="anybody ends a transaction by its numbers",
        breaks="A transaction is ended by the client that opened its name, or by one that has the key.",
        guarantee=_TRANSACTIONS,
        module="linn.core.publish.producer_ids",
        original="""
            if producer_id >> PRODUCER_BITS not in self.blocks:
                raise self.foreign(producer_id)
        """,
        planted="pass",
        simulation="forging",
        seed=0,
        says="the owner was refused: transaction.unknown",
    ),
    Mutation(
        name="a restart commits what was aborted",
        breaks="What the log does not name as committed is aborted by a restart.",
        guarantee=_TRANSACTIONS,
        module=_LEFT_OPEN,
        original="partition.end_transaction(producer_id, 0, opened.number, is_commit=committer is not None)",
        planted="partition.end_transaction(producer_id, 0, opened.number, is_commit=True)",
        simulation="transactions",
        seed=0,
        says="nobody has asked for its commit",
    ),
    Mutation(
        name="an abort acks what the transaction holds",
        breaks="What an aborted transaction was to ack is delivered again.",
        guarantee=_TRANSACTIONS,
        module=_ENDING,
        original=(
            "marked = None if partition_queue.is_closed else "
            "partition_queue.end_held(holder, is_commit=decision is not None)"
        ),
        planted="marked = None if partition_queue.is_closed else partition_queue.end_held(holder, is_commit=True)",
        simulation="transactions",
        seed=18,
        says="never made into",
    ),
    Mutation(
        name="a lost answer to a commit is told to be an abort",
        breaks="A commit may be asked for again, and is answered as it was.",
        guarantee=_TRANSACTIONS,
        module=_COORDINATOR,
        original="if producer is not None and producer.was_committed(number):",
        planted="if producer is not None and producer.was_committed(number) and not is_commit:",
        simulation="transactions",
        seed=20,
        says="was aborted",
    ),
    Mutation(
        name="a restart drops the offsets of a commit",
        breaks="Offsets take effect with their transaction, whatever restarts.",
        guarantee=_TRANSACTIONS,
        module=_LEFT_OPEN,
        original=("awaits = self._groups.end_pending(group, topic_name, numbers, is_commit=committer is not None)"),
        planted="awaits = self._groups.end_pending(group, topic_name, numbers, is_commit=False)",
        simulation="arrows of transactions",
        seed=156,
        says="made more than once",
    ),
    Mutation(
        name="a commit that has taken effect is done again",
        breaks="A commit of a job's batch takes effect once, whatever run repeats it.",
        guarantee=_TRANSACTIONS,
        module=_PRODUCER,
        original="if last is None or not sequence or sequence > last.sequence:",
        planted="if True:",
        simulation="arrows of transactions",
        seed=3,
        says="the job has written",
    ),
    Mutation(
        name="a leader commits what its coordinator has aborted",
        breaks="Nothing of an aborted transaction is read, whichever broker leads the topic.",
        guarantee=_TRANSACTIONS,
        module=_PARTICIPANT,
        original="partition.end_transaction(branch, 0, marks.number, is_commit=branches[branch])",
        planted="partition.end_transaction(branch, 0, marks.number, is_commit=True)",
        simulation="transactions over brokers",
        seed=2,
        says="was told to be aborted",
    ),
    Mutation(
        name="a leader acks what an aborted transaction holds",
        breaks="What an aborted transaction was to ack is delivered again, whichever broker leads the topic.",
        guarantee=_TRANSACTIONS,
        module=_PARTICIPANT,
        original="partition_queue.end_held(holder, is_commit=is_commit)",
        planted="partition_queue.end_held(holder, is_commit=True)",
        simulation="transactions over brokers",
        seed=4,
        says="these jobs do not come",
    ),
    Mutation(
        name="a new coordinator does not mark the last ends",
        breaks="What was decided is marked in all topics, also by the next coordinator.",
        guarantee=_TRANSACTIONS,
        module=_CLUSTER_COORDINATOR,
        original="""
            if (unmarked := producer.unmarked) is not None:
                self._tell(producer, unmarked)
        """,
        planted="pass",
        simulation="transactions over brokers",
        seed=0,
        says="these orders do not come",
    ),
)
