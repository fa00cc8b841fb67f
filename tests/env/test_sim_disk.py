"""Losses of SimDisk. Each fault must really occur for some seed, and no promise may break for any."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from simulated_time import simulated
from trio.testing import wait_all_tasks_blocked

from linn.core.errors.tree import DiskFull, DiskReadOnly, StorageError, SyncFailed
from linn.testing.deterministic import run_simulation
from linn.testing.sim_device import SimulatedCrash
from linn.testing.sim_disk import SimDisk
from linn.testing.sim_env import SimEnv

SEEDS = range(60)
SYNCED = b"synced" * 100
UNSYNCED = bytes(range(1, 251)) * 8


def crashed_content(seed: int, change: Callable[[SimDisk], Awaitable[None]], path: str = "/log") -> bytes | None:
    """Content of `path` after `change` and a power loss; None if there is no such file."""

    async def scenario(env: SimEnv) -> bytes | None:
        await change(env.disk)
        env.crash()
        disk = env.restart().disk
        return bytes(await disk.open(path).read(0, 1 << 20)) if disk.exists(path) else None

    return run_simulation(seed, scenario)


async def durable_log(disk: SimDisk) -> None:
    file = disk.open("/log", create=True)
    file.write([SYNCED])
    await file.sync()
    await disk.sync_dir("/")
    file.close()


def test_synced_files_survive_and_unsynced_ones_meet_all_outcomes() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        disk.open("/log").write([UNSYNCED])

    tails = []
    for seed in SEEDS:
        content = crashed_content(seed, change)
        assert content is not None
        assert content.startswith(SYNCED)
        tails.append(content[len(SYNCED) :])
    assert b"" in tails, "lost"
    assert UNSYNCED in tails, "kept"
    torn = [tail for tail in tails if tail not in (b"", UNSYNCED)]
    holed = [tail for tail in torn if not UNSYNCED.startswith(tail)]
    assert len(torn) > len(holed) > 0, "torn to a prefix, and torn with holes"
    assert any(bytes(100) in tail for tail in holed), "zeros in the holes"
    assert any(byte not in (0, UNSYNCED[at]) for tail in holed for at, byte in enumerate(tail)), "garbage in the holes"


def test_a_torn_overwrite_leaves_the_bytes_around_it() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        disk.open("/log").write_at(b"X" * 300, 100)

    contents = {crashed_content(seed, change) for seed in SEEDS}
    for content in contents:
        assert content is not None
        assert content[:100] + content[400:] == SYNCED[:100] + SYNCED[400:]
    assert len(contents) > 2, "kept, lost and torn"


def test_a_synced_file_may_be_lost_if_its_folder_was_not_synced() -> None:
    async def change(disk: SimDisk) -> None:
        file = disk.open("/log", create=True)
        file.write([SYNCED])
        await file.sync()

    assert {crashed_content(seed, change) for seed in SEEDS} == {None, SYNCED}


def test_an_unsynced_truncation_is_kept_or_lost() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        disk.open("/log").truncate(6)

    assert {crashed_content(seed, change) for seed in SEEDS} == {b"synced", SYNCED}


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_rename_is_durable_only_after_its_folder_is_synced_and_never_half_done(is_synced: bool) -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        new = disk.open("/new", create=True)
        new.write([b"new"])
        await new.sync()
        await disk.sync_dir("/")
        disk.rename("/new", "/log")
        if is_synced:
            await disk.sync_dir("/")

    contents = {crashed_content(seed, change) for seed in SEEDS}
    assert contents == ({b"new"} if is_synced else {b"new", SYNCED})


def test_a_rename_before_its_files_sync_may_put_an_empty_file_in_place() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        disk.open("/new", create=True).write([b"new"])
        disk.rename("/new", "/log")
        await disk.sync_dir("/")

    assert b"" in {crashed_content(seed, change) for seed in SEEDS}


def test_a_folders_changes_are_lost_from_one_of_them_on() -> None:
    async def scenario(env: SimEnv) -> list[str]:
        for name in "abcd":
            env.disk.open(f"/{name}", create=True)
        env.disk.unlink("/a")
        env.crash()
        return env.restart().disk.list_dir("/")

    found = {"".join(run_simulation(seed, scenario)) for seed in range(300)}
    assert found == {"", "a", "ab", "abc", "abcd", "bcd"}


def test_writes_during_a_sync_are_not_covered_by_it() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        file = disk.open("/log")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.sync)
            await wait_all_tasks_blocked()
            file.write([b"late"])

    assert {SYNCED, SYNCED + b"late"} <= {crashed_content(seed, change) for seed in SEEDS}


def test_each_of_overlapping_syncs_covers_the_data_from_before_its_start() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        file = disk.open("/log")
        async with trio.open_nursery() as nursery:
            for part in (b"one", b"two", b"three"):
                file.write([part])
                nursery.start_soon(file.sync)
                await wait_all_tasks_blocked()

    assert {crashed_content(seed, change) for seed in SEEDS} == {SYNCED + b"onetwothree"}


def test_no_later_sync_repairs_a_failed_one() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        file = disk.open("/log")
        file.write([b"doubtful"])
        disk.fail_next_sync()
        with pytest.raises(SyncFailed, match="/log"):
            await file.sync()
        assert await file.read(len(SYNCED), 100) == b"doubtful"
        await file.sync()

    contents = {crashed_content(seed, change) for seed in SEEDS}
    assert {SYNCED, SYNCED + b"doubtful"} <= contents
    assert all(content is not None and content.startswith(SYNCED) for content in contents)


@simulated
async def test_the_sync_that_is_to_fail_fails_and_no_other(env: SimEnv) -> None:
    env.disk.fail_sync_at = 1
    file = env.disk.open("/log", create=True)
    await file.sync()
    with pytest.raises(SyncFailed):
        await env.disk.sync_dir("/")
    await env.disk.sync_dir("/")


def test_a_cancelled_sync_may_or_may_not_have_happened() -> None:
    async def change(disk: SimDisk) -> None:
        disk.sync_delay_s_max = 1000.0
        await durable_log(disk)
        file = disk.open("/log")
        for part in range(200):
            file.write([bytes([part])])
        with trio.move_on_after(1e-9):
            await file.sync()

    lengths = {len(crashed_content(seed, change) or b"") for seed in SEEDS}
    assert {len(SYNCED), len(SYNCED) + 200} <= lengths


@simulated
async def test_a_killed_process_loses_nothing_but_its_handles_and_locks(env: SimEnv) -> None:
    file = env.disk.open("/log", create=True)
    env.disk.lock("/lock")
    file.write([UNSYNCED])
    env.kill()
    with pytest.raises(SimulatedCrash):
        file.write([b"x"])
    after = env.restart()
    after.disk.lock("/lock")
    assert await after.disk.open("/log").read(0, 1 << 20) == UNSYNCED


async def test_a_dead_disk_refuses_everything() -> None:
    disk = SimDisk(0)
    file = disk.open("/log", create=True)
    disk.crash()
    for use in (
        lambda: file.write([b"x"]),
        lambda: file.write_at(b"x", 0),
        lambda: file.truncate(0),
        file.size,
        lambda: disk.open("/log", create=True),
        lambda: disk.exists("/log"),
        lambda: disk.list_dir("/"),
        lambda: disk.make_dir("/new"),
        lambda: disk.rename("/log", "/other"),
        lambda: disk.unlink("/log"),
        lambda: disk.remove_dir("/none"),
        lambda: disk.free_bytes("/"),
        lambda: disk.lock("/lock"),
    ):
        with pytest.raises(SimulatedCrash):
            use()
    for wait in (lambda: file.read(0, 1), file.sync, lambda: disk.sync_dir("/")):
        with pytest.raises(SimulatedCrash):
            await wait()
    file.close()


async def everything(disk: SimDisk) -> None:
    disk.make_dir("/data")
    file = disk.open("/data/log", create=True)
    file.write([b"0123456789"])
    await file.sync()
    file.write_at(b"X", 3)
    file.truncate(5)
    disk.rename("/data/log", "/data/log.old")
    await disk.sync_dir("/data")
    disk.unlink("/data/log.old")
    disk.remove_dir("/data")


def test_every_operation_is_a_point_to_crash_at() -> None:
    async def count(env: SimEnv) -> list[str]:
        await everything(env.disk)
        return [operation for operation, _ in env.disk.operations]

    operations = run_simulation(0, count)
    syncs = ["sync begin", "sync end", "write_at", "truncate", "rename", "sync_dir begin", "sync_dir end"]
    assert operations == ["make_dir", "create", "write", *syncs, "unlink", "remove_dir"]

    async def crash(env: SimEnv, point: int) -> None:
        env.disk.crash_at = point
        assert await env.run_until_death(lambda env: everything(env.disk))
        assert len(env.disk.operations) == point + 1

    for point in range(len(operations)):
        for seed in range(10):
            run_simulation(seed, lambda env, point=point: crash(env, point))


def test_a_crash_comes_before_in_the_middle_of_or_after_its_operation() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        file = disk.open("/log")
        disk.crash_at = len(disk.operations)
        with pytest.raises(SimulatedCrash):
            file.write([b"0123456789"])

    tails = {(crashed_content(seed, change) or b"").removeprefix(SYNCED) for seed in SEEDS}
    assert {b"", b"0123456789"} < tails

    async def change_sync(disk: SimDisk) -> None:
        await durable_log(disk)
        file = disk.open("/log")
        file.write([b"0123456789"])
        disk.crash_at = len(disk.operations) + 1
        with pytest.raises(SimulatedCrash):
            await file.sync()

    tails = {(crashed_content(seed, change_sync) or b"").removeprefix(SYNCED) for seed in SEEDS}
    assert {b"", b"0123456789"} < tails


def test_a_write_to_a_full_disk_is_atomic() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        file = disk.open("/log")
        disk.capacity_bytes = disk.used_bytes + 10
        with pytest.raises(DiskFull, match="/log"):
            file.write([b"12345", b"678901"])
        assert file.size() == len(SYNCED)
        assert disk.free_bytes("/") == 10
        assert file.write([b"1234567890"]) == 10
        with pytest.raises(DiskFull):
            disk.open("/more", create=True)
        file.truncate(len(SYNCED) + 3)
        assert disk.free_bytes("/") == 7
        await file.sync()

    assert {crashed_content(seed, change) for seed in SEEDS} == {SYNCED + b"123"}


def test_a_crash_may_leave_a_part_of_a_write_that_a_full_disk_refused() -> None:
    async def change(disk: SimDisk) -> None:
        await durable_log(disk)
        disk.capacity_bytes = disk.used_bytes + 10
        with pytest.raises(DiskFull):
            disk.open("/log").write([b"12345678901"])

    assert {SYNCED, SYNCED + b"1234567890"} <= {crashed_content(seed, change) for seed in SEEDS}


async def test_deleted_and_replaced_files_free_their_space() -> None:
    disk = SimDisk(0)
    disk.capacity_bytes = 1000
    for name in ("a", "b"):
        disk.open(f"/{name}", create=True).write([bytes(300)])
    disk.rename("/a", "/b")
    assert disk.free_bytes("/") == 700
    disk.unlink("/b")
    assert disk.free_bytes("/") == 1000
    disk.crash()
    after = disk.restart()
    assert after.capacity_bytes == 1000
    assert after.used_bytes == sum(after.open(f"/{name}").size() for name in after.list_dir("/"))


def test_a_deleted_file_that_is_still_written_takes_no_room() -> None:
    disk = SimDisk(0)
    file = disk.open("/log", create=True)
    disk.unlink("/log")
    file.write([bytes(100)])
    assert disk.used_bytes == 0


async def test_a_removal_that_was_lost_takes_room_again() -> None:
    for seed in SEEDS:
        disk = SimDisk(seed)
        await durable_log(disk)
        disk.unlink("/log")
        disk.crash()
        after = disk.restart()
        if after.exists("/log"):
            break
    after.open("/log").write([b"more"])
    assert after.used_bytes == len(SYNCED) + 4


async def test_a_read_only_disk_is_read_and_not_changed() -> None:
    disk = SimDisk(0)
    file = disk.open("/log", create=True)
    file.write([b"kept"])
    disk.read_only = True
    for change in (
        lambda: file.write([b"x"]),
        lambda: file.write_at(b"x", 0),
        lambda: file.truncate(0),
        lambda: disk.open("/new", create=True),
        lambda: disk.make_dir("/new"),
        lambda: disk.rename("/log", "/new"),
        lambda: disk.unlink("/log"),
    ):
        with pytest.raises(DiskReadOnly):
            change()
    assert await file.read(0, 10) == b"kept"


def test_a_second_handle_that_writes_the_same_file_is_caught() -> None:
    disk = SimDisk(0)
    first, second = disk.open("/log", create=True), disk.open("/log")
    first.write([b"x"])
    with pytest.raises(AssertionError, match="two handles"):
        second.write([b"y"])


def test_a_crash_after_a_kill_may_lose_the_killed_process_s_unsynced_data() -> None:
    async def scenario(env: SimEnv) -> bool:
        await durable_log(env.disk)
        env.disk.open("/log").write([UNSYNCED])
        env.kill()
        after = env.restart()
        assert after.disk.open("/log").size() == len(SYNCED + UNSYNCED)
        after.crash()
        return after.restart().disk.open("/log").size() == len(SYNCED)

    assert {run_simulation(seed, scenario) for seed in SEEDS} == {True, False}


def test_an_error_names_the_whole_path() -> None:
    with pytest.raises(StorageError, match="/no/such/file"):
        SimDisk(0).open("/no/such/file")
