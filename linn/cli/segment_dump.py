"""Reader of segment files that continues behind damage, and its output for `linn dump`.

Laws: it only reads, and takes no lock. The size of a batch is trusted where the batch is whole, or where another batch
begins behind it; elsewhere the next batch is searched for, as the log does when it is opened.

Separate from the command, which has to load without record batches and the segmented log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import typer

from linn.cli.moment import moment_text
from linn.cli.render.message_format import json_escaped, readable
from linn.core.batch.batch import Codec, Format, RecordBatch, sealed_crc
from linn.core.batch.record import Record
from linn.core.errors.texts import counted, one_line
from linn.core.errors.tree import BatchCorrupt, BatchError, BatchMalformed, StorageError
from linn.storage_engines.segmented_log.segment import SCAN_BYTES
from linn.storage_engines.segmented_log.stored_batch import HEAD_BYTES, batch_bytes, head_at, stamps_in

_OVERLAP_BYTES = -(-HEAD_BYTES // 8) * 8
_NAME_DIGITS = 20
_VALUE_CHARACTERS_MAX = 60
_ROW = "{:>12}  {:>12}  {:>7}  {:>10}  {:<19}  {:<6}  {}"


@dataclass(frozen=True, slots=True)
class Part:
    """Batch, or damaged bytes, up to the start of the next batch."""

    byte: int
    size: int
    batch: RecordBatch | None
    """Batch; None where no valid head was found. Its fields can be trusted as far as the CRCs match."""
    stamp_ok: bool = False
    body_ok: bool = False
    damage: str | None = None


class SegmentFile:
    """Segment file, open for reading."""

    def __init__(self, path: Path, file: BinaryIO, next_offset: int | None) -> None:
        """`next_offset`: offset of the first batch, if known."""
        self._file = file
        self.next_offset = _offset_in_name(path) if next_offset is None else next_offset
        """End offset of the batches read so far; None where it is not known, as behind damage."""
        self._floor = self.next_offset or 0
        """Lower bound of the offsets that follow. What looks like a batch below it lies within a message."""

    def parts(self) -> Iterator[Part]:
        """Yield the contents of the file in order. Raises OSError."""
        position, end = 0, self._size()
        while position < end:
            part = self._part_at(position)
            yield part
            position += part.size

    def _part_at(self, position: int) -> Part:
        try:
            batch = RecordBatch(self._message_at(position))
        except BatchMalformed as error:
            self.next_offset = None
            return Part(position, self._next_batch(position) - position, None, damage=error.text)
        stamp_ok, body_ok = _has_right_stamp(batch.message), sealed_crc(batch.message) == batch.crc
        if stamp_ok and body_ok:
            return self._whole(position, batch)
        self.next_offset = None
        behind = position + batch.size
        if not body_ok and not (stamp_ok and self._can_follow(behind)):
            behind = self._next_batch(position)
        wrong = " and ".join(name for name, ok in (("its stamp", stamp_ok), ("its body", body_ok)) if not ok)
        return Part(position, behind - position, batch, stamp_ok, body_ok, f"the CRC of {wrong} does not match")

    def _message_at(self, position: int) -> memoryview:
        """Read the batch at a position. Raises BatchMalformed."""
        head, left = self._read(position, HEAD_BYTES), self._size() - position
        size = batch_bytes(memoryview(head), 0) if len(head) == HEAD_BYTES else HEAD_BYTES
        if size > left:
            raise BatchMalformed(f"the batch is cut short: {counted(left, 'byte')} are left")
        return memoryview(self._read(position, size))

    def _whole(self, position: int, batch: RecordBatch) -> Part:
        expected, base = self.next_offset, batch.base_offset
        self.next_offset = self._floor = batch.end_offset
        damage = None if expected in (None, base) else f"its offset is {base}, and {expected} was to come"
        return Part(position, batch.size, batch, stamp_ok=True, body_ok=True, damage=damage)

    def _can_follow(self, position: int) -> bool:
        """Tell whether the file ends at a position, or another batch begins there."""
        head = self._read(position, HEAD_BYTES)
        return not head or (len(head) == HEAD_BYTES and _has_right_stamp(memoryview(head)))

    def _next_batch(self, damaged: int) -> int:
        """Find the next stamp with a matching CRC behind the damage, or the end of the file."""
        position = damaged + 8
        while data := self._read(position, SCAN_BYTES):
            for at, head in stamps_in(data):
                if head.base_offset >= self._floor:
                    return position + at
            position += SCAN_BYTES - _OVERLAP_BYTES
        return max(self._size(), damaged + 1)  # A broker may have cut the file meanwhile.

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _read(self, position: int, size: int) -> bytearray:
        return bytearray(os.pread(self._file.fileno(), size, position))


def _has_right_stamp(view: memoryview) -> bool:
    try:
        head_at(view, 0)
    except (BatchMalformed, BatchCorrupt):
        return False
    return True


def _offset_in_name(path: Path) -> int | None:
    """Parse the offset in the name of a segment."""
    stem = path.stem
    is_named = path.suffix == ".log" and len(stem) == _NAME_DIGITS and stem.isascii() and stem.isdigit()
    return int(stem) if is_named else None


def dump_segments(paths: Sequence[Path], *, with_records: bool, as_json: bool) -> bool:
    """Print files and folders; return whether nothing is damaged. Raises BadParameter, StorageError."""
    chains = [_segments_at(path) for path in paths]
    dump = SegmentDump(with_records=with_records, as_json=as_json)
    for chain in chains:
        next_offset = None
        for path in chain:
            next_offset = dump.print_file(path, next_offset)
    return not dump.damages


def _segments_at(path: Path) -> list[Path]:
    """Return the file, or the segments of the folder in order. Raises BadParameter."""
    if not path.is_dir():
        return [path]
    found = sorted(inner for inner in path.iterdir() if _offset_in_name(inner) is not None)
    if not found:
        raise typer.BadParameter(
            f"{one_line(str(path))} holds no segment: name a file or a partition's folder, such as STORAGE/TOPIC/0 in "
            "the data folder",
            param_hint="PATH...",
        )
    return found


class SegmentDump:
    """Output of `linn dump`."""

    def __init__(self, *, with_records: bool, as_json: bool) -> None:
        self.damages = 0
        """Number of damaged parts."""
        self._with_records = with_records
        self._as_json = as_json

    def print_file(self, path: Path, next_offset: int | None) -> int | None:
        """Print a file. Takes the end offset of the previous file, and returns its own. Raises StorageError."""
        try:
            with path.open("rb") as file:
                segment = SegmentFile(path, file, next_offset)
                self._print(path, segment.parts())
                return segment.next_offset
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError(f"can't read {path}: {error.strerror}") from error

    def _print(self, path: Path, parts: Iterator[Part]) -> None:
        before, batches, records, size = self.damages, 0, 0, 0
        if not self._as_json:
            print(f"{one_line(str(path))}:")
            print(_ROW.format("byte", "offset", "records", "bytes", "first time", "body", "CRCs"))
        for part in parts:
            contents, damage = self._records_of(part)
            self.damages += damage is not None
            size += part.size
            if part.batch is not None and part.body_ok:
                batches, records = batches + 1, records + part.batch.count
            if self._as_json:
                document = json.dumps(self._document(path, part, contents, damage), ensure_ascii=False)
                print(json_escaped(document))
            else:
                _print_part(part, contents, damage)
        if not self._as_json:
            damages = self.damages - before
            damaged = f"{counted(damages, 'damaged place')}" if damages else "no damage"
            whole = f"{counted(records, 'record')} in {counted(batches, 'batch')}"
            print(f"{whole}, {counted(size, 'byte')}, {damaged}")

    def _records_of(self, part: Part) -> tuple[list[Record], str | None]:
        """Return the records to print, and the damage, which may be found only by decoding them."""
        batch = part.batch
        if not self._with_records or batch is None or not part.body_ok or batch.format != Format.NATIVE:
            return [], part.damage
        try:
            return batch.records(), part.damage
        except BatchError as error:
            return [], part.damage or f"its records can't be read: {error.text}"

    def _document(self, path: Path, part: Part, contents: list[Record], damage: str | None) -> dict[str, Any]:
        batch = part.batch
        document: dict[str, Any] = {
            "file": str(path),
            "byte": part.byte,
            "bytes": part.size,
            "offset": batch and batch.base_offset,
            "count": batch and batch.count,
            "end_offset": batch and batch.end_offset,
            "first_timestamp_ms": batch and batch.first_timestamp_ms,
            "append_time_ms": batch and batch.append_time_ms,
            "codec": batch and batch.codec,
            "format": batch and batch.format,
            "stamp_ok": part.stamp_ok,
            "body_ok": part.body_ok,
            "damage": damage,
        }
        if self._with_records:
            document["records"] = [
                {
                    "offset": offset,
                    "key": readable(record.key),
                    "routing_key": record.routing_key,
                    "value": readable(record.value),
                }
                for offset, record in _with_offsets(batch, contents)
            ]
        return document


def _with_offsets(batch: RecordBatch | None, contents: list[Record]) -> Iterator[tuple[int, Record]]:
    return ((batch.offset(index), record) for index, record in enumerate(contents) if batch is not None)


def _print_part(part: Part, contents: list[Record], damage: str | None) -> None:
    batch = part.batch
    if batch is None:
        print(_ROW.format(part.byte, "?", "?", part.size, "?", "?", "?"))
    else:
        checked = "ok" if part.stamp_ok and part.body_ok else _wrong(part)
        time, body = moment_text(batch.first_timestamp_ms), _body_name(batch)
        print(_ROW.format(part.byte, batch.base_offset, batch.count, part.size, time, body, checked))
    if damage is not None:
        print(f"    damaged at byte {part.byte}: {one_line(damage)}; going on at byte {part.byte + part.size}")
    for offset, record in _with_offsets(batch, contents):
        key = "" if record.key is None else f"  key {_shortened(record.key)}"
        routing_key = f"  routing key {_shortened(record.routing_key.encode())}" if record.routing_key else ""
        print(f"    {offset}{key}{routing_key}  {_shortened(record.value)}")


def _wrong(part: Part) -> str:
    wrong = [name for name, ok in (("stamp", part.stamp_ok), ("body", part.body_ok)) if not ok]
    return f"wrong: {', '.join(wrong)}"


def _body_name(batch: RecordBatch) -> str:
    if batch.format != Format.NATIVE:
        return f"format {batch.format}"
    return {Codec.NONE: "plain", Codec.ZSTD: "zstd"}.get(batch.codec, f"codec {batch.codec}")


def _shortened(data: bytes | None) -> str:
    """Format a value for a line: text in quotes, or hexadecimal; with its size if it is truncated."""
    if data is None:
        return "none"
    text = data.decode(errors="replace")
    is_text = "\ufffd" not in text and all(part.isprintable() or part in "\n\r\t" for part in text)
    whole = text if is_text else data.hex()
    beginning = whole[:_VALUE_CHARACTERS_MAX]
    shown = f'"{one_line(beginning)}"' if is_text else f"0x{beginning}"
    return shown if len(whole) <= _VALUE_CHARACTERS_MAX else f"{shown}... ({counted(len(data), 'byte')})"
