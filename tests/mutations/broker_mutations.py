"""Bugs on the way through the broker: confirmations, routing, reading, groups, and changes while it runs."""

from __future__ import annotations

from mutation import Mutation

_PARTITION = "linn.core.log.partition"
_GROUP = "linn.core.groups.group"
_MEMBERSHIP = "linn.core.groups.membership"
_CONFIRMED = "What a confirmation means"
_ONCE = "At least once"
_CHANGES = "Changes at run time"
_DISK = "What is on the disk stays right"

BROKER_MUTATIONS = (
    Mutation(
        name="the high watermark is ahead of what is durable",
        breaks="Readers never see what a power loss could still take back.",
        guarantee=_CONFIRMED,
        module=_PARTITION,
        original="""
            if self._confirm_after_sync:
                self._start_sync(self._sync_until_durable)
        """,
        planted="""
            if self._confirm_after_sync:
                self._start_sync(self._sync_until_durable)
                self._advance(base_offset + batch.offset_span)
        """,
        simulation="broker",
        seed=22,
        says="[nothing confirmed is lost]",
    ),
    Mutation(
        name="a confirmation comes a few records too early",
        breaks="A batch is confirmed when the watermark has passed it.",
        guarantee=_CONFIRMED,
        module="linn.core.log.mark",
        original="return bool(self.waiting) and (self.waiting[0][0] <= self.offset or self.failure is not None)",
        planted="return bool(self.waiting) and self.waiting[0][0] <= self.offset + 9",
        simulation="broker",
        seed=40,
        says="[confirmed means readable]",
    ),
    Mutation(
        name="a slice ends one record too late",
        breaks="No other consumer has a record while its lease lasts.",
        guarantee=_ONCE,
        module="linn.core.log.partition_reading",
        original="batches += self._cut(last, last.base_offset, end)",
        planted="batches += self._cut(last, last.base_offset, min(end + 1, last.end_offset))",
        simulation="sharing",
        seed=0,
        says="no other consumer has a record",
    ),
    Mutation(
        name="routes are remembered after an unbind",
        breaks="A change of bindings counts once it is answered.",
        guarantee=_CHANGES,
        module="linn.core.routing.router",
        original="""
            self._exchange.unbind(binding)
            if binding.target.is_exchange:
                self._exits = None
            self._graph.changed()
        """,
        planted="""
            self._exchange.unbind(binding)
            if binding.target.is_exchange:
                self._exits = None
        """,
        simulation="routing",
        seed=0,
        says="each topic gets its records, in their order",
    ),
    Mutation(
        name="a publish overtakes those that wait for room",
        breaks="What one connection publishes to one partition is stored in the order in which it was sent.",
        guarantee="Order",
        module="linn.core.publish.publish_lane",
        original="not self._waiting",
        planted="True",
        simulation="sharing",
        seed=1,
        says="one connection's records",
    ),
    Mutation(
        name="a commit of a stale member is accepted",
        breaks="A member commits only what it read since it came to own the partition.",
        guarantee=_ONCE,
        module=_MEMBERSHIP,
        original="if not since <= epoch <= self.epoch:",
        planted="if not epoch <= self.epoch:",
        simulation="group",
        seed=0,
        says="only the owner commits, and only with an epoch since it owns the partition",
    ),
    Mutation(
        name="a partition moves before its owner has let go of it",
        breaks="A partition moves only after its owner has let go of it, or its time is up.",
        guarantee=_ONCE,
        module=_MEMBERSHIP,
        original="self._revoke(self.members[id], place, now_s)",
        planted="self._disown(self.members[id], place)",
        simulation="group",
        seed=0,
        says="each partition has one owner",
    ),
    Mutation(
        name="an epoch is used again after a restart",
        breaks="An epoch is greater than every one before, so that a former owner is told from the present one.",
        guarantee=_ONCE,
        module=_GROUP,
        original="self.membership.epoch = self._logged_epoch = max(self.epoch, epoch)",
        planted="self.membership.epoch = self._logged_epoch = max(self.epoch, epoch - 1)",
        simulation="group",
        seed=0,
        says="epochs grow, also over restarts",
    ),
    Mutation(
        name="a restart brings an earlier commit back",
        breaks="After a crash reading goes on at the last commit.",
        guarantee=_ONCE,
        module=_GROUP,
        original="""
            case OffsetCommitted(topic, partition):
                self._offsets[topic, partition] = event
        """,
        planted="""
            case OffsetCommitted(topic, partition):
                self._offsets.setdefault((topic, partition), event)
        """,
        simulation="broker",
        seed=14,
        says="[a group goes on where it committed]",
    ),
    Mutation(
        name="metadata's new name is not synced",
        breaks="A change is kept before it is answered.",
        guarantee=_CHANGES,
        module="linn.core.metadata.embedded",
        original="""
            await self._sync_patiently()
            self._keep_reserve()
        """,
        planted="self._keep_reserve()",
        simulation="changes",
        seed=86,
        says="all of a change or nothing",
    ),
    Mutation(
        name="a failed sync in the background is passed over",
        breaks="A failed fsync is never repeated: the broker stops.",
        guarantee=_DISK,
        module="linn.core.broker.broker",
        original="""
            except SyncFailed:
                self.administration.change_scope.shield = False  # A change may wait for what this chore has not synced.
                raise
            except LogClosed as error:
        """,
        planted="except LogClosed as error:",
        simulation="broker",
        seed=22,
        says="SYNC_FAILS_WITHIN_S",
    ),
    Mutation(
        name="a duplicate of an aborted id is refused",
        breaks="An abort forgets the ids of its messages.",
        guarantee="Messages that are known by their ids",
        module="linn.core.topics.dedup",
        original="""
        if partition.transactions.hides(write):
            return None
        """,
        planted="""
        if partition.transactions.hides(write):
            return place
        """,
        simulation="ids in transactions",
        seed=0,
        says="an aborted message is no message",
    ),
    Mutation(
        name="ids are forgotten by a restart",
        breaks="Ids are known over restarts.",
        guarantee="Messages that are known by their ids",
        module="linn.core.topics.topic_ids",
        original="await self.dedup.load(partition)",
        planted="partition.log.bounds()",
        simulation="known ids",
        seed=0,
        says="the place of the first one",
    ),
    Mutation(
        name="the ending of a dead letter is kept in memory alone",
        breaks="A status that was confirmed survives a loss of power.",
        guarantee="Status of messages",
        module="linn.core.queue.subscription",
        original="self._events.add(Ended(first, end, ending))",
        planted="del ending",
        simulation="statuses",
        seed=5,
        says="not one of",
    ),
    Mutation(
        name="ids are indexed before their records are synced",
        breaks="An id leads to its own record, whatever a loss of power has taken.",
        guarantee="Status of messages",
        module="linn.core.topics.message_index",
        original="""
        await self.partition.log.sync()
        self._begin_run(min(self.partition.stable_offset, self.partition.log.durable(), self._noted_end))
        """,
        planted="self._begin_run(min(self.partition.stable_offset, self._noted_end))",
        simulation="ids of lost records",
        seed=2,
        says="each id leads to its own record",
    ),
)
