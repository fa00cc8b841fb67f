"""Bugs on the way through the broker: confirmations, routing, reading, groups, and changes while it runs."""

from __future__ import annotations

from mutation import Mutation

_PARTITION = "linn.core.log.partition"
_GROUP = "linn.core.groups.group"
_CONSUMER = "linn.core.groups.consumer"
_CONFIRMED = "What a confirmation means"
_ONCE = "At least once"
_CHANGES = "Changes at run time"
_DISK = "What is on the disk stays right"

BROKER_MUTATIONS = (
    Mutation(
        name="confirmed before it is durable",
        breaks='A confirmed message survives a power loss with `fsync = "always"`.',
        guarantee=_CONFIRMED,
        module="linn.protocols.capnp.responder",
        original="missing = [(partition, end) for partition, end in awaits if partition.high_watermark < end]",
        planted="missing = [(partition, end) for partition, end in awaits if partition.log.bounds()[1] < end]",
        simulation="broker",
        seed=4,
        says="[confirmed means readable]",
    ),
    Mutation(
        name="acks of leader are taken for acks of none",
        breaks="`acks = none` alone is confirmed when it is accepted.",
        guarantee=_CONFIRMED,
        module="linn.core.queue.semantics",
        original='"leader": ConfirmWhen.DURABLE,',
        planted='"leader": ConfirmWhen.ACCEPTED,',
        simulation="broker",
        seed=4,
        says="[confirmed means readable]",
    ),
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
                self._advance(base_offset + batch.count)
        """,
        simulation="broker",
        seed=36,
        says="[what is settled stays settled]",
    ),
    Mutation(
        name="a confirmation comes a few records too early",
        breaks="A batch is confirmed when the watermark has passed it.",
        guarantee=_CONFIRMED,
        module=_PARTITION,
        original="return bool(self._committed) and self._committed[0][0] <= self.high_watermark",
        planted="return bool(self._committed) and self._committed[0][0] <= self.high_watermark + 9",
        simulation="broker",
        seed=57,
        says="[confirmed means readable]",
    ),
    Mutation(
        name="a slice holds its neighbours' values",
        breaks="Records of a partition have offsets that never change: a part of a batch holds the same records.",
        guarantee="Order",
        module="linn.core.batch.body",
        original="self.values.slice(first, last),",
        planted="self.values.slice(max(first - 1, 0), last - (first > 0)),",
        simulation="routing",
        seed=0,
        says="each topic gets its records, in their order",
    ),
    Mutation(
        name="a slice ends one record too late",
        breaks="No other consumer has a record while its lease lasts.",
        guarantee=_ONCE,
        module=_PARTITION,
        original="batches.append(self._cut(last, last.base_offset, end))",
        planted="batches.append(self._cut(last, last.base_offset, min(end + 1, last.end_offset)))",
        simulation="sharing",
        seed=3,
        says="no other consumer has a record",
    ),
    Mutation(
        name="a fanout reaches one topic alone",
        breaks="A confirmed message is in every topic that its exchange sends it to.",
        guarantee=_CONFIRMED,
        module="linn.core.routing.routed_batch",
        original="return [(topic, batch) for topic in first]",
        planted="return [(topic, batch) for topic in first[:1]]",
        simulation="broker",
        seed=15,
        says="[nothing confirmed is lost]",
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
        module="linn.core.publish.publisher",
        original="if not self._waiting and not self._publisher.wants_topic(request):",
        planted="if not self._publisher.wants_topic(request):",
        simulation="sharing",
        seed=1,
        says="one connection's records",
    ),
    Mutation(
        name="two members own a partition",
        breaks="In a generation each partition of a group has one owner.",
        guarantee=_ONCE,
        module=_GROUP,
        original="free = iter([partition for partition in range(self._partitions) if partition not in self._owner])",
        planted=(
            "free = iter([0, *[partition for partition in range(1, self._partitions) if partition not in self._owner]])"
        ),
        simulation="group",
        seed=0,
        says="each partition has one owner",
    ),
    Mutation(
        name="a member goes on reading what it has lost",
        breaks="A partition that moves is read by its new owner; the former one stops.",
        guarantee=_ONCE,
        module=_CONSUMER,
        original="""
            for partition in lost:
                self.reader.stop_reading(partition)
                del self._owned_since[partition]
        """,
        planted="""
            for partition in lost:
                del self._owned_since[partition]
        """,
        simulation="sharing",
        seed=0,
        says="a member reads what it owns",
    ),
    Mutation(
        name="a former owner may commit",
        breaks="Only the owner of a partition commits; a former owner is refused.",
        guarantee=_ONCE,
        module=_GROUP,
        original="""
            if self._owner.get(partition) != member:
                raise GroupFenced(f'"{member}" does not own partition {partition} of group "{self.name}"')
            self._offsets[partition] = self._offsets_pending[partition] = offset
        """,
        planted="self._offsets[partition] = self._offsets_pending[partition] = offset",
        simulation="group",
        seed=0,
        says="only the owner commits, and only in the current generation",
    ),
    Mutation(
        name="a commit is answered before it is durable",
        breaks="After a crash reading goes on at the last commit.",
        guarantee=_ONCE,
        module=_CONSUMER,
        original="return ((state.partition, state.partition.log.bounds()[1]),)",
        planted="return ()",
        simulation="broker",
        seed=130,
        says="a group goes on where it committed",
    ),
    Mutation(
        name="a commit of an earlier generation is accepted",
        breaks="Only the owner of a partition commits; who was told of another generation is refused.",
        guarantee=_ONCE,
        module=_GROUP,
        original="""
            if generation != self.generation:
                raise GroupFenced(f'group "{self.name}" is at generation {self.generation}, not {generation}')
        """,
        planted="pass",
        simulation="group",
        seed=0,
        says="only the owner commits, and only in the current generation",
    ),
    Mutation(
        name="a generation is used again after a restart",
        breaks="A generation is greater than every one before, so that a former owner is told from the present one.",
        guarantee=_ONCE,
        module=_GROUP,
        original="self.generation = max(self.generation, generation)",
        planted="self.generation = max(self.generation, generation - 1)",
        simulation="group",
        seed=0,
        says="generations grow, also over restarts",
    ),
    Mutation(
        name="a restart brings an earlier commit back",
        breaks="After a crash reading goes on at the last commit.",
        guarantee=_ONCE,
        module=_GROUP,
        original="""
            case OffsetCommitted(partition, offset):
                self._offsets[partition] = offset
        """,
        planted="""
            case OffsetCommitted(partition, offset):
                self._offsets.setdefault(partition, offset)
        """,
        simulation="broker",
        seed=14,
        says="[a group goes on where it committed]",
    ),
    Mutation(
        name="a commit is not logged",
        breaks="After a crash reading goes on at the last commit.",
        guarantee=_ONCE,
        module=_GROUP,
        original=(
            "events += [OffsetCommitted(number, pending.pop(number)) "
            "for number in list(islice(pending, EVENTS_AT_ONCE_MAX))]"
        ),
        planted="pending.clear()",
        simulation="broker",
        seed=14,
        says="[a group goes on where it committed]",
    ),
    Mutation(
        name="metadata gets its name before it is synced",
        breaks="A change is kept before it is answered.",
        guarantee=_CHANGES,
        module="linn.core.log.metadata",
        original="""
            try:
                await file.sync()
            finally:
                file.close()
        """,
        planted="file.close()",
        simulation="changes",
        seed=61,
        says="metadata.json can't be read",
    ),
    Mutation(
        name="metadata's new name is not synced",
        breaks="A change is kept before it is answered.",
        guarantee=_CHANGES,
        module="linn.core.log.metadata",
        original="""
            await self._sync_patiently()
            self._keep_reserve()
        """,
        planted="self._keep_reserve()",
        simulation="changes",
        seed=64,
        says="all of a change or nothing",
    ),
    Mutation(
        name="a full disk confirms what it refuses",
        breaks="A full disk refuses new batches: what is confirmed is in the log.",
        guarantee=_DISK,
        module="linn.core.publish.publisher",
        original="base_offset = topic.append(partition, part, numbers)",
        planted="""
            try:
                base_offset = topic.append(partition, part, numbers)
            except LinnError:
                base_offset = partition.log.bounds()[1] - part.count
        """,
        simulation="broker",
        seed=2,
        says="[nothing confirmed is lost]",
    ),
    Mutation(
        name="a failed sync in the background is passed over",
        breaks="A failed fsync is never repeated: the broker stops.",
        guarantee=_DISK,
        module="linn.core.broker.broker",
        original="""
            except SyncFailed:
                raise
            except LogClosed as error:
        """,
        planted="except LogClosed as error:",
        simulation="broker",
        seed=22,
        says="SYNC_FAILS_WITHIN_S",
    ),
)
