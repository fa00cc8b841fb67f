"""Bugs in transactions: decisions that come too early, are forgotten, or are about somebody else's records."""

from __future__ import annotations

from mutation import Mutation

_COORDINATOR = "linn.core.transactions.coordinator"
_ENDING = "linn.core.transactions.ending"
_PRODUCER = "linn.core.transactions.producer"
_PARTITION = "linn.core.log.partition"
_LOG = "linn.core.log.transactions"
_TRANSACTIONS = "Transactions"

TRANSACTION_MUTATIONS = (
    Mutation(
        name="a commit is told before its decision is durable",
        breaks="What a client was told to be committed is committed after a power loss.",
        guarantee=_TRANSACTIONS,
        module=_COORDINATOR,
        original="""
            await self._until_committed()
            self.committed += 1
        """,
        planted="self.committed += 1",
        simulation="transactions",
        seed=85,
        says="was published 2 times",
    ),
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
        name="a restart commits what was open",
        breaks="What was not decided is aborted by a restart.",
        guarantee=_TRANSACTIONS,
        module=_COORDINATOR,
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
        seed=10,
        says="was aborted",
    ),
    Mutation(
        name="a restart forgets the offsets of a commit",
        breaks="Offsets take effect with their transaction, whatever restarts.",
        guarantee=_TRANSACTIONS,
        module=_COORDINATOR,
        original="if producer.committed is not None and producer.has_offsets_to_apply:",
        planted="if False:",
        simulation="arrows of transactions",
        seed=144,
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
)
