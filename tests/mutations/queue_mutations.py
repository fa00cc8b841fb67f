"""Bugs in what a queue knows: leases, attempts, order, dead letters, and what of it survives."""

from __future__ import annotations

from mutation import Mutation

_LEASE = "linn.core.lease"
_SUBSCRIPTION = "linn.core.subscription"
_STATES = "linn.core.record_states"
_DISPATCH = "linn.core.shared_dispatch"
_COPY = "linn.core.dead_letter_copy"
_ONCE = "At least once"
_DEAD = "Dead letters"

QUEUE_MUTATIONS = (
    Mutation(
        name="a lease never expires",
        breaks="The lease ends at its deadline, and the record is delivered again.",
        guarantee=_ONCE,
        module=_LEASE,
        original="if deadline is None or deadline > now:",
        planted="if deadline is None or deadline <= now or deadline > now:",
        simulation="subscription",
        seed=0,
        says="no lease and no delay outlives its time",
    ),
    Mutation(
        name="an id that has expired is accepted",
        breaks="A settlement under an id that is not current is refused and changes nothing.",
        guarantee=_ONCE,
        module=_LEASE,
        original="if lease is None or lease.deadline <= now:",
        planted="if lease is None:",
        simulation="subscription",
        seed=0,
        says="DID NOT RAISE",
    ),
    Mutation(
        name="another consumer's id is accepted",
        breaks="A settlement under an id that is not the consumer's own is refused and changes nothing.",
        guarantee=_ONCE,
        module=_LEASE,
        original="lease = mine.get(delivery_id) if mine is not None else None",
        planted="lease = next((lease for lease in self if lease.delivery_id == delivery_id), None)",
        simulation="subscription",
        seed=0,
        says="DID NOT RAISE",
    ),
    Mutation(
        name="ids are used again after a restart",
        breaks="Ids are never used again, also not after a restart.",
        guarantee=_ONCE,
        module=_SUBSCRIPTION,
        original="states.leases.next_delivery_id += DELIVERY_ID_GAP",
        planted="states.leases.next_delivery_id += 0",
        simulation="subscription",
        seed=0,
        says="delivery ids grow, also over crashes",
    ),
    Mutation(
        name="acking a part ends the whole lease",
        breaks="A record is delivered until somebody settles it: this one, not its neighbour.",
        guarantee=_ONCE,
        module=_LEASE,
        original="if ranges is None or (len(pieces) == 1 and pieces == lease.ranges()):",
        planted="if ranges is None or len(pieces) == 1:",
        simulation="subscription",
        seed=0,
        says="are in two states or in none",
    ),
    Mutation(
        name="what is returned goes to the tail",
        breaks="What comes back to a queue goes to its place, not to the end.",
        guarantee="Order",
        module=_SUBSCRIPTION,
        original="if ready.count:",
        planted="if ready.count and states.cursor >= end:",
        simulation="subscription",
        seed=0,
        says="the lowest that are ready, with their attempts",
    ),
    Mutation(
        name="an attempt is counted twice",
        breaks="In each redelivery the attempt is counted, once.",
        guarantee=_ONCE,
        module=_SUBSCRIPTION,
        original="attempt = min(attempts + 1, ATTEMPTS_MAX)",
        planted="attempt = min(attempts + (2 if attempts else 1), ATTEMPTS_MAX)",
        simulation="subscription",
        seed=0,
        says="the lowest that are ready, with their attempts",
    ),
    Mutation(
        name="attempts are forgotten by a restart",
        breaks="Attempts survive a restart.",
        guarantee=_ONCE,
        module=_STATES,
        original="self.orphaned.set(first, end, attempt)",
        planted="self.orphaned.set(first, end, 1)",
        simulation="subscription",
        seed=2,
        says="the lowest that are ready, with their attempts",
    ),
    Mutation(
        name="one delivery more than max_deliveries",
        breaks="A record that is returned after `max_deliveries` attempts goes to the dead-letter topic.",
        guarantee=_DEAD,
        module=_SUBSCRIPTION,
        original="if limit is not None and attempts >= limit:",
        planted="if limit is not None and attempts > limit:",
        simulation="subscription",
        seed=0,
        says="same_state",
    ),
    Mutation(
        name="a dead letter is settled before its copy is committed",
        breaks="The copy is committed there before the record is settled here.",
        guarantee=_DEAD,
        module=_COPY,
        original="await target.wait_committed(end)",
        planted="assert end >= 0",
        simulation="dead letters",
        seed=126,
        says="one copy of each",
    ),
    Mutation(
        name="a dead letter is copied again after a crash",
        breaks="There is one copy: after a restart the target is searched from where the intent says.",
        guarantee=_DEAD,
        module=_COPY,
        original=(
            "done = await _copied_before(dispatch.partition, dead, target, place) if dead.target is not None else None"
        ),
        planted="done = None",
        simulation="dead letters",
        seed=1126,
        says="one copy of each",
    ),
    Mutation(
        name="a copy is made before its intent is durable",
        breaks="There is one copy, whatever dies in between: the intent is logged first.",
        guarantee=_DEAD,
        module=_COPY,
        original="""
            if dispatch.state is not None:
                await dispatch.state.partition.wait_committed(position)
        """,
        planted="assert position >= 0",
        simulation="dead letters",
        seed=7122,
        says="one copy of each",
    ),
    Mutation(
        name="an ack is answered before it is durable",
        breaks="An ack that was answered holds.",
        guarantee=_ONCE,
        module="linn.core.queue",
        original="return SettleOutcome(refused, self._flush(touched.values()))",
        planted="""
            self._flush(touched.values())
            return SettleOutcome(refused, ())
        """,
        simulation="broker",
        seed=36,
        says="[what is settled stays settled]",
    ),
    Mutation(
        name="an ack is not logged",
        breaks="An ack that was answered holds, also over a crash.",
        guarantee=_ONCE,
        module=_SUBSCRIPTION,
        original="""
            self._events.settled(first, end)
            self._states.settle(first, end)
        """,
        planted="self._states.settle(first, end)",
        simulation="subscription",
        seed=0,
        says="same_state",
    ),
    Mutation(
        name="a snapshot loses a settled range",
        breaks="An ack that was answered holds, also where a snapshot has replaced the log of it.",
        guarantee=_ONCE,
        module=_STATES,
        original=(
            "events: list[Settled | Acquired | Returned | Died] = [Settled(first, end) for first, end in self.settled]"
        ),
        planted=(
            "events: list[Settled | Acquired | Returned | Died] = "
            "[Settled(first, end) for first, end in list(self.settled)[1:]]"
        ),
        simulation="subscription",
        seed=2,
        says="same_state",
    ),
    Mutation(
        name="ranges that meet are merged too short",
        breaks="A record is settled once its ack is: what is settled does not come back.",
        guarantee=_ONCE,
        module="linn.core.offset_ranges",
        original="end = max(end, ends[high - 1])",
        planted="end = ends[high - 1]",
        simulation="subscription",
        seed=0,
        says="are in two states or in none",
    ),
    Mutation(
        name="the queue's settled records end where it looks next",
        breaks="A record is delivered until somebody settles it: the log keeps it as long.",
        guarantee=_ONCE,
        module=_DISPATCH,
        original="return min([self.subscription.settled_before(), *self._handing_over.values()])",
        planted="return min([self.subscription.statistics().cursor, *self._handing_over.values()])",
        simulation="broker",
        seed=15,
        says="[nothing confirmed is lost]",
    ),
    Mutation(
        name="a consumer that goes away keeps its records",
        breaks="The lease ends when the consumer or its connection goes away.",
        guarantee=_ONCE,
        module=_DISPATCH,
        original="self._after(self.subscription.consumer_gone(consumer, self._clock.monotonic()))",
        planted="self._clock.monotonic()",
        simulation="sharing",
        seed=0,
        says="is given to others",
    ),
    Mutation(
        name="state outlives the records that it is about",
        breaks="Offsets that a power loss took are given to new records, which nobody has settled.",
        guarantee=_ONCE,
        module=_DISPATCH,
        original="kept = clip_event(event, end)",
        planted="kept = clip_event(event, 1 << 62)",
        simulation="settling",
        seed=8,
        says="what is published after a power loss is delivered",
    ),
    Mutation(
        name="handed over before that is durable",
        breaks="At most once: that a record was handed over is logged before it is sent.",
        guarantee="At most once",
        module=_DISPATCH,
        original="await self.state.partition.wait_committed(self.state.partition.log.bounds()[1])",
        planted="pass",
        simulation="handing over",
        seed=0,
        says="each record is handed over once",
    ),
)
