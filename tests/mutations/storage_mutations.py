"""Bugs in the segmented log: what is on the disk, and what is said of it."""

from __future__ import annotations

from mutation import Mutation

_LOG = "linn.storage_engines.segmented_log.log"
_SEGMENT = "linn.storage_engines.segmented_log.segment"
_RECOVERY = "linn.storage_engines.segmented_log.recovery"
_CHECKPOINT = "linn.storage_engines.segmented_log.checkpoint"
_INDEX = "linn.storage_engines.segmented_log.index"
_DISK = "What is on the disk stays right"

STORAGE_MUTATIONS = (
    Mutation(
        name="what was appended during a sync counts as synced",
        breaks="A sync covers what was appended before it began, and nothing that came meanwhile.",
        guarantee=_DISK,
        module=_LOG,
        original="self._durable = end",
        planted="self._durable = self._end",
        simulation="log lives",
        seed=13,
        says="was durable, but the log ends at",
    ),
    Mutation(
        name="a copy keeps the claim of the leader",
        breaks="A torn tail is cut off and is no damage: a copy says only what is true of this disk.",
        guarantee=_DISK,
        module=_LOG,
        original="batch.stamp(batch.base_offset, batch.append_time_ms, self._durable, batch.leader_epoch)",
        planted="batch.stamp(batch.base_offset, batch.append_time_ms, batch.durable_offset, batch.leader_epoch)",
        simulation="replica lives",
        seed=3,
        says="a stamp claims only what was durable",
    ),
    Mutation(
        name="a copy is stored wherever it comes from",
        breaks="A replica takes a batch only at the end of its log.",
        guarantee="Order",
        module="linn.core.log.storage",
        original="if batch.base_offset != end:",
        planted="if batch.base_offset < end:",
        simulation="replica lives",
        seed=2,
        says="a gap is refused",
    ),
    Mutation(
        name="a copy of an earlier leader is stored",
        breaks="A replica takes no batch of an epoch before that of its last one.",
        guarantee="Order",
        module="linn.core.log.storage",
        original="if batch.leader_epoch < epoch:",
        planted="if batch.leader_epoch < 0:",
        simulation="replica lives",
        seed=2,
        says="a copy of an earlier leader is refused",
    ),
    Mutation(
        name="the facts of copies are not recorded",
        breaks="A log knows in which epoch each of its records was appended.",
        guarantee=_DISK,
        module=_LOG,
        original="""
            for batch in batches:
                self.facts.note(batch)
        """,
        planted="",
        simulation="replica lives",
        seed=2,
        says="is of epoch",
    ),
    Mutation(
        name="a restart of a log begins at 0",
        breaks="A replica's log begins where its leader's begins.",
        guarantee=_DISK,
        module=_LOG,
        original="await self._cut(Checkpoint(start, start, cut=0))",
        planted="await self._cut(Checkpoint(0, 0, cut=0))",
        simulation="replica lives",
        seed=2,
        says="assert self.log.bounds() == (self.start, self.start)",
    ),
    Mutation(
        name="a failed sync is forgotten",
        breaks="A failed fsync is never repeated, because nobody knows what is on the disk.",
        guarantee=_DISK,
        module=_LOG,
        original='self._refusal = "a sync failed, so the contents of the disk are unknown"',
        planted="self._refusal = None",
        simulation="log lives",
        seed=2,
        says="a log whose sync failed takes no more work",
    ),
    Mutation(
        name="a failed sync is taken for a sync",
        breaks="A failed fsync confirms nothing.",
        guarantee=_DISK,
        module=_SEGMENT,
        original="await self.file().sync()",
        planted="""
            try:
                await self.file().sync()
            except StorageError as error:
                logger.warning("%(error)s", {"error": error})
        """,
        simulation="log lives",
        seed=2,
        says="a failed sync is reported",
    ),
    Mutation(
        name="the stamp claims more than was durable",
        breaks="A torn tail is cut off and is no damage: a batch says of those before it only what is true.",
        guarantee=_DISK,
        module=_LOG,
        original="batch.stamp(offset, now_ms, self._durable, leader_epoch)",
        planted="batch.stamp(offset, now_ms, offset)",
        simulation="log lives",
        seed=2,
        says="a stamp claims only what was durable",
    ),
    Mutation(
        name="segments are dropped before the checkpoint says so",
        breaks="A start that was moved can be interrupted anywhere, and the log opens again.",
        guarantee=_DISK,
        module=_LOG,
        original="""
            await self._write_checkpoint()
            for segment in self._segments.drop_first(count):
        """,
        planted="for segment in self._segments.drop_first(count):",
        simulation="log lives",
        seed=11,
        says="the death of a process alone damages nothing",
    ),
    Mutation(
        name="retention drops one segment too many",
        breaks="Retention keeps what is within its bounds.",
        guarantee="Limits and overflow",
        module="linn.storage_engines.segmented_log.retention",
        original="over = bytes_max is not None and total > bytes_max",
        planted="over = bytes_max is not None and total + part.size_bytes > bytes_max",
        simulation="log lives",
        seed=5,
        says="but the start moved to",
    ),
    Mutation(
        name="segments are sealed before they are durable",
        breaks="An index file proves that its segment was on stable storage, so it is written after the sync.",
        guarantee=_DISK,
        module=_LOG,
        original="finished = [s for s in unsealed if s.end_offset <= self._durable]",
        planted="finished = unsealed",
        simulation="log lives",
        seed=137,
        says="it is a torn tail",
    ),
    Mutation(
        name="a full disk moves the end of the log",
        breaks="A full disk refuses new batches and loses nothing.",
        guarantee=_DISK,
        module=_SEGMENT,
        original="""
            file.write((batch.message,))
            self._note(batch.size, batch.end_offset, batch.append_time_ms, batch.max_timestamp_ms)
        """,
        planted="""
            self._note(batch.size, batch.end_offset, batch.append_time_ms, batch.max_timestamp_ms)
            file.write((batch.message,))
        """,
        simulation="log lives",
        seed=20,
        says="the file ends there, but everything before offset",
    ),
    Mutation(
        name="recovery believes a torn tail",
        breaks="A torn tail is cut off: every byte of a stored batch is covered by a CRC.",
        guarantee=_DISK,
        module=_SEGMENT,
        original="""
            batch.check_stored()
            if batch.base_offset != self.end_offset:
        """,
        planted="if batch.base_offset != self.end_offset:",
        simulation="log lives",
        seed=2,
        says="the CRC of a batch",
    ),
    Mutation(
        name="recovery cuts one batch too many",
        breaks="A log holds, after a power loss, at least all that a sync covered.",
        guarantee=_DISK,
        module=_SEGMENT,
        original="file.truncate(self.size_bytes)",
        planted="file.truncate(self.last_position)",
        simulation="log lives",
        seed=2,
        says="bytes too early",
    ),
    Mutation(
        name="a cut that was interrupted is not finished",
        breaks="A trim of the end that was begun is finished by the next opening.",
        guarantee=_DISK,
        module=_RECOVERY,
        original="await self._finish_cut(self._checkpoint.cut)",
        planted="pass",
        simulation="log lives",
        seed=1,
        says="is not what was read",
    ),
    Mutation(
        name="the checkpoint has one slot",
        breaks="A write of the checkpoint that is torn leaves the former one.",
        guarantee=_DISK,
        module=_CHECKPOINT,
        original="file.write_at(_encode(sequence, checkpoint), _SLOT_BYTES * ((sequence + 1) % 2))",
        planted="file.write_at(_encode(sequence, checkpoint), 0)",
        simulation="log lives",
        seed=33,
        says="neither of its two slots is whole",
    ),
    Mutation(
        name="the index is off by one",
        breaks="Records of a partition have dense offsets, and are found by them.",
        guarantee="Order",
        module=_INDEX,
        original="place = bisect_right(self.offsets, offset) - 1",
        planted="place = min(bisect_right(self.offsets, offset), len(self.offsets) - 1)",
        simulation="log lives",
        seed=5,
        says="does not hold offset",
    ),
    Mutation(
        name="the time index is off by one",
        breaks="Reading from a time on leaves out no record of that time.",
        guarantee="Order",
        module=_INDEX,
        original="place = bisect_left(self.times_ms, timestamp_ms) - 1",
        planted="place = bisect_right(self.times_ms, timestamp_ms) - 1",
        simulation="log lives",
        seed=4,
        says="ms on begins at",
    ),
    Mutation(
        name="thinning moves an offset",
        breaks="Thinning changes no record's offset.",
        guarantee="Limits and overflow",
        module="linn.core.batch.thinning",
        original="covers = range(begin, batch.offset(indexes[-1]) + 1 if end is None else end)",
        planted="covers = range(batch.base_offset, batch.offset(indexes[-1]) + 1 if end is None else end)",
        simulation="thinned lives",
        seed=0,
        says="the death of a process alone damages nothing",
    ),
    Mutation(
        name="a thinned segment takes its place before it is durable",
        breaks="The former segment stays until the thinned one is on stable storage.",
        guarantee=_DISK,
        module="linn.storage_engines.segmented_log.thinning",
        original="""
            await copy.sync()
            return True
        """,
        planted="return True",
        simulation="thinned lives",
        seed=2,
        says="was durable, but the log ends at",
    ),
    Mutation(
        name="thinning takes what is needed",
        breaks="A record that is not settled stays, whatever lies before and behind it.",
        guarantee="Limits and overflow",
        module="linn.storage_engines.segmented_log.thinning",
        original="spans, end = list(needed(batch.base_offset, batch.end_offset)), None",
        planted="spans, end = list(needed(batch.base_offset + 1, batch.end_offset)), None",
        simulation="thinned lives",
        seed=14,
        says="records that are needed stay",
    ),
)
