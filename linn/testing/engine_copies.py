"""The part of the conformance suite of storage engines about replicas: copies of another log, cuts, restarts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from linn.core.batch.batch import TRANSACTIONAL, RecordBatch
from linn.core.batch.builder import build_marker
from linn.core.batch.flat_message import DATA_AT
from linn.core.errors.replication import CopyMisplaced
from linn.core.errors.tree import BatchCorrupt, LinnError, LogClosed
from linn.core.log.facts import LogFacts
from linn.core.log.storage import PartitionLog
from linn.testing.engine_harness import EngineHarness, make_batch, messages_of, read_through

_DURABLE_AT, _STAMP_CRC_AT = 32, 44


def leader_log(*, first: int = 0, epochs: Sequence[int] = (3, 3, 5, 5, 5, 9, 9, 9, 9)) -> list[RecordBatch]:
    """Make the batches of another replica's log, of 1, 2, 3, 1, ... records, some in a transaction."""
    batches, offset = list[RecordBatch](), first
    for number, epoch in enumerate(epochs):
        batch = make_batch(1 + number % 3, value_bytes=150 * number, timestamp_ms=1_000 + number)
        batch.number(7 + number % 2, 0, offset, TRANSACTIONAL if number % 2 else 0, number % 2)
        batches.append(_stamped(batch, offset, epoch))
        offset = batch.end_offset
    return [*batches, _stamped(build_marker(8, 0, 1, 0, is_commit=False), offset, max(epochs, default=0))]


def _stamped(batch: RecordBatch, offset: int, epoch: int) -> RecordBatch:
    batch.stamp(offset, 5_000 + offset, offset, epoch)  # It claims that all before it was durable there.
    return batch


def copied(batches: Sequence[RecordBatch]) -> list[RecordBatch]:
    """Copy batches as they arrive from a connection, with buffers of their own."""
    return [RecordBatch(bytearray(batch.message)) for batch in batches]


def sealed_parts(batches: Sequence[RecordBatch]) -> list[bytes]:
    """Return the bytes that all replicas have in common."""
    found = []
    for message in messages_of(batches):
        stamp = message[DATA_AT:_DURABLE_AT] + message[_DURABLE_AT + 8 : _STAMP_CRC_AT]
        found.append(message[:DATA_AT] + stamp + message[_STAMP_CRC_AT + 4 :])
    return found


class CopyTests:
    """The promises of `append_copy` and `restart_at`, and of `trim(after=)` about facts."""

    # --- copies ------------------------------------------------------------------------------------------------------

    async def test_copies_keep_everything_but_the_durable_offset(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            theirs = leader_log()
            assert log.append_copy(copied(theirs[:4])) == log.bounds()[1] == theirs[3].end_offset
            for batch in theirs[4:]:
                log.append_copy(copied([batch]))
            assert log.append_copy([]) == theirs[-1].end_offset
            found = await read_through(log)
            assert sealed_parts(found) == sealed_parts(theirs)
            assert log.size_bytes() == sum(batch.size for batch in theirs)
            for batch in found:
                batch.check_stored()

    async def test_copies_claim_only_what_is_durable_here(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            theirs = leader_log()
            log.append_copy(copied(theirs[:3]))
            await log.sync()
            durable = log.durable()
            log.append_copy(copied(theirs[3:]))
            found = await read_through(log)
            if log.capabilities.survives_restart:
                assert [batch.durable_offset for batch in found[3:]] == [durable] * len(found[3:])
            assert all(batch.durable_offset <= log.durable() for batch in found)

    async def test_copies_bring_their_facts(self, harness: EngineHarness) -> None:
        theirs = leader_log()
        wanted = LogFacts.of(theirs).encode()
        async with harness.log() as log:
            log.append_copy(copied(theirs[:2]))
            log.append_copy(copied(theirs[2:]))
            assert log.facts.encode() == wanted
            await log.sync()
        async with harness.log() as log:
            if log.capabilities.survives_restart:
                assert log.bounds() == (0, theirs[-1].end_offset)
                assert log.facts.encode() == wanted

    async def test_copies_that_do_not_continue_the_log_are_refused(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            theirs = leader_log()
            log.append_copy(copied(theirs[:5]))
            before = log.bounds(), log.size_bytes(), log.facts.encode()
            sealed, stamped = copied(theirs[5:7]), copied(theirs[5:7])
            sealed[1].message[-1] ^= 1
            stamped[1].message[DATA_AT] ^= 1  # Read before it was damaged, as a buffer that is used twice would be.
            earlier = _stamped(make_batch(1), theirs[5].base_offset, 4)
            refused: list[tuple[type[LinnError], Sequence[RecordBatch]]] = [
                (CopyMisplaced, copied(theirs[6:8])),
                (CopyMisplaced, copied(theirs[4:6])),
                (CopyMisplaced, copied([theirs[5], theirs[7]])),
                (CopyMisplaced, [earlier]),
                (CopyMisplaced, [*copied(theirs[5:6]), _stamped(make_batch(1), theirs[5].end_offset, 5)]),
                (BatchCorrupt, sealed),
                (BatchCorrupt, stamped),
            ]
            for error, batches in refused:
                with pytest.raises(error):
                    log.append_copy(batches)
                assert (log.bounds(), log.size_bytes(), log.facts.encode()) == before
            log.append_copy(copied(theirs[5:]))
            assert sealed_parts(await read_through(log)) == sealed_parts(theirs)

    async def test_a_follower_becomes_the_leader_of_the_same_log(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            theirs = leader_log()
            end = log.append_copy(copied(theirs))
            batch = make_batch(2)
            assert log.append(batch, 11) == end
            assert (batch.base_offset, batch.leader_epoch) == (end, 11)
            assert batch.append_time_ms >= theirs[-1].append_time_ms
            assert sealed_parts(await read_through(log)) == sealed_parts([*theirs, batch])

    async def test_a_follower_cuts_what_its_leader_never_had(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            theirs = leader_log()
            log.append_copy(copied(theirs))
            for kept in (8, 5, 4, 1, 0):
                await log.trim(after=theirs[kept].base_offset)
                assert log.facts.encode() == LogFacts.of(theirs[:kept]).encode()
            others = leader_log(epochs=(3, 10, 12))
            log.append_copy(copied(others))
            assert log.facts.encode() == LogFacts.of(others).encode()
            assert sealed_parts(await read_through(log)) == sealed_parts(others)

    # --- restarts ----------------------------------------------------------------------------------------------------

    async def test_a_log_restarts_empty_at_any_offset(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            for start in (40, 1_000, 1_000, 7, 0):
                await log.restart_at(start)
                assert log.bounds() == (start, start)
                assert (log.size_bytes(), log.durable()) == (0, start)
                assert log.facts.encode() == LogFacts().encode()
                await self._fill_from(log, start)

    async def test_a_restart_survives_a_restart_of_the_broker(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            log.append_copy(copied(leader_log()))
            await log.restart_at(500)
        async with harness.log() as log:
            if not log.capabilities.survives_restart:
                return
            assert log.bounds() == (500, 500)
            assert log.facts.encode() == LogFacts().encode()
            await self._fill_from(log, 500)
        async with harness.log() as log:
            theirs = leader_log(first=500)
            assert log.bounds() == (500, theirs[-1].end_offset)
            assert sealed_parts(await read_through(log)) == sealed_parts(theirs)

    async def test_the_leader_s_producers_are_known_in_place_of_its_own(self, harness: EngineHarness) -> None:
        theirs = leader_log()
        async with harness.log() as log:
            for append in (False, True):
                await log.restart_at(theirs[5].base_offset)
                await log.know_producers(LogFacts.of(theirs[:5]).producers)
                if append:
                    log.append_copy(copied(theirs[5:]))
                known = LogFacts.of(theirs if append else theirs[:5]).producers.encode()
                assert log.facts.producers.encode() == known

    async def _fill_from(self, log: PartitionLog, start: int) -> None:
        with pytest.raises(CopyMisplaced):
            log.append_copy(copied(leader_log(first=start + 1)))
        theirs = leader_log(first=start)
        log.append_copy(copied(theirs))
        assert sealed_parts(await read_through(log)) == sealed_parts(theirs)

    async def test_a_closed_log_takes_no_copies(self, harness: EngineHarness) -> None:
        async with harness.log() as log:
            await log.close()
            with pytest.raises(LogClosed):
                log.append_copy(copied(leader_log()))
            with pytest.raises(LogClosed):
                await log.restart_at(3)
