"""The participant for files keeps the port's promises, and those of its own."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from linn.errors import MessageInvalid, ParticipantConflict
from linn.participants import FileParticipant, Floor, Mark
from linn.testing.participants import PLACE, ParticipantConformance, ParticipantHarness

NO_FLOOR = Floor(0, 0)
NAME = f"{PLACE.topic_id.hex}-0-billing"


def write(handle: IO[bytes], text: str) -> None:
    handle.write(f"{text}\n".encode())


def lines(folder: Path) -> list[str]:
    """The lines of all finished files, in the order of their names."""
    return [line for path in sorted(folder.glob("*.txt")) for line in path.read_text().splitlines()]


def stored(folder: Path) -> int:
    """Files beside the finished ones, and marks in them."""
    states = [json.loads(path.read_bytes()) for path in folder.glob(".linn/*.state")]
    return len(list(folder.glob(".linn/*"))) + sum(len(state["marks"]) for state in states)


class TestFiles(ParticipantConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ParticipantHarness:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # Nothing here loses power.
        made: list[FileParticipant] = []

        def make() -> FileParticipant:
            made.append(FileParticipant(tmp_path, suffix=".txt"))
            return made[-1]

        def abandon(handle: IO[bytes]) -> None:
            handle.close()
            for participant in made:
                if participant._file is handle:
                    participant._release()  # The lock, as the end of a process does.

        return ParticipantHarness(
            make=make,
            write=write,
            effects=lambda: lines(tmp_path),
            abandon=abandon,
            stored=lambda: stored(tmp_path),
            waits=True,
        )


# --- of its own ------------------------------------------------------------------------------------------------------


class Disk:
    """An `os.fsync` that remembers what was made durable, and fails at one of its calls."""

    def __init__(self, fails: int = 0) -> None:
        self.fails, self.calls = fails, 0
        self.durable: list[Path] = []
        self.fsync = os.fsync

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        if self.calls == self.fails:
            raise OSError(errno.EIO, "the disk failed")
        self.fsync(descriptor)
        self.durable.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))


@pytest.fixture
def participant(tmp_path: Path) -> Iterator[FileParticipant]:
    with closing(FileParticipant(tmp_path / "made" / "here", suffix=".txt")) as participant:
        participant.open()
        yield participant


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made" / "here"


def apply(participant: FileParticipant, text: str, mark: Mark, floor: Floor = NO_FLOOR) -> None:
    write(participant.begin(PLACE), text)
    participant.commit([mark], floor)


def test_files_have_the_name_of_their_place_and_come_in_order(participant: FileParticipant, folder: Path) -> None:
    for number in range(11):
        apply(participant, str(number), Mark(1, number, number + 1))
    names = sorted(path.name for path in folder.glob("*.txt"))
    assert names == [f"{NAME}.{number + 1:012}.txt" for number in range(11)]
    assert lines(folder) == [str(number) for number in range(11)]


def test_unfinished_files_are_hidden_and_do_not_remain(participant: FileParticipant, folder: Path) -> None:
    write(participant.begin(PLACE), "undone")
    participant.prepare()
    assert [path.name for path in folder.iterdir()] == [".linn"]
    participant.rollback()
    assert [path.name for path in folder.glob(".linn/*")] == [f"{NAME}.lock"]


def test_a_transaction_without_effects_makes_no_file(participant: FileParticipant, folder: Path) -> None:
    participant.begin(PLACE)
    participant.commit([Mark(1, 0, 5)], NO_FLOOR)
    assert list(folder.glob("*.txt")) == []
    participant.begin(PLACE)
    assert list(participant.applied(Mark(1, 0, 9))) == [(0, 5)]


def test_an_application_may_close_its_file(participant: FileParticipant, folder: Path) -> None:
    with participant.begin(PLACE) as file:
        write(file, "once")
    participant.prepare()
    participant.commit([Mark(1, 0, 5)], NO_FLOOR)
    assert lines(folder) == ["once"]


def test_finished_files_may_be_moved_away(participant: FileParticipant, folder: Path) -> None:
    apply(participant, "first", Mark(1, 0, 5))
    for path in folder.glob("*.txt"):
        path.unlink()
    with closing(FileParticipant(folder, suffix=".txt")) as again:
        again.open()
        with pytest.raises(ParticipantConflict):
            apply(again, "twice", Mark(1, 4, 5))
    apply(participant, "second", Mark(1, 5, 6))
    assert [path.name for path in folder.glob("*.txt")] == [f"{NAME}.{2:012}.txt"]


def test_finished_files_are_never_overwritten(participant: FileParticipant, folder: Path) -> None:
    apply(participant, "first", Mark(1, 0, 5))
    apply(participant, "second", Mark(1, 5, 6))
    for path in folder.glob(".linn/*.state"):
        path.unlink()
    apply(participant, "third", Mark(1, 0, 5))
    assert lines(folder) == ["first", "second", "third"]
    (folder / f"{NAME}.{4:012}.txt").write_text("somebody's\n")
    with pytest.raises(FileExistsError, match="would be overwritten"):
        apply(participant, "fourth", Mark(1, 5, 6))
    participant.rollback()
    assert lines(folder) == ["first", "second", "third", "somebody's"]


def test_the_state_that_a_crash_left_beside_an_unfinished_file_does_not_count(
    participant: FileParticipant, folder: Path
) -> None:
    apply(participant, "first", Mark(1, 0, 5))
    (state,) = folder.glob(".linn/*.state")
    for content in (state.read_bytes().replace(b"[[1, 0, 5]]", b"[[1, 0, 9]]"), b"", b'{"place": ['):
        (folder / ".linn" / f"{NAME}.{2:012}.state").write_bytes(content)
        (folder / ".linn" / f"{NAME}.{2:012}.writing").write_bytes(b"undone\n")
        assert participant.floor(PLACE) == NO_FLOOR
        participant.begin(PLACE)
        assert list(participant.applied(Mark(1, 0, 20))) == [(0, 5)]
        participant.rollback()
        assert stored(folder) == 3, "lock, state and mark"
    apply(participant, "second", Mark(1, 5, 9))
    assert lines(folder) == ["first", "second"]


def test_a_state_without_its_unfinished_file_counts(participant: FileParticipant, folder: Path) -> None:
    apply(participant, "first", Mark(1, 0, 5))
    (state,) = folder.glob(".linn/*.state")
    following = folder / ".linn" / f"{NAME}.{2:012}.state"
    following.write_bytes(state.read_bytes().replace(b"[[1, 0, 5]]", b"[[1, 0, 9]]"))
    participant.begin(PLACE)
    assert list(participant.applied(Mark(1, 0, 20))) == [(0, 9)]
    participant.commit([Mark(1, 9, 12)], NO_FLOOR)
    participant.begin(PLACE)
    assert list(participant.applied(Mark(1, 0, 20))) == [(0, 12)]


def test_a_state_that_is_torn_does_not_count_without_its_file_either(
    participant: FileParticipant, folder: Path
) -> None:
    apply(participant, "first", Mark(1, 0, 5))
    (folder / ".linn" / f"{NAME}.{2:012}.state").write_bytes(b"")
    apply(participant, "second", Mark(1, 5, 9))
    participant.begin(PLACE)
    assert list(participant.applied(Mark(1, 0, 20))) == [(0, 9)]


def test_a_commit_that_can_not_be_written_stores_nothing(participant: FileParticipant, folder: Path) -> None:
    apply(participant, "first", Mark(1, 0, 5))
    handle = participant.begin(PLACE)
    write(handle, "undone")
    os.unlink(handle.name)
    with pytest.raises(FileNotFoundError):
        participant.commit([Mark(1, 5, 9)], Floor(1, 4))
    participant.rollback()
    assert participant.floor(PLACE) == NO_FLOOR
    apply(participant, "second", Mark(1, 5, 9))
    assert lines(folder) == ["first", "second"]


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("number", range(1, 6))
def test_a_disk_that_fails_at_any_point_of_a_commit_leaves_all_or_nothing(
    participant: FileParticipant, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, writes: bool
) -> None:
    apply(participant, "first", Mark(1, 0, 5))
    handle = participant.begin(PLACE)
    if writes:
        write(handle, "second")
    disk = Disk(fails=number)
    monkeypatch.setattr(os, "fsync", disk)
    with pytest.raises(OSError, match="the disk failed"):
        participant.commit([Mark(1, 5, 9)], Floor(1, 4))
    participant.rollback()
    disk.durable.clear()
    floor, texts = participant.floor(PLACE), lines(folder)
    handle = participant.begin(PLACE)
    parts = list(participant.applied(Mark(1, 0, 20)))
    if number <= 3:
        assert (floor, texts, parts) == (NO_FLOOR, ["first"], [(0, 5)])
    else:
        assert (floor, texts, parts) == (Floor(1, 4), ["first", "second"] if writes else ["first"], [(0, 9)])
        assert disk.durable == [folder, folder / ".linn"]
    write(handle, "third")
    participant.commit([Mark(1, 9, 12)], NO_FLOOR)
    assert lines(folder) == [*texts, "third"]


def test_a_commit_that_is_interrupted_right_after_its_rename_took_place(
    participant: FileParticipant, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def rename_and_fail(source: str, target: str) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    write(participant.begin(PLACE), "once")
    monkeypatch.setattr(os, "rename", rename_and_fail)
    with pytest.raises(KeyboardInterrupt):
        participant.commit([Mark(1, 0, 5)], NO_FLOOR)
    participant.rollback()
    participant.begin(PLACE)
    assert list(participant.applied(Mark(1, 0, 9))) == [(0, 5)]
    assert lines(folder) == ["once"]


def test_a_commit_is_durable_before_it_returns_and_a_begin_need_not_ask(
    participant: FileParticipant, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(participant, "first", Mark(1, 0, 5))
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk)
    write(participant.begin(PLACE), "second")
    assert disk.durable == []
    participant.commit([Mark(1, 5, 9)], NO_FLOOR)
    hidden, name = folder / ".linn", f"{NAME}.{2:012}"
    assert disk.durable == [hidden / f"{name}.writing", hidden, hidden / f"{name}.state", folder, hidden]
    with closing(FileParticipant(folder)) as other:
        other.begin(PLACE)
        assert disk.durable[5:] == [folder, hidden]


@pytest.mark.parametrize("suffix", ["/x", "a/b", "\0"])
def test_a_suffix_that_is_a_path_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(MessageInvalid, match="suffix"):
        FileParticipant(tmp_path, suffix=suffix)


PROGRAM = """
import sys
from linn.participants import FileParticipant, Floor, Mark
from linn.testing.participants import PLACE
participant = FileParticipant(sys.argv[1], suffix=".txt")
participant.open()
with participant.begin(PLACE) as file:
    file.write(b"another process\\n")
print("begun", flush=True)
input()
participant.commit([Mark(1, 0, 5)], Floor(0, 0))
"""


def test_another_process_is_waited_for(participant: FileParticipant, folder: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.stdin.write("\n")
        process.stdin.flush()
        participant.begin(PLACE)
        assert list(participant.applied(Mark(1, 0, 9))) == [(0, 5)]
    assert lines(folder) == ["another process"]
