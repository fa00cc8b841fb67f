"""The conformance suite of storage engines: `EngineConformance`, to subclass. `log_machine` has a model beside it.

    class TestPaperTape(EngineConformance):
        @pytest.fixture
        def harness(self, tmp_path: Path) -> EngineHarness:
            return EngineHarness(RealEnv(), lambda env: PaperTapeEngine(str(tmp_path), PaperTapeSettings(), env))

Laws: a test asks for an engine's capabilities, never for its name. Settings should be small (segments of some KiB), so
that the suite's few batches cross every boundary of the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import pick_batch, wrap_body
from linn.core.errors.tree import LogClosed, OffsetOutOfRange
from linn.core.log.storage import READ_BATCHES_MAX, PartitionId, PartitionLog
from linn.testing.engine_copies import CopyTests
from linn.testing.engine_harness import (
    HELD_BYTES_MORE,
    PARTITION,
    READ_ALL,
    EngineHarness,
    append_batches,
    append_in_epochs,
    append_numbered,
    held_bytes,
    known_offsets,
    make_batch,
    messages_of,
    read_through,
    sent_over,
    values_by_offset,
)

__all__ = [
    "PARTITION",
    "EngineConformance",
    "EngineHarness",
    "append_batches",
    "make_batch",
    "messages_of",
    "read_through",
]


class EngineConformance(CopyTests):
    """The promises of `linn.core.log.storage`. A subclass gives the fixture `harness`."""

    # --- producers ---------------------------------------------------------------------------------------------------

    async def test_a_log_opened_again_knows_its_producers(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_numbered(log, 40)
            await log.sync()
        async with harness.log() as log:
            survives = log.capabilities.survives_restart
            assert known_offsets(log, 40) == ([None] * 32 + list(range(32, 40)) if survives else [None] * 40)

    async def test_producers_outlive_the_records_that_a_start_takes(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_numbered(log, 40)
            await log.sync()
            await log.trim(before=36)
            await log.enforce_retention(harness.env.clock.now_ms(), age_ms=None, bytes_max=None, before=36)
            assert known_offsets(log, 40)[32:] == list(range(32, 40))
        async with harness.log() as log:
            if log.capabilities.survives_restart:
                assert known_offsets(log, 40)[36:] == list(range(36, 40))

    async def test_producers_go_back_with_the_end(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_numbered(log, 20)
            await log.sync()
            await log.trim(after=15)
            assert known_offsets(log, 20)[7:] == [*range(7, 15), None, None, None, None, None]

    # --- epochs ------------------------------------------------------------------------------------------------------

    async def test_a_log_opened_again_knows_its_epochs(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_in_epochs(log, {3: 4, 5: 2, 9: 6})
            await log.sync()
        async with harness.log() as log:
            if log.capabilities.survives_restart:
                epochs, (_, end) = log.facts.epochs, log.bounds()
                assert [epochs.end_of(epoch, end) for epoch in (2, 3, 4, 5, 8, 9, 10)] == [0, 4, 4, 6, 6, 12, 12]
                assert [epochs.at(offset) for offset in (0, 3, 4, 5, 6, 11)] == [3, 3, 5, 5, 9, 9]

    async def test_epochs_go_back_with_the_end(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_in_epochs(log, {3: 4, 5: 2, 9: 6})
            await log.sync()
            await log.trim(after=5)
            assert [log.facts.epochs.end_of(epoch, 5) for epoch in (3, 5, 9)] == [4, 5, 5]
            append_in_epochs(log, {11: 1})
            assert [log.facts.epochs.end_of(epoch, 6) for epoch in (3, 5, 9, 11)] == [4, 5, 5, 6]

    # --- append and bounds -------------------------------------------------------------------------------------------

    async def test_an_empty_log_begins_and_ends_at_0(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            assert log.bounds() == (0, 0)
            assert log.size_bytes() == 0
            assert list(await log.read(0, READ_ALL)) == []

    async def test_offsets_are_dense_and_stamped(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            batches = [make_batch(count) for count in (3, 1, 5)]
            assert [log.append(batch) for batch in batches] == [0, 3, 4]
            assert [batch.base_offset for batch in batches] == [0, 3, 4]
            assert log.bounds() == (0, 9)
            for batch in batches:
                RecordBatch(batch.message).check_stored()

    async def test_a_batch_with_gaps_takes_all_offsets_of_its_span(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            log.append(make_batch(2))
            gaps = [pick_batch(make_batch(9), places, range(9)) for places in ([0], [4, 6], [8])]
            assert [log.append(batch) for batch in gaps] == [2, 11, 20]
            log.append(make_batch(1))
            assert log.bounds() == (0, 30)
            for offset in range(2, 29):
                found = (await log.read(offset, 1))[0]
                assert (found.base_offset, found.end_offset) == (2 + (offset - 2) // 9 * 9, 11 + (offset - 2) // 9 * 9)
            offsets = [batch.offset(index) for batch in await read_through(log) for index in range(batch.count)]
            assert offsets == [0, 1, 2, 15, 17, 28, 29]
            await log.trim(after=20)
            assert log.bounds() == (0, 20)
            assert log.append(make_batch(1)) == 20

    async def test_append_times_never_go_back(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            before = harness.env.clock.now_ms()
            batches = [make_batch(1) for _ in range(5)]
            for batch in batches:
                log.append(batch)
            times = [batch.append_time_ms for batch in batches]
            assert times == sorted(times)
            assert before <= times[0] <= harness.env.clock.now_ms()

    async def test_the_stamp_names_the_leader_epoch(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            batch = make_batch(1)
            log.append(batch, 7)
            assert batch.leader_epoch == 7
            (stored,) = await log.read(0, 1 << 20)
            stored.check_stored()
            assert stored.leader_epoch == 7

    async def test_the_stamp_says_what_was_durable(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            durable = log.durable()
            batch = make_batch(1)
            log.append(batch)
            assert batch.durable_offset == durable

    async def test_size_counts_the_batches(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            messages = append_batches(log)
            assert log.size_bytes() == sum(map(len, messages))

    # --- reading -----------------------------------------------------------------------------------------------------

    async def test_appended_batches_are_readable_at_once_and_unchanged(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            messages = []
            for number in range(20):
                batch = make_batch(2, value_bytes=50 * number)
                log.append(batch)
                messages.append(bytes(batch.message))
                assert messages_of(await log.read(2 * number, 1)) == messages[-1:]
            assert messages_of(await read_through(log)) == messages

    async def test_a_read_begins_with_the_batch_that_holds_the_offset(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            for offset in range(log.bounds()[1]):
                first = (await log.read(offset, 1))[0]
                assert first.base_offset <= offset < first.end_offset

    async def test_a_read_takes_what_fits_and_at_least_one(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            messages = append_batches(log)
            for taken in range(1, len(messages) + 1):
                size = sum(map(len, messages[:taken]))
                assert messages_of(await log.read(0, size)) == messages[:taken]
                assert messages_of(await log.read(0, size - 1)) == messages[: max(1, taken - 1)]
            assert messages_of(await log.read(0, 0)) == messages[:1]

    async def test_a_read_of_small_batches_is_short_and_holds_little_more_than_it_gives(
        self, harness: EngineHarness
    ) -> None:
        async with harness.log() as log:
            messages = []
            for _ in range(2 * READ_BATCHES_MAX + 10):
                batch = make_batch(1)
                log.append(batch)
                messages.append(bytes(batch.message))
            found: list[bytes] = []
            while len(found) < len(messages):
                batches = await log.read(len(found), READ_ALL)
                assert len(batches) <= READ_BATCHES_MAX
                assert held_bytes(batches) <= 2 * sum([batch.size for batch in batches]) + HELD_BYTES_MORE
                found += messages_of(batches)
                assert len(log.read_nowait(len(found) // 2, READ_ALL)) <= READ_BATCHES_MAX
            assert found == messages

    async def test_read_nowait_gives_the_same_as_read(self, harness: EngineHarness) -> None:
        await self.check_at_once(harness, value_bytes=9_000)

    async def test_read_nowait_of_small_batches_gives_the_same_as_read(self, harness: EngineHarness) -> None:
        await self.check_at_once(harness, value_bytes=20)

    async def check_at_once(self, harness: EngineHarness, value_bytes: int) -> None:
        """Read several times from each batch on, as returning readers do."""
        async with harness.log() as log:
            batches = [make_batch(1 + number % 3, value_bytes=value_bytes * number) for number in range(12)]
            numbers = {"base_id": 1, "first_timestamp_ms": 1, "max_timestamp_ms": 1}
            batches[5] = wrap_body(7, bytes(value_bytes), 3, **numbers)
            offsets = [log.append(batch) for batch in batches]
            messages = messages_of(batches)
            await read_through(log)
            seen: set[int] = set()
            for number, offset in enumerate(offsets * 4):
                place = number % len(offsets)
                found = log.read_nowait(offset, 100_000)
                seen.update(batch.base_offset for batch in found)
                assert [batch.base_offset for batch in found] == offsets[place : place + len(found)]
                assert [batch.end_offset for batch in found] == [b.end_offset for b in batches[place:]][: len(found)]
                assert [batch.format for batch in found] == [batch.format for batch in batches[place:]][: len(found)]
                assert len(found) <= 1 or sum(batch.size for batch in found) <= 100_000
                sent = await sent_over(harness.env, [batch.message for batch in found])
                assert sent == b"".join(messages[place : place + len(found)])
            gives = type(log).read_nowait is not PartitionLog.read_nowait
            assert bool(seen) is gives, "a log that never gives anything here should leave `read_nowait` as it is"

    async def test_read_nowait_gives_nothing_from_within_a_batch(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            end = [log.append(make_batch(3)) for _ in range(4)][-1] + 3
            await read_through(log)
            for offset in range(-1, end + 3):
                found = log.read_nowait(offset, READ_ALL)
                assert not found or (offset % 3 == 0 and found[0].base_offset == offset < end)

    async def test_a_large_batch_is_stored_and_read(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log, 2)
            batch = make_batch(3, value_bytes=400_000)
            offset = log.append(batch)
            append_batches(log, 2)
            assert messages_of(await log.read(offset, 1)) == [bytes(batch.message)]
            assert len(await read_through(log)) == 5

    async def test_reading_at_the_end_gives_nothing(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            assert list(await log.read(log.bounds()[1], READ_ALL)) == []

    async def test_offsets_outside_are_refused(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            await log.trim(before=3)
            for offset in (-1, 2, log.bounds()[1] + 1, (1 << 63) - 1):
                with pytest.raises(OffsetOutOfRange):
                    await log.read(offset, READ_ALL)

    async def test_readers_and_the_writer_do_not_wait_for_one_another(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            found: list[list[bytes]] = [[], [], []]

            async def follow(mine: list[bytes]) -> None:
                offset = 0
                while len(mine) < 30:
                    batches = await log.read(offset, 3000)
                    mine += messages_of(batches)
                    offset = batches[-1].end_offset if batches else offset
                    await trio.lowlevel.checkpoint()

            messages: list[bytes] = []
            async with trio.open_nursery() as nursery:
                for mine in found:
                    nursery.start_soon(follow, mine)
                for _ in range(3):
                    messages += append_batches(log, 10)
                    await log.sync()
            assert found == [messages] * 3

    # --- durability --------------------------------------------------------------------------------------------------

    async def test_sync_makes_everything_durable(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            assert log.durable() <= log.bounds()[1]
            await log.sync()
            assert log.durable() == log.bounds()[1]
            await log.sync()

    async def test_appends_go_on_during_a_sync(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            messages = append_batches(log, 20)
            end = log.bounds()[1]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.sync)
                await trio.lowlevel.checkpoint()
                messages += append_batches(log, 20)
            assert log.durable() >= end
            assert messages_of(await read_through(log)) == messages

    async def test_a_log_opened_again_is_what_its_capabilities_say(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            messages = append_batches(log)
            bounds, size = log.bounds(), log.size_bytes()
        async with harness.log() as log:
            if log.capabilities.survives_restart:
                assert (log.bounds(), log.size_bytes(), log.durable()) == (bounds, size, bounds[1])
                assert messages_of(await read_through(log)) == messages
                assert log.append(make_batch(1)) == bounds[1]
            else:
                assert (log.bounds(), log.size_bytes()) == ((0, 0), 0)

    async def test_the_start_survives_a_restart_with_the_log(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            await log.trim(before=10)
        async with harness.log() as log:
            assert log.bounds()[0] == (10 if log.capabilities.survives_restart else 0)

    # --- trimming --------------------------------------------------------------------------------------------------

    async def test_trimming_moves_the_start_and_leaves_the_rest(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            end = log.bounds()[1]
            for start in (0, 1, 7, 6, end):
                at_least = max(start, log.bounds()[0])
                await log.trim(before=start)
                assert log.bounds() == (at_least, end)
                assert [batch.end_offset for batch in await read_through(log)][-1:] == ([end] if start < end else [])
            assert log.append(make_batch(2)) == end
            assert (await log.read(end, READ_ALL))[0].base_offset == end

    async def test_trimming_gives_space_back(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            for _ in range(10):
                append_batches(log)
            size = log.size_bytes()
            await log.trim(before=log.bounds()[1])
            assert log.size_bytes() < size / 2

    async def test_thinning_keeps_the_records_that_are_needed_at_their_offsets(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            for _ in range(6):
                append_batches(log)
            await log.sync()
            there, bounds = values_by_offset(await read_through(log)), log.bounds()
            needed = {offset for offset in there if offset % 20 == 3}

            def ranges(first: int, end: int) -> list[tuple[int, int]]:
                return [(offset, offset + 1) for offset in range(first, end) if offset in needed]

            for _ in range(2):
                await log.thin(ranges, bounds[1], trio.lowlevel.checkpoint)
                left = values_by_offset(await read_through(log))
                assert left.items() <= there.items()
                assert needed <= left.keys()
                assert log.bounds() == bounds
            assert log.append(make_batch(1)) == bounds[1]
        async with harness.log() as log:
            if log.capabilities.survives_restart:
                left = values_by_offset(await read_through(log))
                assert needed <= left.keys()

    async def test_trimming_beyond_the_end_is_refused(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            bounds = log.bounds()
            with pytest.raises(OffsetOutOfRange):
                await log.trim(before=bounds[1] + 1)
            assert log.bounds() == bounds

    async def test_cutting_the_end_off_is_exact(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            messages = append_batches(log)
            bases = [batch.base_offset for batch in await read_through(log)]
            for kept in (11, 8, 3, 1, 0):
                await log.trim(after=bases[kept])
                assert log.bounds() == (0, bases[kept])
                assert log.durable() <= bases[kept]
                assert messages_of(await read_through(log)) == messages[:kept]
                assert log.size_bytes() == sum(map(len, messages[:kept]))
            messages = append_batches(log)
            assert messages_of(await read_through(log)) == messages

    async def test_cutting_within_a_batch_or_outside_is_refused(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            messages = append_batches(log)
            end = log.bounds()[1]
            await log.trim(before=1)
            for after in (2, 0, end - 1, end + 1):
                with pytest.raises(OffsetOutOfRange):
                    await log.trim(after=after)
            await log.trim(after=end)
            assert messages_of(await read_through(log)) == messages[1:]

    async def test_a_timestamp_finds_the_first_batch_from_then_on(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            bases = [batch.base_offset for batch in await read_through(log)]
            assert await log.offset_at(0) == 0
            for number, base in enumerate(bases):
                assert await log.offset_at(1_000 * (number + 1)) == base
                assert await log.offset_at(1_000 * number + 1) == base
            assert await log.offset_at(12_001) == log.bounds()[1]
            await log.trim(before=bases[5])
            assert await log.offset_at(0) == bases[5]

    async def test_retention_without_bounds_drops_nothing(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            messages = append_batches(log)
            assert await log.enforce_retention(0, age_ms=None, bytes_max=None, before=None) == 0
            assert messages_of(await read_through(log)) == messages

    async def test_retention_by_size_drops_the_oldest(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            for _ in range(6):
                messages = append_batches(log)
            size = log.size_bytes()
            now_ms = harness.env.clock.now_ms()
            start = await log.enforce_retention(now_ms, age_ms=None, bytes_max=2 * size // 3, before=None)
            assert 0 < start == log.bounds()[0]
            assert log.size_bytes() <= 2 * size // 3
            assert messages_of(await read_through(log))[-12:] == messages

    async def test_retention_by_age_drops_what_is_older(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            now_ms, end = harness.env.clock.now_ms(), log.bounds()[1]
            assert await log.enforce_retention(now_ms, age_ms=60_000, bytes_max=None, before=None) == 0
            assert await log.enforce_retention(now_ms + 61_000, age_ms=60_000, bytes_max=None, before=None) == end
            assert log.append(make_batch(1)) == end

    async def test_retention_by_offset_keeps_that_offset(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            for _ in range(6):
                messages = append_batches(log)
            end = log.bounds()[1]
            start = await log.enforce_retention(0, age_ms=None, bytes_max=None, before=end - 24)
            assert 0 < start <= end - 24
            assert messages_of(await read_through(log))[-12:] == messages

    async def test_retention_keeps_all_from_an_offset_on(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            middle = log.bounds()[1]
            messages = append_batches(log)
            far_ms, end = harness.env.clock.now_ms() + 61_000, log.bounds()[1]
            for bounds in ((60_000, None, None), (None, 0, None), (None, None, end), (60_000, 0, end)):
                age_ms, bytes_max, before = bounds
                start = await log.enforce_retention(
                    far_ms, age_ms=age_ms, bytes_max=bytes_max, before=before, keep=middle
                )
                assert start <= middle
                assert messages_of(await read_through(log))[-12:] == messages
            start = await log.enforce_retention(far_ms, age_ms=60_000, bytes_max=None, before=None, keep=end)
            assert start == end

    async def test_retention_keeps_a_batch_of_which_a_part_is_needed(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            whole = make_batch(3)
            first = log.append(whole)
            far_ms = harness.env.clock.now_ms() + 61_000
            start = await log.enforce_retention(far_ms, age_ms=60_000, bytes_max=0, before=None, keep=first + 1)
            assert start <= first
            assert messages_of(await log.read(first, 1 << 20)) == messages_of([whole])

    # --- the end -----------------------------------------------------------------------------------------------------

    async def test_a_closed_log_takes_no_work(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            await log.close()
            await log.close()
            with pytest.raises(LogClosed):
                log.append(make_batch(1))
            works: list[Callable[[], Awaitable[object]]] = [
                log.sync,
                lambda: log.read(0, 1),
                lambda: log.trim(before=1),
                lambda: log.offset_at(0),
                lambda: log.enforce_retention(0, age_ms=None, bytes_max=None, before=None),
            ]
            for work in works:
                with pytest.raises(LogClosed):
                    await work()

    async def test_a_deleted_log_leaves_nothing(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            append_batches(log)
            await log.delete()
        async with harness.log() as log:
            assert log.bounds() == (0, 0)
            append_batches(log)
            assert len(await read_through(log)) == 12

    async def test_a_topic_is_deleted_unopened_and_no_other(self, harness: EngineHarness) -> None:
        engine = harness.make(harness.env)
        if not await engine.delete_topic("nothing"):
            return
        for topic in ("a", "b"):
            log = await engine.open(PartitionId(topic, 3))
            append_batches(log)
            await log.close()
        for topic, end in (("a", 0), ("b", 24)):
            assert await engine.delete_topic("a")
            log = await engine.open(PartitionId(topic, 3))
            assert log.bounds() == (0, end)
            await log.close()

    async def test_partitions_have_nothing_in_common(self, harness: EngineHarness) -> None:
        engine = harness.make(harness.env)
        logs = [await engine.open(PartitionId(topic, index)) for topic in ("a", "b") for index in (0, 1)]
        for number, log in enumerate(logs):
            log.append(make_batch(1 + number, fill=number))
        await logs[0].delete()
        for number, log in enumerate(logs[1:], 1):
            batches = await log.read(0, READ_ALL)
            assert batches[0].value(0) == bytes([number]) * 100
            assert log.bounds() == (0, 1 + number)
            await log.close()
        await engine.close()
