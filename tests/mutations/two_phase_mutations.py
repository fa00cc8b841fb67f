"""Bugs in two-phase delivery: decisions that are forgotten, told too early, or of somebody else."""

from __future__ import annotations

from mutation import Mutation

_QUEUE = "linn.core.queue.consumer"
_SUBSCRIPTION = "linn.core.queue.subscription"
_STATES = "linn.core.queue.record_states"
_LOG = "linn.core.queue.subscription_log"
_SOURCE = "linn.client.consume.work_source"
_EXACTLY = "Exactly once"

TWO_PHASE_MUTATIONS = (
    Mutation(
        name="a stale ready is answered as if it were decided",
        breaks="A consumer whose lease has ended stores nothing: its records are another's.",
        guarantee=_EXACTLY,
        module=_SUBSCRIPTION,
        original="return self.decide(consumer, delivery_id, ranges, holder, now)",
        planted="""
            try:
                return self.decide(consumer, delivery_id, ranges, holder, now)
            except Exception:
                return Effects()
        """,
        simulation="subscription in two phases",
        seed=0,
        says="DID NOT RAISE",
    ),
    Mutation(
        name="decisions are forgotten in recovery",
        breaks="What was decided is the name's, whatever restarts.",
        guarantee=_EXACTLY,
        module=_STATES,
        original="""
            self.decided.set(first, end, Decision(holder, delivery_id, attempt))
            self._raise_delivery_id(delivery_id + 1)
        """,
        planted="""
            self.orphaned.set(first, end, attempt)
            self._raise_delivery_id(delivery_id + 1)
        """,
        simulation="exactly once",
        seed=34,
        says="had their effect more than once",
    ),
    Mutation(
        name="settled_before is told before it is durable",
        breaks="A client is told that records are settled when a power loss no longer brings them back.",
        guarantee=_EXACTLY,
        module=_LOG,
        original="return self._low_durable",
        planted="return settled_before",
        simulation="exactly once",
        seed=103,
        says="was told, and is",
    ),
    Mutation(
        name="a snapshot leaves out what was decided",
        breaks="A snapshot restores the state, what was decided as well.",
        guarantee=_EXACTLY,
        module=_STATES,
        original="self._decided_run(),",
        planted="None,",
        simulation="subscription in two phases",
        seed=0,
        says="LogCorrupt",
    ),
    Mutation(
        name="a resolved delivery may be decided later",
        breaks="A delivery that was not decided is aborted by the question, so that no stays no.",
        guarantee=_EXACTLY,
        module=_SUBSCRIPTION,
        original="for lease in [lease for lease in self.leases_of(consumer) if lease.delivery_id == delivery_id]:",
        planted="for lease in list[Lease]():",
        simulation="subscription in two phases",
        seed=1,
        says="assert",
    ),
    Mutation(
        name="a consumer that lost its connection takes itself for decided",
        breaks="In doubt a consumer rolls back; what was decided comes again.",
        guarantee=_EXACTLY,
        module=_SOURCE,
        original="""
                return message.is_decided
            return False
        """,
        planted="""
                return message.is_decided
            return True
        """,
        simulation="arrows of two phases",
        seed=6,
        says="had their effect more than once",
    ),
)
