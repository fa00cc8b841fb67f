"""Bugs in what a queue knows: leases, attempts, order, dead letters, and what of it survives."""

from __future__ import annotations

from mutation import Mutation

_LEASE = "linn.core.queue.lease"
_QUEUE = "linn.core.queue.queue"
_SUBSCRIPTION = "linn.core.queue.subscription"
_STATES = "linn.core.queue.record_states"
_PARTITION = "linn.core.queue.partition_queue"
_LOG = "linn.core.queue.subscription_log"
_ORDERING = "linn.core.queue.ordering"
_EXPIRY = "linn.core.queue.expiry"
_TRANSFER = "linn.core.queue.transfer"
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
        name="credit does not come back when a lease runs out",
        breaks="However a lease ends, its consumer may be given as many other records.",
        guarantee=_ONCE,
        module=_QUEUE,
        original="if consumer is not None and consumer.lease_ms:",
        planted="if consumer is not None and consumer.lease_ms and not lost:",
        simulation="holding",
        seed=0,
        says="the broker counts what is held",
    ),
    Mutation(
        name="nobody is told of a lease that has run out",
        breaks="A consumer is told when a lease is over that it did not settle.",
        guarantee=_ONCE,
        module="linn.core.queue.consumer",
        original="if lost and lease.ended:",
        planted="if lost and not lease.ended:",
        simulation="holding",
        seed=0,
        says="a consumer knows of each lease that is over",
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
        name="ids are used again after a restart",
        breaks="Ids are never used again, also not after a restart.",
        guarantee=_ONCE,
        module=_SUBSCRIPTION,
        original="states.leases.next_delivery_id += DELIVERY_ID_GAP",
        planted="states.leases.next_delivery_id += 0",
        simulation="subscription",
        seed=1,
        says="delivery ids grow, also over crashes",
    ),
    Mutation(
        name="acking a part ends the whole lease",
        breaks="A record is delivered until somebody settles it: this one, not its neighbour.",
        guarantee=_ONCE,
        module=_LEASE,
        original="""
        if ranges is None:
            self._end(lease)
        """,
        planted="""
        if ranges is None or len(pieces) == 1:
            self._end(lease)
        """,
        simulation="subscription",
        seed=0,
        says="are in two states or in none",
    ),
    Mutation(
        name="settling a whole lease settles what was returned before",
        breaks="All that is left of a lease is what it holds: records that it returned are for whoever has them now.",
        guarantee=_ONCE,
        module=_LEASE,
        original="pieces = lease.ranges() if ranges is None else _checked(lease, ranges)",
        planted="pieces = [(lease.first, lease.end)] if ranges is None else _checked(lease, ranges)",
        simulation="subscription",
        seed=0,
        says="effects == Effects(settled=len(offsets))",
    ),
    Mutation(
        name="what is returned goes to the tail",
        breaks="What comes back to a queue goes to its place, not to the end.",
        guarantee="Order",
        module=_SUBSCRIPTION,
        original="""
        found: tuple[int, int, int] | None = None
        if states.returned.ready.count:
        """,
        planted="""
        found = self._take_new(records_max, end)
        if found is None and states.returned.ready.count:
        """,
        simulation="subscription",
        seed=0,
        says="the lowest that are ready, with their attempts",
    ),
    Mutation(
        name="a record that comes back loses its priority",
        breaks="What comes back keeps its place in the order of the queue.",
        guarantee="Order",
        module=_ORDERING,
        original="""
        self.order.release(offsets, classes)
        self._add(offsets, classes)
        """,
        planted="""
        self.order.release(offsets, classes)
        self._add(offsets, [0] * len(offsets))
        """,
        simulation="priorities",
        seed=2,
        says="the first of the order",
    ),
    Mutation(
        name="a key is free while its retry waits",
        breaks="In a queue ordered by key, a retry is before the later records of its key.",
        guarantee="Order",
        module=_SUBSCRIPTION,
        original="if self.ordering is not None and not delay_ms:",
        planted="if self.ordering is not None:",
        simulation="keys",
        seed=0,
        says="the first of the order",
    ),
    Mutation(
        name="attempts are forgotten by a restart",
        breaks="Attempts survive a restart.",
        guarantee=_ONCE,
        module=_STATES,
        original="self.orphaned.set(first, end, attempt)",
        planted="self.orphaned.set(first, end, 1)",
        simulation="subscription",
        seed=28,
        says="the lowest that are ready, with their attempts",
    ),
    Mutation(
        name="delays begin again at a restart",
        breaks="A delay before the next attempt ends at a time, which a restart keeps.",
        guarantee=_ONCE,
        module="linn.core.queue.redelivery",
        original="late = [(first, end, it.attempts) for first, end, it in self.delayed if it.ready_ms > latest_ms]",
        planted="late = [(first, end, it.attempts) for first, end, it in self.delayed]",
        simulation="subscription",
        seed=0,
        says="leases and delays end at their times",
    ),
    Mutation(
        name="the end of a delay is no event",
        breaks="The state of a queue follows from its events alone, whatever the clock of the next leader says.",
        guarantee=_ONCE,
        module=_SUBSCRIPTION,
        original="for first, end, attempts in joined(promoted) if promoted else ():",
        planted="for first, end, attempts in joined(promoted)[:0] if promoted else ():",
        simulation="subscription",
        seed=5,
        says="the log says which delays have ended",
    ),
    Mutation(
        name="an expired record is delivered",
        breaks="No consumer gets an expired record.",
        guarantee="Time to live",
        module=_EXPIRY,
        original="return [part for batch in batches for part in overdue_within(batch, now_ms, self.ttl_ms)]",
        planted="return [part for batch in batches for part in overdue_within(batch, 0, self.ttl_ms)]",
        simulation="expiry",
        seed=5,
        says="no consumer gets a record that has expired",
    ),
    Mutation(
        name="a record expires early",
        breaks="A record expires when it has waited for its time to live.",
        guarantee="Time to live",
        module=_EXPIRY,
        original="if offsets and self._index.add([appended_ms + ttl_ms for ttl_ms in ttls if ttl_ms], offsets):",
        planted="if offsets and self._index.add([appended_ms + ttl_ms // 2 for ttl_ms in ttls if ttl_ms], offsets):",
        simulation="expiry",
        seed=1,
        says="nothing expires early",
    ),
    Mutation(
        name="what came back after its time stays for ever",
        breaks="A record that outlived its time at a consumer expires when it comes back.",
        guarantee="Time to live",
        module=_EXPIRY,
        original="self._to_examine = len(self._held)",
        planted="self._to_examine = 0 * len(self._held)",
        simulation="expiry",
        seed=0,
        says="all else has expired, and nothing more",
    ),
    Mutation(
        name="one delivery more than max_deliveries",
        breaks="A record that is returned after `max_deliveries` attempts goes to the dead-letter topic.",
        guarantee=_DEAD,
        module=_LEASE,
        original="if self.max_deliveries is not None and attempts >= self.max_deliveries:",
        planted="if self.max_deliveries is not None and attempts > self.max_deliveries:",
        simulation="subscription",
        seed=7,
        says="same_state",
    ),
    Mutation(
        name="a dead letter is settled before its copy is committed",
        breaks="The copy is committed there before the record is settled here.",
        guarantee=_DEAD,
        module="linn.core.publish.publisher",
        original="await mark.wait(end)",
        planted="assert end >= 0",
        simulation="dead letters",
        seed=133,
        says="one copy of each",
    ),
    Mutation(
        name="the numbers of a step are taken when it is published",
        breaks="An interrupted step is published again with the same numbers.",
        guarantee=_DEAD,
        module=_TRANSFER,
        original="batch.number(-intent.producer, 0, intent.sequence, SCATTERED)",
        planted="batch.number(-intent.producer, 0, source.numbers.take(batch.count).sequence + 1, SCATTERED)",
        simulation="transfers",
        seed=3,
        says="no copy is there twice",
    ),
    Mutation(
        name="a step that is published again has another epoch",
        breaks="An interrupted step is published again with the same numbers.",
        guarantee=_DEAD,
        module=_TRANSFER,
        original="batch.number(-intent.producer, 0, intent.sequence, SCATTERED)",
        planted="batch.number(-intent.producer, int(step is not None), intent.sequence, SCATTERED)",
        simulation="transfers",
        seed=3,
        says="the epoch never changes",
    ),
    Mutation(
        name="a step that is published again has what died since",
        breaks="An interrupted step is published again with the same records.",
        guarantee=_DEAD,
        module="linn.core.queue.dead_letter_source",
        original="return Step(self._noted(found), found[0].intent)",
        planted="return Step(self._noted(self._queue.subscription.dead()), found[0].intent)",
        simulation="transfers",
        seed=2,
        says="no copy is missing",
    ),
    Mutation(
        name="an ack is answered before it is durable",
        breaks="An ack that was answered holds.",
        guarantee=_ONCE,
        module="linn.core.queue.consumer",
        original="return SettleOutcome(refused, list(awaits.values()))",
        planted="return SettleOutcome(refused, ())",
        simulation="broker",
        seed=36,
        says="[what is settled stays settled]",
    ),
    Mutation(
        name="the queue's settled records end where it looks next",
        breaks="A record is delivered until somebody settles it: the log keeps it as long.",
        guarantee=_ONCE,
        module="linn.core.queue.trimming",
        original="""
        if not handovers.reading and not handovers.owed:
            return settled_before
        """,
        planted="""
        if not handovers.reading and not handovers.owed:
            return self._subscription.statistics().cursor
        """,
        simulation="broker",
        seed=33,
        says="[nothing confirmed is lost]",
    ),
    Mutation(
        name="a consumer that goes away keeps its records",
        breaks="The lease ends when the consumer or its connection goes away.",
        guarantee=_ONCE,
        module=_PARTITION,
        original="self.follow(self.subscription.consumer_gone(consumer, now(), is_lost=is_lost))",
        planted="now()",
        simulation="sharing",
        seed=0,
        says="is given to others",
    ),
    Mutation(
        name="state outlives the records that it is about",
        breaks="Offsets that a power loss took are given to new records, which nobody has settled.",
        guarantee=_ONCE,
        module=_LOG,
        original="kept = clip_event(event, end)",
        planted="kept = clip_event(event, 1 << 62)",
        simulation="settling",
        seed=4,
        says="what is published after a power loss is delivered",
    ),
    Mutation(
        name="handed over before that is durable",
        breaks="At most once: that a record was handed over is logged before it is sent.",
        guarantee="At most once",
        module=_LOG,
        original="await self.state.committed.wait(self.state.partition.log.bounds()[1])",
        planted="pass",
        simulation="handing over",
        seed=1,
        says="each record is handed over once",
    ),
    Mutation(
        name="records over the limit are dropped instead of becoming dead letters",
        breaks="With `dead-letter`, the oldest records over the limit become dead letters, and none is lost.",
        guarantee="Limits and overflow",
        module="linn.core.topics.room",
        original="ended = partition_queue.end_waiting(records, is_dead=is_dead)",
        planted="ended = partition_queue.end_waiting(records, is_dead=False)",
        simulation="overflow",
        seed=0,
        says="no confirmed record is lost",
    ),
    Mutation(
        name="overflow ends records that a consumer has",
        breaks="Records that a consumer has stay, however full the queue is, and their acks count.",
        guarantee="Limits and overflow",
        module=_PARTITION,
        original=(
            "effects = subscription.dead_letter(0, end, DeadReason.OVERFLOW) if is_dead else subscription.purge(end)"
        ),
        planted="effects = Effects(subscription.skip_to(end))",
        simulation="overflow",
        seed=0,
        says="no lease ends for lack of room",
    ),
    Mutation(
        name="a takeover before the one before has let go",
        breaks="Another single active consumer gets no record before all that others hold is settled or returned.",
        guarantee=_ONCE,
        module="linn.core.queue.single_active",
        original="is_waiting = best is not None and self._is_held_from(best)",
        planted="is_waiting = False",
        simulation="single active",
        seed=0,
        says="two consumers hold records at a time",
    ),
    Mutation(
        name="lost records are given out together",
        breaks="Records that came back because their consumer was lost are given out few at a time.",
        guarantee=_DEAD,
        module="linn.core.queue.redelivery",
        original="if not attempts & LOST:",
        planted="if not attempts & LOST or records_max > 1:",
        simulation="subscription",
        seed=0,
        says="the lowest that are ready, with their attempts",
    ),
)
