"""FileParticipant: effects in files, one for each transaction, that appear whole or not at all.

A place has a lock, and a state: number, floor and marks. A transaction writes `PLACE.NUMBER.writing`, and commits in
one step that makes this name disappear: it is renamed to the name of a finished file, or removed if nothing was
written. Law: the state of a number counts once it is whole and `NUMBER.writing` is gone. So the state is written before
that step, which makes it count; later changes of finished files do not matter.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import IO, NamedTuple

from linn.client.participants.participant import NO_FLOOR, Floor, Mark, Place
from linn.client.participants.spans import Span, applied_parts, planned_change, raised_floor
from linn.core.errors.tree import MessageInvalid

_HIDDEN = ".linn"
"""Folder of locks, states and unfinished files. It is within the folder of finished files, so that renames stay in one
file system.
"""
_PLAIN_READER = re.compile(r"[a-z0-9_-]{0,40}")
"""Readers whose names can be part of a file name unchanged, even on file systems that ignore case."""


class _State(NamedTuple):
    """State of a place after its transaction with a number."""

    number: int
    floor: Floor
    marks: list[Mark]


class FileParticipant:
    """Effects in files of a folder. The handle is a binary file that is open for writing.

    A finished file is named for its place and a number, `PLACE.NUMBER` and `suffix`, and is never touched again.

    Example:
        participant = FileParticipant("invoices", suffix=".jsonl")
    """

    def __init__(self, folder: str | os.PathLike[str], *, suffix: str = "") -> None:
        if "/" in suffix or "\0" in suffix:
            raise MessageInvalid(f"suffix {suffix!r} can't be the end of a file's name")
        self._folder = os.path.abspath(os.fspath(folder))
        self._hidden = os.path.join(self._folder, _HIDDEN)
        self._suffix = suffix
        self._lock: int | None = None
        self._place: Place
        self._state: _State
        self._durable: dict[Place, int] = {}
        """Number of the last commit that is known to be durable, by place."""
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        """Make the folder if it is missing. Raises OSError."""
        os.makedirs(self._hidden, exist_ok=True)
        _sync(self._folder)

    def floor(self, place: Place) -> Floor:
        """Return the floor of a place; `NO_FLOOR` if nothing was ever committed. Raises OSError."""
        while True:
            with contextlib.suppress(FileNotFoundError):  # Another process has replaced the state meanwhile.
                return self._current(place).floor

    def begin(self, place: Place) -> IO[bytes]:
        """Wait for the lock of the place, remove the remains of a crash, and open a file. Raises OSError."""
        assert self._lock is None, "a transaction is open"
        self._place = place
        self._lock = os.open(self._path("lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._state = self._current(place)
        if self._state.number == 0:
            self._state = self._state._replace(number=self._last_finished())
        self._remove_unfinished()
        if self._durable.get(place) != self._state.number:
            # The last committer may have died, or failed, before its names were durable.
            self._sync_names()
        self._file = open(self._numbered("writing"), "xb")  # noqa: SIM115
        return self._file

    def applied(self, mark: Mark) -> Sequence[Span]:
        """Return the parts of a mark that had their effect already, without I/O."""
        stored = [(row.first, row.end) for row in self._state.marks if row.epoch == mark.epoch]
        return applied_parts(mark, self._state.floor, stored)

    def prepare(self) -> None:
        """Flush the application's output. Raises OSError, for instance if the disk is full."""
        assert self._file is not None, "no transaction was begun"
        if not self._file.closed:
            self._file.flush()
        _sync(self._numbered("writing"))

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        """Make the file and its marks durable. Raises ParticipantConflict, OSError."""
        number, now, stored = self._state
        floor = raised_floor(now, floor)
        removed, added = planned_change(self._place, marks, now, floor, stored)
        finished = os.path.join(self._folder, f"{_name_of(self._place)}.{number + 1:012}{self._suffix}")
        if os.path.exists(finished):
            raise FileExistsError(errno.EEXIST, "a finished file would be overwritten", finished)
        self.prepare()
        assert self._file is not None
        self._file.close()
        state = _State(number + 1, floor, [*(mark for mark in stored if mark not in removed), *added])
        self._write_state(state)
        writing = self._numbered("writing")
        if os.path.getsize(writing):
            os.rename(writing, finished)
        else:
            os.unlink(writing)
        self._state = state
        self._sync_names()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(f"{number:012}.state"))
        self._release()

    def _sync_names(self) -> None:
        """Make the names of finished files durable, and with them the present state."""
        _sync(self._folder)
        _sync(self._hidden)
        self._durable[self._place] = self._state.number

    def _write_state(self, state: _State) -> None:
        """Write the next state, which does not count yet."""
        content = {"place": [str(self._place[0]), *self._place[1:]], "floor": state.floor, "marks": state.marks}
        with open(self._numbered("state"), "xb") as file:
            # Both names are durable before the state is whole: it must not be found without the file being written.
            _sync(self._hidden)
            file.write(json.dumps(content).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def rollback(self) -> None:
        """Undo the transaction, if one is open. Raises OSError."""
        file, self._file = self._file, None
        try:
            if file is not None:
                with contextlib.suppress(OSError):  # Unflushed output is not needed.
                    file.close()
                if os.path.exists(self._numbered("writing")):  # Otherwise the commit took place.
                    self._remove_unfinished()
        finally:
            self._release()

    def close(self) -> None:
        """Roll back the open transaction."""
        self.rollback()

    def _release(self) -> None:
        """Release the lock of the place."""
        self._file = None
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _remove_unfinished(self) -> None:
        """Remove the remains of the next transaction: the state first, as it would count without the file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._numbered("state"))
            _sync(self._hidden)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._numbered("writing"))

    # --- names -------------------------------------------------------------------------------------------------------

    def _path(self, end: str) -> str:
        return os.path.join(self._hidden, f"{_name_of(self._place)}.{end}")

    def _numbered(self, end: str) -> str:
        """Return a name of the next transaction."""
        return self._path(f"{self._state.number + 1:012}.{end}")

    def _last_finished(self) -> int:
        """Return the highest number of a finished file, if the states are gone."""
        begin = f"{_name_of(self._place)}."
        names = [name[len(begin) :] for name in os.listdir(self._folder) if name.startswith(begin)]
        return max([int(found[0]) for name in names if (found := re.match(r"\d+", name))], default=0)

    def _current(self, place: Place) -> _State:
        """Return the last state of a place that counts. Raises FileNotFoundError if it is removed meanwhile."""
        begin, end = f"{_name_of(place)}.", ".state"
        names = sorted(name for name in os.listdir(self._hidden) if name.startswith(begin) and name.endswith(end))
        for name in reversed(names):
            path = os.path.join(self._hidden, name)
            with open(path, "rb") as file:
                content = file.read()
            if content.endswith(b"\n") and not os.path.exists(f"{path.removesuffix(end)}.writing"):
                found = json.loads(content)
                number = int(name[len(begin) : -len(end)])
                return _State(number, Floor(*found["floor"]), [Mark(*mark) for mark in found["marks"]])
        return _State(0, NO_FLOOR, [])


def _name_of(place: Place) -> str:
    """Return a unique name for a place."""
    reader = place.reader
    if _PLAIN_READER.fullmatch(reader) is None:
        reader = f"~{hashlib.sha256(reader.encode()).hexdigest()[:32]}"
    return f"{place.topic_id.hex}-{place.partition}-{reader}"


def _sync(path: str) -> None:
    """Make a file's content, or a folder's names, durable."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
