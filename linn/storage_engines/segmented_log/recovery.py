"""Opening a log: what is whole is kept, a torn tail is cut off, and damage that can't be a torn tail is refused.

Laws:

- What no sync ever covered may be torn, and only that; it is the end of the log, at most from some batch of one segment
  on. What follows the first bad batch was appended after it, so it is cut off with it: a log has no holes.
- A cut is made only where nothing proves that the bad batch was once on stable storage. Proofs are the checkpoint, an
  index file, and the durable offset that every later batch carries. With a proof, `LogCorrupt` is raised and nothing is
  changed.
- Whatever is done here can be interrupted at any point and done again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from linn.core.env import Disk
from linn.core.errors import LogCorrupt, StorageError, SyncFailed
from linn.core.log_fields import log_fields
from linn.storage_engines.segmented_log.checkpoint import Checkpoint, CheckpointFile
from linn.storage_engines.segmented_log.segment import SCAN_BYTES, Damage, Segment
from linn.storage_engines.segmented_log.stored_batch import HEAD_BYTES, find_stamp

logger = logging.getLogger("linn.storage")

_DIGITS = 20
_OVERLAP_BYTES = -(-HEAD_BYTES // 8) * 8


@dataclass(slots=True)
class Recovered:
    """A log as it was found and mended. All of it is on stable storage, and its last segment can be appended to."""

    segments: list[Segment]
    start: int
    cut_bytes: int
    """Of a torn tail."""


class Recovery:
    """One opening of one log's folder."""

    def __init__(self, disk: Disk, folder: str, checkpoint_file: CheckpointFile, index_interval_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._checkpoint_file = checkpoint_file
        self._index_interval_bytes = index_interval_bytes
        self._checkpoint = Checkpoint(0, 0)
        self._opened: list[Segment] = []
        self._found: list[Segment] = []
        self._whole: list[Segment] = []
        self._overhanging: list[Segment] = []
        self._cut_bytes = 0
        self._claims: dict[int, int] = {}
        """By base offset: the end that a segment's index file proves, where the segment itself did not bear it out."""

    async def run(self) -> Recovered:
        """Open the log, making it where there is none.

        Raises:
            LogCorrupt: damage before the tail. Nothing was changed.
            DiskFull, DiskReadOnly, SyncFailed, StorageError.
        """
        try:
            return await self._run()
        except BaseException:
            for segment in self._opened:
                segment.shut()
            raise

    async def _run(self) -> Recovered:
        self._found = [self._segment(base) for base in self._bases_found()]
        await self._read_checkpoint()
        if self._checkpoint.cut is not None:
            await self._finish_cut(self._checkpoint.cut)
        self._forget_leftovers()
        damage = await self._take_whole()
        end = self._end()
        self._check_claims(damage, end)
        if damage is not None:
            await self._refuse_unless_torn(damage)
            await self._cut_tail(damage)
        for segment in self._overhanging:
            await segment.cut()
        if not self._whole or self._end() < self._checkpoint.start:
            await self._begin_again()
        await self._make_durable()
        await self._seal_finished()
        await self._whole[-1].grow()
        self._sweep()
        for segment in self._whole[:-1]:
            segment.unload()
        start = max(self._checkpoint.start, self._whole[0].base_offset)
        return Recovered(self._whole, start, self._cut_bytes)

    def _segment(self, base_offset: int) -> Segment:
        path = f"{self._folder}/{base_offset:0{_DIGITS}d}"
        segment = Segment(self._disk, path, base_offset, self._index_interval_bytes)
        self._opened.append(segment)
        return segment

    def _bases_found(self) -> list[int]:
        names = self._disk.list_dir(self._folder)
        stems = [name.removesuffix(".log") for name in names if name.endswith(".log")]
        return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isascii() and stem.isdigit())

    def _end(self) -> int:
        return self._whole[-1].end_offset if self._whole else self._checkpoint.start

    async def _read_checkpoint(self) -> None:
        found = await self._checkpoint_file.read()
        if found is None:
            start = self._found[0].base_offset if self._found else 0
            found = Checkpoint(start, durable=start)
            await self._checkpoint_file.create(found)
        self._checkpoint = found

    # --- work that a crash interrupted -------------------------------------------------------------------------------

    async def _finish_cut(self, cut: int) -> None:
        """Drop everything from offset `cut` on: the trim that the checkpoint says was under way."""
        while self._found and self._found[-1].base_offset >= cut:
            self._found.pop().unlink()
        if self._found:
            last = self._found[-1]
            self._disk.unlink(last.index_path)
            await self._disk.sync_dir(self._folder)
            await last.scan()
            if last.end_offset > cut:
                position = await last.locate(cut)
                last.file().truncate(position)
                await last.sync()
            last.shut()
            self._found[-1] = self._segment(last.base_offset)
        await self._disk.sync_dir(self._folder)
        old = self._checkpoint
        self._checkpoint = Checkpoint(min(old.start, cut), min(old.durable, cut))
        await self._checkpoint_file.write_both(self._checkpoint)

    def _forget_leftovers(self) -> None:
        """Delete segments that lie wholly before the start: trimming was interrupted."""
        while len(self._found) > 1 and self._found[1].base_offset <= self._checkpoint.start:
            self._found.pop(0).unlink()

    # --- what is whole -----------------------------------------------------------------------------------------------

    async def _take_whole(self) -> Damage | None:
        """Move segments from `_found` to `_whole`, in order, up to and with the first damaged one; its damage."""
        if self._found and self._found[0].base_offset > self._checkpoint.start:
            return Damage(0, self._checkpoint.start, "the first segment is missing")
        while self._found:
            segment, end = self._found[0], self._end()
            if self._whole and segment.base_offset != end:
                certain = segment.base_offset < end
                reason = f"the next segment, {segment.path}, does not begin there"
                return Damage(self._whole[-1].size_bytes, end, reason, certain=certain)
            self._whole.append(self._found.pop(0))
            damage = await self._examine(segment)
            if damage is None:
                continue
            if damage.certain or not self._found or self._found[0].base_offset != damage.offset:
                return damage
            # The next segment goes on right there, so these bytes are no records: a write that failed left them.
            self._overhanging.append(segment)
        return None

    async def _examine(self, segment: Segment) -> Damage | None:
        """Believe the segment's index for what it covers and scan the rest."""
        summary = await segment.read_summary()
        if summary is not None and not await segment.adopt(summary):
            self._claims[segment.base_offset] = summary.end_offset
        size = segment.file().size()
        if segment.size_bytes == size:
            return None
        await segment.grow()
        return await segment.scan()

    # --- judging damage ----------------------------------------------------------------------------------------------

    def _check_claims(self, damage: Damage | None, end: int) -> None:
        """Raise LogCorrupt where the log ends before an offset that is known to have been durable."""
        durable = self._checkpoint.durable
        if self._whole:
            durable = max(durable, self._claims.get(self._whole[-1].base_offset, 0))
        if durable > max(end, self._checkpoint.start):
            damage = damage or Damage(self._position(), end, "the file ends there")
            raise self._corrupt(damage, f"everything before offset {durable} was on stable storage")
        for base, claim in self._claims.items():
            text = "the index of segment %(segment)d of %(folder)s claims offset %(offset)d and is ignored"
            logger.warning(text, {"folder": self._folder, "segment": base, "offset": claim})

    def _position(self) -> int:
        return self._whole[-1].size_bytes if self._whole else 0

    async def _refuse_unless_torn(self, damage: Damage) -> None:
        """Raise LogCorrupt unless the damage can be that of writes which no sync covered."""
        if damage.certain:
            raise self._corrupt(damage, "no torn write looks like that")
        places = [(segment, 0) for segment in self._found]
        if self._whole:
            places.insert(0, (self._whole[-1], damage.position))
        for segment, position in places:
            if segment in self._found and await segment.read_summary() is not None:
                raise self._corrupt(damage, f"{segment.path}, which comes later, was on stable storage")
            await self._refuse_stamps(damage, segment, position)

    async def _refuse_stamps(self, damage: Damage, segment: Segment, position: int) -> None:
        """Raise LogCorrupt if a batch in `segment` was written when something beyond the damage was durable."""
        file = segment.file()
        size = file.size()
        while position < size:
            found = find_stamp(await file.read(position, SCAN_BYTES), damage.offset)
            if found is not None:
                at, head = found
                proof = f"the batch at byte {position + at} of {segment.path} was written"
                raise self._corrupt(damage, f"{proof} when offset {head.durable_offset} was on stable storage")
            position += SCAN_BYTES - _OVERLAP_BYTES

    def _corrupt(self, damage: Damage, proof: str) -> LogCorrupt:
        place = f"{self._whole[-1].path} at byte {damage.position}" if self._whole else self._folder
        return LogCorrupt(
            f"{place} is damaged at offset {damage.offset}: {damage.reason}, but {proof}; nothing was deleted"
        )

    # --- mending -----------------------------------------------------------------------------------------------------

    async def _cut_tail(self, damage: Damage) -> None:
        cut_bytes = sum(segment.file().size() for segment in self._found)
        for segment in reversed(self._found):
            segment.unlink()
        self._found.clear()
        if self._whole:
            last = self._whole[-1]
            cut_bytes += last.file().size() - damage.position
            if last.indexed_bytes == 0:
                self._disk.unlink(last.index_path)
            if last.file().size() > damage.position:
                await last.cut()
        await self._disk.sync_dir(self._folder)
        self._cut_bytes = cut_bytes
        about = {"folder": self._folder, "bytes": cut_bytes, "offset": damage.offset, "reason": damage.reason}
        text = "%(folder)s: cut off a torn tail of %(bytes)d bytes at offset %(offset)d: no proof that it was synced"
        logger.warning(f"{text} (%(reason)s)", about)

    async def _begin_again(self) -> None:
        """Go on at the start, behind everything that is left: all of it is forgotten."""
        first = self._segment(self._checkpoint.start)
        first.create()
        await self._disk.sync_dir(self._folder)
        for segment in self._whole:
            segment.unlink()
        self._whole = [first]

    def _sweep(self) -> None:
        """Delete what interrupted work left beside the segments."""
        kept = {segment.index_path for segment in self._whole}
        for name in self._disk.list_dir(self._folder):
            path = f"{self._folder}/{name}"
            if name.endswith(".tmp") or (name.endswith(".index") and path not in kept):
                self._disk.unlink(path)

    async def _make_durable(self) -> None:
        """Sync what a process that was killed may have left in the page cache only."""
        if self._end() == self._checkpoint.durable:
            return
        for segment in self._whole:
            if segment.indexed_bytes != segment.size_bytes:
                await segment.sync()
        await self._disk.sync_dir(self._folder)

    async def _seal_finished(self) -> None:
        """Write the index files that are missing, so that no opening scans these segments again."""
        unsealed = [segment for segment in self._whole[:-1] if segment.indexed_bytes != segment.size_bytes]
        try:
            for segment in unsealed:
                await segment.write_index()
            if unsealed:
                await self._disk.sync_dir(self._folder)
        except SyncFailed:
            raise
        except StorageError as error:
            about = {"folder": self._folder} | log_fields(error)
            logger.warning("%(folder)s: an index file can't be written now: %(error)s", about)
