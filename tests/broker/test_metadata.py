"""The store of what was made live, alone: what it keeps, what it refuses to believe, and what it waits for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from crc32c import crc32c
from raw_client import no_tasks, simulated

from linn.core.env.real.disk import RealDisk
from linn.core.env.real.env import RealEnv
from linn.core.errors.codes import error_from_code
from linn.core.errors.metadata import RevisionConflict
from linn.core.errors.tree import DescriptorsExhausted, LinnError, LogCorrupt, StorageError
from linn.core.metadata.embedded import REVISIONS_AHEAD, EmbeddedMetadata
from linn.core.metadata.store import ABSENT, REMOVED
from linn.testing.sim_env import SimEnv

KEPT = {"topics/a": {"retention": "14d"}, "exchanges/é": [1, None, "two\nlines"]}


async def store_in(folder: Path, proofs: tuple[str, ...] = ()) -> tuple[EmbeddedMetadata, dict[str, tuple[int, Any]]]:
    """A store of this folder, and what it found there."""
    store = EmbeddedMetadata(RealDisk(), str(folder), RealEnv().clock, no_tasks, lambda: proofs)
    return store, dict((await store.load()).entries)


async def filled(folder: Path) -> Path:
    """The file of a store that keeps something."""
    store, _ = await store_in(folder)
    await store.put_all(KEPT, dict.fromkeys(KEPT, ABSENT))
    return folder / "metadata.json"


async def refused(folder: Path) -> str:
    """Why a folder's metadata are refused; nothing of it may change."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(StorageError, match="Nothing was changed") as refusal:
        await store_in(folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    return refusal.value.text


async def test_stored_entries_are_found_with_their_revisions(tmp_path: Path) -> None:
    store, found = await store_in(tmp_path)
    assert found == {}
    first = await store.put_all(KEPT, dict.fromkeys(KEPT, ABSENT))
    second = await store.put_all({"topics/a": "new"}, {"topics/a": first})
    again, found = await store_in(tmp_path)
    assert found == {"topics/a": (second, "new"), "exchanges/é": (first, KEPT["exchanges/é"])}
    with pytest.raises(RevisionConflict):
        await again.put_all({"topics/a": "newer"}, {"topics/a": first})
    await again.put_all({"topics/a": REMOVED}, {"topics/a": second})
    assert list((await store_in(tmp_path))[1]) == ["exchanges/é"]


async def test_after_a_restart_no_revision_is_used_again_though_leased_keys_are_not_stored(tmp_path: Path) -> None:
    seen = 0
    for _ in range(3):
        async with trio.open_nursery() as nursery:
            store = EmbeddedMetadata(RealDisk(), str(tmp_path), RealEnv().clock, nursery.start_soon)
            found = await store.load()
            assert found.revision > seen
            assert found.entries == {}, "leased keys end with their store"
            leases = [await store.grant_lease(60.0) for _ in range(3)]
            for number in range(REVISIONS_AHEAD + 100):
                seen = await store.put_all({f"session-{number % 3}": number}, {}, leases[number % 3])
            for lease in leases:
                await store.revoke_lease(lease)
            seen = (await store.load()).revision
            nursery.cancel_scope.cancel()


async def test_a_write_of_a_leased_key_rarely_writes_the_file(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        store = EmbeddedMetadata(RealDisk(), str(tmp_path), RealEnv().clock, nursery.start_soon)
        await store.load()
        lease, file = await store.grant_lease(60.0), tmp_path / "metadata.json"
        written = set()
        for number in range(REVISIONS_AHEAD + 100):
            await store.put_all({"session": number}, {}, lease)
            written.add(file.read_bytes())
        assert len(written) == 2
        nursery.cancel_scope.cancel()


async def test_the_first_line_has_the_sum_of_the_others_and_the_whole_is_json(tmp_path: Path) -> None:
    content = (await filled(tmp_path)).read_bytes()
    first, _, rest = content.partition(b"\n")
    assert first == b'{"format": 4, "crc32c": "%08x",' % crc32c(rest)
    assert {key: value for key, (_, value) in json.loads(content)["entries"].items()} == KEPT


async def test_no_changed_byte_is_believed(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    content = file.read_bytes()
    for place, byte in enumerate(content):
        for flipped in (0x01, 0x05, 0x20):  # 5 makes format 1 of format 4, 32 another case of a letter.
            file.write_bytes(content[:place] + bytes([byte ^ flipped]) + content[place + 1 :])
            await refused(tmp_path)


async def test_nothing_that_is_cut_or_longer_is_believed(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    content = file.read_bytes()
    for end in range(len(content)):
        file.write_bytes(content[:end])
        await refused(tmp_path)
    file.write_bytes(content + b"\n")
    await refused(tmp_path)


async def test_a_file_written_by_hand_is_read_and_has_a_sum_after_the_next_change(tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    by_hand = b'{"format": 4, "revision": 7, "entries": {\n"topics/a": [3, {"x": 1}],\n"topics/b": [7, 2]\n}}\n'
    file.write_bytes(by_hand)
    store, found = await store_in(tmp_path)
    assert found == {"topics/a": (3, {"x": 1}), "topics/b": (7, 2)}
    assert file.read_bytes() == by_hand
    assert await store.put_all({"topics/b": 3}, {"topics/b": 7}) == 8
    assert file.read_bytes().startswith(b'{"format": 4, "crc32c": ')
    assert (await store_in(tmp_path))[1] == {"topics/a": (3, {"x": 1}), "topics/b": (8, 3)}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "Expecting value"),
        ("[]", "no JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "its format is None"),
        ('{"format": 5, "revision": 1, "entries": {}}', "its format is 5"),
        ('{"format": [], "revision": 1, "entries": {}}', "its format is"),
        ('{"format": 4, "revision": 1}', "its keys are not"),
        ('{"format": 4, "sum": "00000000", "revision": 1, "entries": {}}', "its keys are not"),
        ('{"format": 4, "revision": true, "entries": {}}', "no number"),
        ('{"format": 4, "revision": -1, "entries": {}}', "no number"),
        ('{"format": 4, "revision": 1, "entries": []}', "no JSON object"),
        ('{"format": 4, "revision": 1, "entries": {"topics/a": {}}}', "the entry topics/a"),
        ('{"format": 4, "revision": 1, "entries": {"topics/a": [1]}}', "the entry topics/a"),
        ('{"format": 4, "revision": 1, "entries": {"topics/a": ["1", {}]}}', "the entry topics/a"),
        ('{"format": 4, "crc32c": "00000000", "revision": 1, "entries": {}}', "CRC-32C"),
    ],
)
async def test_a_file_that_no_store_has_written_is_refused_by_name(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "metadata.json").write_text(content)
    text = await refused(tmp_path)
    assert why in text
    assert "metadata.json can't be read" in text


async def test_a_file_that_is_lost_is_missed_and_a_first_start_misses_none(tmp_path: Path) -> None:
    with pytest.raises(LogCorrupt, match="is lost: it was there before here/t was made"):
        await store_in(tmp_path, ("here/t",))
    assert list(tmp_path.iterdir()) == []
    await store_in(tmp_path)
    (tmp_path / "metadata.reserve").unlink()
    await store_in(tmp_path, ("here/t",))  # There is a file before anything is put.
    file = await filled(tmp_path)
    file.unlink()
    assert "metadata.json is lost: it was there before" in await refused(tmp_path)
    assert str(tmp_path / "metadata.reserve") in await refused(tmp_path)


def short_of_descriptors(env: SimEnv, monkeypatch: pytest.MonkeyPatch, folder: str) -> list[str]:
    """Make syncs of a folder fail for lack of descriptors, once for each item of the returned list."""
    missing: list[str] = []
    sync_dir = env.disk.sync_dir

    async def sync(path: str) -> None:
        if path == folder and missing:
            missing.pop()
            raise DescriptorsExhausted(f"can't open the folder {path}: Too many open files")
        await sync_dir(path)

    monkeypatch.setattr(env.disk, "sync_dir", sync)
    return missing


@simulated
async def test_a_change_waits_for_the_descriptor_that_makes_it_durable(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EmbeddedMetadata(env.disk, "data", env.clock, no_tasks)
    env.disk.make_dir("data")
    await store.load()
    missing = short_of_descriptors(env, monkeypatch, "data")
    missing += ["once", "twice"]
    before = trio.current_time()
    revision = await store.put_all({"topics/a": 1}, {"topics/a": ABSENT})
    assert trio.current_time() > before + 0.9
    assert not missing
    revision = await store.put_all({"topics/a": 2}, {"topics/a": revision})
    env.crash()
    env = env.restart()
    again = EmbeddedMetadata(env.disk, "data", env.clock, no_tasks)
    assert await again.load() == (revision, {"topics/a": (revision, 2)})


def test_a_client_knows_a_conflict_by_its_code() -> None:
    error: LinnError = error_from_code("metadata.conflict", "elsewhere")
    assert isinstance(error, RevisionConflict)
    assert error.retriable
