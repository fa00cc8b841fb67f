"""Recovery of a log when it is opened: a torn tail is cut off and set aside, and any other damage is refused.

Laws:

- A torn tail is damage without a whole batch after it. Damage followed by a whole batch is refused, because cutting
  there would lose that batch; so is damage to bytes known to have been on stable storage. The checkpoint, an index
  file, and the durable offset in every later batch prove that.
- `examine` changes nothing. Only `mend`, which carries out its result, cuts, moves or deletes.
- Cut bytes are set aside in the log's folder, in files whose names end with ".cut", and are deleted only with the log.
- Every operation can be interrupted at any point and repeated.
- A log that was opened is on stable storage, and the checkpoint records that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from linn.api import DamagedTail, Disk, DiskFull, LogCorrupt, LogFacts, StorageError, SyncFailed, log_fields
from linn.storage_engines.segmented_log.checkpoint import Checkpoint, CheckpointFile
from linn.storage_engines.segmented_log.segment import SCAN_BYTES, Damage, Segment
from linn.storage_engines.segmented_log.stored_batch import HEAD_BYTES, Head, is_whole, stamps_in

logger = logging.getLogger("linn.storage")

_DIGITS = 20
_OVERLAP_BYTES = -(-HEAD_BYTES // 8) * 8
CUT_SUFFIX = ".cut"
"""Suffix of files with cut bytes; a number follows if such a file exists already."""

OnWhole = Callable[[int, Head], bool]


@dataclass(slots=True)
class Recovered:
    """A recovered log. All of it is on stable storage, and its last segment is ready for appends.

    An empty folder becomes a log with one segment; the files of segment and checkpoint are not created yet.
    """

    segments: list[Segment]
    start: int
    cut_bytes: int
    """Size of the torn tail."""
    is_new: bool = False
    """Whether the folder was empty."""
    facts: LogFacts = field(default_factory=LogFacts)
    """The facts derived from its batches."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The reason why damage is not a torn tail."""

    damage: Damage
    proof: str


class Recovery:
    """The opening of a log's folder."""

    def __init__(self, disk: Disk, folder: str, checkpoint_file: CheckpointFile, index_interval_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._checkpoint_file = checkpoint_file
        self._index_interval_bytes = index_interval_bytes
        self._checkpoint: Checkpoint | None = None
        self._opened: list[Segment] = []
        self._found: list[Segment] = []
        self._leftovers: list[Segment] = []
        self._whole: list[Segment] = []
        self._overhanging: list[Segment] = []
        self._damage: Damage | None = None
        self._refusal: _Refusal | None = None
        self._cut_bytes = 0
        self._is_emptied = False
        """Whether a trim of the end was to leave no segment."""
        self._claims: dict[int, int] = {}
        """The end that an index file claims, by base offset, if the segment itself is shorter."""

    async def examine(self) -> None:
        """Examine the log without changing it.

        Raises:
            LogCorrupt: it is damaged, and the damage is not just a torn tail.
            SyncFailed, StorageError.
        """
        await self._look()
        if self._refusal is not None:
            raise self._corrupt(self._refusal)

    async def _look(self) -> None:
        try:
            self._found = [self._segment(base) for base in self._bases_found()]
            self._checkpoint = await self._checkpoint_file.read()
            if self._checkpoint is None or self._checkpoint.cut is None:
                await self._judge()
        finally:
            for segment in self._opened:
                segment.shut()

    async def _judge(self) -> None:
        self._set_leftovers_aside()
        self._damage = await self._take_whole()
        self._refusal = self._refused_claim() or await self._refused_damage()

    async def mend(self) -> Recovered:
        """Carry out the result of `examine`; creates the log if there is none.

        Raises:
            LogCorrupt: damage that `examine` could not see, because a trim had been interrupted.
            DiskFull, DiskReadOnly, SyncFailed, StorageError.
        """
        try:
            return await self._mend()
        except BaseException:
            for segment in self._opened:
                segment.shut()
            raise

    async def _mend(self) -> Recovered:
        is_young = not self._checkpoint_file.is_made
        if is_young and not (self._found or self._whole or self._leftovers):
            return Recovered([self._segment(0)], 0, 0, is_new=True)
        if self._checkpoint is None:
            self._do_without_checkpoint()
        elif self._checkpoint.cut is not None:
            await self._finish_cut(self._checkpoint.cut)
            await self._judge()
            if self._refusal is not None:
                raise self._corrupt(self._refusal)
        for segment in self._leftovers:
            segment.unlink()
        self._warn_of_claims()
        if self._damage is not None:
            await self._cut_tail(self._damage)
        for segment in self._overhanging:
            await self._set_aside(segment, segment.size_bytes, must_keep=False)
            await segment.cut()
        facts = await self._find_facts()
        if not self._whole or self._end() < self._start:
            await self._begin_again(is_young, facts)
        await self._make_durable()
        await self._seal_finished()
        await self._whole[-1].grow()
        self._sweep()
        for segment in self._whole[:-1]:
            segment.unload()
        start = max(self._start, self._whole[0].base_offset)
        return Recovered(self._whole, start, self._cut_bytes, facts=facts)

    # --- cutting on request -------------------------------------------------------------------------------------------

    async def tail(self) -> DamagedTail | None:
        """The tail that prevents the log from being opened; None if it can be opened. Changes nothing.

        Raises SyncFailed, StorageError.
        """
        await self._look()
        if self._refusal is None:
            return None
        damage = self._refusal.damage
        tail = DamagedTail(self._place(damage), damage.offset, damage.reason, 0, 0, 0)

        def count(at: int, head: Head) -> bool:
            tail.batches += 1
            tail.records += head.record_count
            return False

        for segment, position in self._places(damage):
            tail.bytes += segment.file().size() - position
            await self._look_behind(damage, segment, position, count)
            segment.shut()
        return tail

    async def cut(self) -> None:
        """Set aside the result of `tail`, so that the log can be opened. Raises DiskFull, SyncFailed, StorageError."""
        assert self._refusal is not None
        damage, end = self._refusal.damage, self._end()
        await self._move_tail(damage, must_keep=True)
        # The checkpoint no longer applies to the rest, nor does an index that claims more.
        self._drop_claim()
        await self._disk.sync_dir(self._folder)
        checkpoint = Checkpoint(min(self._start, end), min(end, damage.offset))
        await self._checkpoint_file.write_both(checkpoint)
        for segment in self._opened:
            segment.shut()

    def _segment(self, base_offset: int) -> Segment:
        path = f"{self._folder}/{base_offset:0{_DIGITS}d}"
        segment = Segment(self._disk, path, base_offset, self._index_interval_bytes)
        self._opened.append(segment)
        return segment

    def _bases_found(self) -> list[int]:
        names = self._disk.list_dir(self._folder)
        stems = [name.removesuffix(".log") for name in names if name.endswith(".log")]
        return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isascii() and stem.isdigit())

    @property
    def _start(self) -> int:
        if self._checkpoint is not None:
            return self._checkpoint.start
        return min([segment.base_offset for segment in (*self._leftovers, *self._whole, *self._found)], default=0)

    @property
    def _durable(self) -> int:
        return self._checkpoint.durable if self._checkpoint is not None else self._start

    def _end(self) -> int:
        return self._whole[-1].end_offset if self._whole else self._start

    def _do_without_checkpoint(self) -> None:
        # A power loss may have removed the file that an unsynced log has in place of the checkpoint.
        if self._start or len(self._found) + len(self._whole) > 1:
            text = "%(folder)s: the checkpoint is missing; the log begins with the oldest segment, at %(offset)d"
            logger.warning(text, {"folder": self._folder, "offset": self._start})
        self._checkpoint = Checkpoint(self._start, self._durable)

    # --- work that a crash interrupted -------------------------------------------------------------------------------

    async def _finish_cut(self, cut: int) -> None:
        """Drop everything from offset `cut` on, to finish the trim recorded in the checkpoint; the start stays."""
        while self._found and self._found[-1].base_offset >= cut:
            self._found.pop().unlink()
        self._is_emptied = not self._found
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
        self._checkpoint = Checkpoint(self._start, max(self._start, min(self._durable, cut)))
        await self._checkpoint_file.write_both(self._checkpoint)

    def _set_leftovers_aside(self) -> None:
        """Leave out segments that lie wholly before the start, left by an interrupted trim."""
        while len(self._found) > 1 and self._found[1].base_offset <= self._start:
            self._leftovers.append(self._found.pop(0))

    # --- whole segments -----------------------------------------------------------------------------------------------

    async def _take_whole(self) -> Damage | None:
        """Move segments from `_found` to `_whole`, in order, up to the first damaged one; returns the damage."""
        if self._found and self._found[0].base_offset > self._start:
            return Damage(0, self._start, "the first segment is missing")
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
            # The next segment continues here, so these bytes are not records: a failed write left them.
            self._overhanging.append(segment)
        return None

    async def _examine(self, segment: Segment) -> Damage | None:
        """Trust the segment's index for the part that it covers, and scan the rest."""
        summary = await segment.read_summary()
        if summary is not None and not await segment.adopt(summary):
            self._claims[segment.base_offset] = summary.end_offset
        size = segment.file().size()
        if segment.size_bytes == size:
            return None
        await segment.grow()
        return await segment.scan()

    # --- judging damage ----------------------------------------------------------------------------------------------

    def _refused_claim(self) -> _Refusal | None:
        """The reason why the log can't end here: it was longer before."""
        end, durable = self._end(), self._durable
        if self._whole:
            durable = max(durable, self._claims.get(self._whole[-1].base_offset, 0))
        if durable <= max(end, self._start):
            return None
        damage = self._damage or Damage(self._position(), end, "the file ends there")
        return _Refusal(damage, f"everything before offset {durable} was on stable storage")

    def _warn_of_claims(self) -> None:
        for base, claim in self._claims.items():
            text = "the index of segment %(segment)d of %(folder)s claims offset %(offset)d and is ignored"
            logger.warning(text, {"folder": self._folder, "segment": base, "offset": claim})

    def _position(self) -> int:
        return self._whole[-1].size_bytes if self._whole else 0

    def _places(self, damage: Damage) -> list[tuple[Segment, int]]:
        """The segments with bytes after the damage, and the position of these bytes in each."""
        places = [(segment, 0) for segment in self._found]
        if self._whole:
            places.insert(0, (self._whole[-1], damage.position))
        return places

    async def _refused_damage(self) -> _Refusal | None:
        """The reason why the damage can't be a torn tail; None if it can."""
        damage = self._damage
        if damage is None:
            return None
        if damage.certain:
            return _Refusal(damage, "no torn write looks like that")
        found: list[tuple[int, Head]] = []

        def first(at: int, head: Head) -> bool:
            found.append((at, head))
            return True

        for segment, position in self._places(damage):
            if segment in self._found and await segment.read_summary() is not None:
                return _Refusal(damage, f"{segment.path}, which comes later, was on stable storage")
            await self._look_behind(damage, segment, position, first)
            if found:
                [(at, head)] = found
                text = f"the batch at byte {at} of {segment.path}, which comes later,"
                if head.durable_offset > damage.offset:
                    text = f"{text} was written when offset {head.durable_offset} was on stable storage"
                else:
                    text = f"{text} is whole"
                return _Refusal(damage, text)
            segment.shut()
        return None

    async def _look_behind(self, damage: Damage, segment: Segment, position: int, on_whole: OnWhole) -> None:
        """Call `on_whole` for each batch of a segment that lies after the damage and is whole, or otherwise proves that
        the damage is not a torn tail.

        `on_whole` returns whether to stop.
        """
        offset, file = damage.offset, segment.file()
        size = file.size()
        behind = position
        while position < size:
            data = await file.read(position, SCAN_BYTES)
            for at, head in stamps_in(data):
                if position + at < behind or head.base_offset < offset:
                    continue  # Inside another batch, or from an earlier file.
                proves = offset < head.durable_offset <= head.base_offset
                fits = at + head.size <= len(data)
                message = data[at : at + head.size] if fits else await file.read(position + at, head.size)
                if proves or is_whole(message, head):
                    behind = position + at + head.size
                    if on_whole(position + at, head):
                        return
            position += SCAN_BYTES - _OVERLAP_BYTES

    def _place(self, damage: Damage) -> str:
        return f"{self._whole[-1].path} at byte {damage.position}" if self._whole else self._folder

    def _corrupt(self, refusal: _Refusal) -> LogCorrupt:
        damage, name = refusal.damage, "/".join(self._folder.rsplit("/", 2)[-2:])
        return LogCorrupt(
            f"{self._place(damage)} is damaged at offset {damage.offset}: {damage.reason}, but {refusal.proof}; "
            f"nothing was deleted. `linn recover {name}` says what would be lost by cutting there"
        )

    # --- mending -----------------------------------------------------------------------------------------------------

    async def _cut_tail(self, damage: Damage) -> None:
        cut_bytes = sum(segment.file().size() - position for segment, position in self._places(damage))
        names = await self._move_tail(damage, must_keep=False)
        self._drop_claim()
        await self._disk.sync_dir(self._folder)
        self._cut_bytes = cut_bytes
        about = {"folder": self._folder, "bytes": cut_bytes, "offset": damage.offset, "reason": damage.reason}
        text = "%(folder)s: cut off a torn tail of %(bytes)d bytes at offset %(offset)d (%(reason)s); %(kept)s"
        kept = f"it is kept in {', '.join(names)}" if names else "it held nothing, or there was no room to keep it"
        logger.warning(text, about | {"kept": kept})

    def _drop_claim(self) -> None:
        """Delete the index of the last whole segment unless it matches the remaining log: it has the log's facts."""
        if self._whole and not self._whole[-1].has_index:
            self._disk.unlink(self._whole[-1].index_path)

    async def _move_tail(self, damage: Damage, *, must_keep: bool) -> list[str]:
        """Set aside the bytes after the damage; returns the names of the files that hold them now.

        Works from the end, so that an interruption leaves a log with a shorter damaged tail. Raises DiskFull if the
        bytes must be kept and there is no space.
        """
        names = []
        for segment in reversed(self._found):
            name = self._free_name(segment.path)
            segment.shut()
            self._disk.unlink(segment.index_path)
            self._disk.rename(segment.path, name)
            names.append(name)
        self._found.clear()
        if self._whole and self._whole[-1].file().size() > damage.position:
            last = self._whole[-1]
            name = await self._set_aside(last, damage.position, must_keep=must_keep)
            if name:
                names.append(name)
            await last.cut()
        return [name.rpartition("/")[2] for name in names]

    async def _set_aside(self, segment: Segment, position: int, *, must_keep: bool) -> str:
        """Copy the bytes after `position` into a new file; returns its name, or "" if there are only zeros.

        Raises DiskFull, StorageError: the file does not exist. If the bytes need not be kept, a full disk is no error.
        """
        file, size = segment.file(), segment.file().size()
        name = self._free_name(f"{self._folder}/{segment.end_offset:0{_DIGITS}d}")
        copy, holds_something = None, False
        try:
            while position < size:
                data = await file.read(position, SCAN_BYTES)
                holds_something = holds_something or any(data)
                copy = copy or self._disk.open(f"{name}.tmp", create=True)
                copy.write((data,))
                position += len(data)
            if copy is None or not holds_something:
                return ""
            await copy.sync()
            self._disk.rename(f"{name}.tmp", name)
            await self._disk.sync_dir(self._folder)
            return name
        except DiskFull:
            if must_keep:
                raise
            return ""
        finally:
            if copy is not None:
                copy.close()
            self._disk.unlink(f"{name}.tmp")

    def _free_name(self, path: str) -> str:
        """A file name that is not in use."""
        name, number = f"{path}{CUT_SUFFIX}", 1
        while self._disk.exists(name):
            number += 1
            name = f"{path}{CUT_SUFFIX}-{number}"
        return name

    async def _begin_again(self, is_young: bool, facts: LogFacts) -> None:
        """Continue after all remaining batches, which are dropped, keeping the facts known from them."""
        if not self._whole and not is_young and not self._is_emptied:
            text = "%(folder)s: there is no segment; the log goes on empty at offset %(offset)d"
            logger.warning(text, {"folder": self._folder, "offset": self._start})
        first = self._segment(self._start)
        first.create()
        first.facts = facts.encode()
        await self._write_indexes([first])
        await self._disk.sync_dir(self._folder)
        for segment in self._whole:
            segment.unlink()
        self._whole = [first]

    def _sweep(self) -> None:
        """Delete files that interrupted work left next to the segments."""
        kept = {segment.index_path for segment in self._whole}
        for name in self._disk.list_dir(self._folder):
            path = f"{self._folder}/{name}"
            if name.endswith(".tmp") or (name.endswith(".index") and path not in kept):
                self._disk.unlink(path)

    async def _make_durable(self) -> None:
        """Sync bytes that a killed process may have left only in the page cache, and record that in the checkpoint."""
        if self._end() == self._durable:
            return
        for segment in self._whole:
            if not segment.is_sealed:
                await segment.sync()
        await self._disk.sync_dir(self._folder)
        try:
            await self._checkpoint_file.write(Checkpoint(max(self._start, self._whole[0].base_offset), self._end()))
        except DiskFull as error:
            # There is no checkpoint yet; the log is not damaged, and the next sync with enough space creates it.
            about = {"folder": self._folder} | log_fields(error)
            logger.warning("%(folder)s: the checkpoint can't be made now: %(error)s", about)

    async def _find_facts(self) -> LogFacts:
        """Rebuild the facts from the last whole snapshot, usually in the last index, and the batches after it.

        Snapshots for missing index files are made on the way. Raises LogCorrupt, StorageError.
        """
        segments = self._whole
        if not segments:
            return LogFacts()
        unsealed = [place for place, each in enumerate(segments) if not each.is_sealed]
        first = max(min(unsealed, default=len(segments)) - 1, 0)
        while (found := await segments[first].facts_at_end(None if first else LogFacts())) is None:
            first -= 1
        for segment in segments[first:]:
            if segment is not segments[first]:
                found = await segment.facts_at_end(found) or found
            if not segment.is_sealed:
                segment.facts = found.encode()
        return found

    async def _seal_finished(self) -> None:
        """Write missing index files, so that no later opening scans these segments again."""
        await self._write_indexes([segment for segment in self._whole[:-1] if not segment.is_sealed])

    async def _write_indexes(self, segments: Sequence[Segment]) -> None:
        try:
            for segment in segments:
                await segment.write_index()
            if segments:
                await self._disk.sync_dir(self._folder)
        except SyncFailed:
            raise
        except StorageError as error:
            about = {"folder": self._folder} | log_fields(error)
            logger.warning("%(folder)s: an index file can't be written now: %(error)s", about)
