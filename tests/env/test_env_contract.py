"""The promises of every Env, checked for the real one and the simulated one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from tls_world import shaken
from trio.testing import MockClock, wait_all_tasks_blocked

from linn.core.env.env import AcceptedStream, Env, File, Interrupted, Stream
from linn.core.env.file_region import Sendable, behind
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import (
    AddressInUse,
    AddressInvalid,
    ConnectFailed,
    ConnectionLost,
    DataDirLocked,
    StorageError,
    SyncFailed,
)
from linn.testing.sim_env import SimEnv

BIG_BYTES = 3 * 1024 * 1024


@pytest.fixture(params=["real", "sim"])
def env(request: pytest.FixtureRequest) -> Env:
    return RealEnv() if request.param == "real" else SimEnv(seed=7)


@pytest.fixture
def time(env: Env) -> MockClock:
    """Virtual time for the simulation, real time for the real Env; pytest-trio runs the test under it."""
    return MockClock(autojump_threshold=0) if isinstance(env, SimEnv) else MockClock(rate=1.0)


@pytest.fixture
def folder(env: Env, tmp_path: Path) -> str:
    env.disk.make_dir(str(tmp_path))
    return str(tmp_path)


@pytest.fixture
def file(env: Env, folder: str) -> Iterator[File]:
    opened = env.disk.open(f"{folder}/log", create=True)
    yield opened
    opened.close()


# --- files -----------------------------------------------------------------------------------------------------------


async def test_a_write_appends_all_buffers_and_returns_their_sum(env: Env, time: MockClock, file: File) -> None:
    assert file.write([b"one", bytearray(b"two"), memoryview(b"three")]) == 11
    assert file.write([]) == 0
    assert file.write([b"", b"four"]) == 4
    assert file.size() == 15
    assert await file.read(0, 100) == b"onetwothreefour"


async def test_a_write_takes_more_buffers_than_the_kernel_does_at_once(env: Env, time: MockClock, file: File) -> None:
    parts = [bytes([index % 251]) * 3 for index in range(5000)]
    assert file.write(parts) == 15_000
    assert await file.read(0, 20_000) == b"".join(parts)


async def test_a_read_is_short_only_at_the_end(env: Env, time: MockClock, file: File) -> None:
    content = bytes(range(256)) * (BIG_BYTES // 256)
    file.write([content])
    await file.sync()
    assert await file.read(1000, 2_000_000) == content[1000:2_001_000]
    assert await file.read(BIG_BYTES - 5, 100) == content[-5:]
    assert await file.read(BIG_BYTES, 100) == b""
    assert await file.read(BIG_BYTES + 50, 100) == b""
    assert isinstance(await file.read(0, 1), bytearray)


async def test_after_a_truncation_writes_append_at_the_new_end(env: Env, time: MockClock, file: File) -> None:
    file.write([b"0123456789"])
    file.truncate(4)
    assert file.size() == 4
    file.write([b"AB"])
    assert await file.read(0, 100) == b"0123AB"


async def test_write_at_overwrites_and_extends(env: Env, time: MockClock, file: File) -> None:
    file.write([b"0123"])
    file.write_at(b"XY", 1)
    file.write_at(b"Z", 6)
    file.write([b"!"])
    assert await file.read(0, 100) == b"0XY3\0\0Z!"


async def test_a_file_opened_again_has_its_bytes_and_appends_behind_them(
    env: Env, time: MockClock, folder: str, file: File
) -> None:
    file.write([b"first"])
    file.close()
    again = env.disk.open(f"{folder}/log")
    again.write([b" second"])
    assert await again.read(0, 100) == b"first second"
    again.close()


async def test_cached_bytes_are_read_without_waiting(env: Env, time: MockClock, file: File) -> None:
    file.write([b"0123456789"])
    had = [file.read_cached(2, 5) for _ in range(50)]
    assert b"23456" in had
    assert set(had) <= {b"23456", None}
    assert file.read_cached(8, 3) is None, "beyond the end is never there"


async def test_a_closed_file_refuses_everything_and_closes_twice(env: Env, time: MockClock, file: File) -> None:
    file.write([b"x"])
    file.close()
    file.close()
    for use in (file.size, lambda: file.write([b"x"]), lambda: file.truncate(0), lambda: file.write_at(b"x", 0)):
        with pytest.raises(StorageError, match="closed"):
            use()
    with pytest.raises(StorageError, match="closed"):
        await file.read(0, 1)
    with pytest.raises(SyncFailed, match="closed"):
        await file.sync()


async def test_a_file_may_be_closed_while_it_syncs(env: Env, time: MockClock, folder: str) -> None:
    async def sync(opened: File, started: trio.Event) -> None:
        started.set()
        await opened.sync()

    async with trio.open_nursery() as nursery:
        for index in range(8):
            opened, started = env.disk.open(f"{folder}/{index}", create=True), trio.Event()
            opened.write([bytes(100_000)])
            nursery.start_soon(sync, opened, started)
            await started.wait()
            opened.close()


async def test_a_cancelled_read_changes_nothing(env: Env, time: MockClock, file: File) -> None:
    file.write([b"kept"])
    with trio.CancelScope() as scope:
        scope.cancel()
        await file.read(0, 4)
    assert scope.cancelled_caught
    assert await file.read(0, 4) == b"kept"


# --- folders ---------------------------------------------------------------------------------------------------------


def test_opening_a_missing_file_names_the_path(env: Env, folder: str) -> None:
    for path in (f"{folder}/missing", f"{folder}/no/such/place"):
        with pytest.raises(StorageError, match=path):
            env.disk.open(path)
    with pytest.raises(StorageError, match="no/such"):
        env.disk.open(f"{folder}/no/such", create=True)
    with pytest.raises(StorageError, match="directory"):
        env.disk.open(folder)


async def test_folders_are_made_listed_renamed_and_removed(env: Env, time: MockClock, folder: str) -> None:
    disk = env.disk
    disk.make_dir(f"{folder}/a/b")
    disk.make_dir(f"{folder}/a/b")
    for name in ("2", "10", "1"):
        disk.open(f"{folder}/a/{name}", create=True).close()
    assert disk.list_dir(f"{folder}/a") == ["1", "10", "2", "b"]
    disk.rename(f"{folder}/a/1", f"{folder}/a/2")
    disk.unlink(f"{folder}/a/10")
    disk.unlink(f"{folder}/a/10")
    await disk.sync_dir(f"{folder}/a")
    assert disk.list_dir(f"{folder}/a") == ["2", "b"]
    assert disk.exists(f"{folder}/a/b")
    disk.remove_dir(f"{folder}/a/b")
    disk.remove_dir(f"{folder}/a/b")
    assert not disk.exists(f"{folder}/a/b")


async def test_a_rename_puts_one_file_in_anothers_place(env: Env, time: MockClock, folder: str) -> None:
    for name in ("old", "new"):
        opened = env.disk.open(f"{folder}/{name}", create=True)
        opened.write([name.encode()])
        opened.close()
    env.disk.rename(f"{folder}/new", f"{folder}/old")
    renamed = env.disk.open(f"{folder}/old")
    assert await renamed.read(0, 10) == b"new"
    renamed.close()


async def test_failed_operations_on_folders_are_storage_errors(env: Env, time: MockClock, folder: str) -> None:
    disk = env.disk
    disk.open(f"{folder}/file", create=True).close()
    disk.make_dir(f"{folder}/full/inner")
    for refused in (
        lambda: disk.list_dir(f"{folder}/missing"),
        lambda: disk.list_dir(f"{folder}/file"),
        lambda: disk.make_dir(f"{folder}/file"),
        lambda: disk.remove_dir(f"{folder}/full"),
        lambda: disk.remove_dir(f"{folder}/file"),
        lambda: disk.unlink(f"{folder}/full"),
        lambda: disk.rename(f"{folder}/missing", f"{folder}/other"),
        lambda: disk.rename(f"{folder}/file", f"{folder}/full"),
        lambda: disk.free_bytes(f"{folder}/missing"),
    ):
        with pytest.raises(StorageError, match=folder):
            refused()
    with pytest.raises(SyncFailed, match="missing"):
        await disk.sync_dir(f"{folder}/missing")


def test_free_bytes_are_known(env: Env, folder: str) -> None:
    assert env.disk.free_bytes(folder) > 0


def test_a_lock_is_exclusive_until_it_is_released(env: Env, folder: str) -> None:
    release = env.disk.lock(f"{folder}/lock")
    with pytest.raises(DataDirLocked, match="lock"):
        env.disk.lock(f"{folder}/lock")
    release()
    release()
    env.disk.lock(f"{folder}/lock")()


# --- streams and listeners -------------------------------------------------------------------------------------------


class InsideTls(str):
    """An address whose connections are put into TLS by `joined` and `accepted`."""


@pytest.fixture(params=["tcp", "unix", "tls"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "unix":
        return f"unix:{tmp_path}/s"
    return "127.0.0.1:0" if request.param == "tcp" else InsideTls("127.0.0.1:0")


async def joined(env: Env, address: str) -> tuple[Stream, Stream]:
    server, client = await accepted(env, address)
    return client, server


async def receive_all(stream: Stream, size: float = math.inf) -> bytes:
    received, buffer = bytearray(), memoryview(bytearray(65536))
    while len(received) < size and (count := await stream.receive_into(buffer)):
        received += buffer[:count]
    return bytes(received)


async def test_bytes_go_both_ways_in_order(env: Env, time: MockClock, address: str) -> None:
    client, server = await joined(env, address)
    await client.send([b"pub", bytearray(b"li"), memoryview(b"sh")])
    assert await receive_all(server, 7) == b"publish"
    await server.send([b"receipt"])
    assert await receive_all(client, 7) == b"receipt"
    assert client.peer
    assert server.peer
    for stream in (client, server):
        await stream.aclose()
        await stream.aclose()


@pytest.mark.parametrize(
    "buffers",
    [
        [bytes(range(256)) * (BIG_BYTES // 256)],
        [bytes([index % 251]) * 1000 for index in range(3000)],
        [b"", b"small", b"", bytes(BIG_BYTES), b"", b"end"],
        [b"", b""],
        [],
    ],
    ids=["one", "thousands", "mixed", "empties", "none"],
)
async def test_all_buffers_arrive_whole_through_a_bounded_connection(
    env: Env, time: MockClock, address: str, buffers: list[bytes]
) -> None:
    client, server = await joined(env, address)

    async def send() -> None:
        await client.send(buffers)
        await client.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert await receive_all(server) == b"".join(buffers)
    await server.aclose()


async def accepted(env: Env, address: str) -> tuple[AcceptedStream, Stream]:
    listener = await env.net.listen(address)
    client = await env.net.connect(listener.address)
    server = await listener.accept()
    await listener.aclose()
    if isinstance(address, InsideTls):
        client, server = await shaken(env, client, server)
    return server, client


async def test_pieces_of_files_arrive_between_buffers_in_order(
    env: Env, time: MockClock, address: str, file: File, folder: str
) -> None:
    content, other_content = bytes(range(251)) * 12_000, b"other" * 1000
    other = env.disk.open(f"{folder}/other", create=True)
    file.write([content])
    other.write([other_content])
    server, client = await accepted(env, address)
    first, end = 1001, 2_900_000
    sendables: list[Sendable] = [
        b"head",
        *(file.region(place, min(100_000, end - place)) for place in range(first, end, 100_000)),
        other.region(0, 5000),
        file.region(7, 0),
        file.region(0, 1),
        file.region(1, 99).behind(9),
        b"",
        b"tail",
        b"end",
    ]

    async def send() -> None:
        await server.send(sendables)
        await server.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        received = await receive_all(client)
    assert len(received) == sum(map(len, sendables))
    assert received == b"head" + content[first:end] + other_content + content[:1] + content[10:100] + b"tailend"
    other.close()
    await client.aclose()


async def test_a_piece_of_a_file_outlives_the_files_end(env: Env, time: MockClock, address: str, folder: str) -> None:
    file = env.disk.open(f"{folder}/short-lived", create=True)
    file.write([b"0123456789"])
    region = file.region(3, 4)
    file.close()
    env.disk.unlink(f"{folder}/short-lived")
    decoy = env.disk.open(f"{folder}/decoy", create=True)  # Takes the lowest free descriptor.
    decoy.write([b"decoydecoy"])
    server, client = await accepted(env, address)
    await server.send([region])
    await server.aclose()
    assert await receive_all(client) == b"3456"
    await client.aclose()
    decoy.close()
    with pytest.raises(StorageError, match="closed"):
        file.region(0, 1)


async def test_a_piece_of_a_file_that_was_cut_ends_the_connection(
    env: Env, time: MockClock, address: str, file: File
) -> None:
    file.write([b"0123456789"])
    region = file.region(3, 4)
    file.truncate(5)
    server, client = await accepted(env, address)
    with pytest.raises(ConnectionLost, match="cut"):
        await server.send([b"head", region])
    await server.aclose()
    await client.aclose()


async def test_send_nowait_stops_at_a_piece_of_a_file_or_sends_it(
    env: Env, time: MockClock, address: str, file: File
) -> None:
    file.write([b"0123456789"])
    server, client = await accepted(env, address)
    left: list[Sendable] = [b"head", b"more", file.region(3, 4), b"tail"]
    for _ in range(50):
        left = behind(left, server.send_nowait(left))
    await server.send(left)
    await server.aclose()
    assert await receive_all(client) == b"headmore3456tail"
    await client.aclose()


async def test_a_sender_waits_for_a_reader(env: Env, time: MockClock, address: str) -> None:
    client, server = await joined(env, address)
    with trio.move_on_after(0.2) as scope:
        await client.send([bytes(64 * 1024 * 1024)])
    assert scope.cancelled_caught
    await client.aclose()
    await server.aclose()


async def test_a_cancelled_receive_loses_no_byte(env: Env, time: MockClock, address: str) -> None:
    client, server = await joined(env, address)
    with trio.move_on_after(0.02):
        await server.receive_into(memoryview(bytearray(10)))
    await client.send([b"still here"])
    with trio.CancelScope() as scope:
        scope.cancel()
        await server.receive_into(memoryview(bytearray(10)))
    assert await receive_all(server, 10) == b"still here"
    await client.aclose()
    await server.aclose()


async def test_a_receive_can_be_interrupted_and_no_byte_is_lost(env: Env, time: MockClock, address: str) -> None:
    client, server = await joined(env, address)
    server.interrupt()  # Nobody waits.
    interrupted: list[int] = []

    async def wait() -> None:
        for number in range(3):
            with pytest.raises(Interrupted):
                await server.receive_into(memoryview(bytearray(10)))
            interrupted.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for _ in range(3):
            await wait_all_tasks_blocked()
            server.interrupt()
    assert interrupted == [0, 1, 2]
    await client.send([b"still here"])
    assert await receive_all(server, 10) == b"still here"
    await client.aclose()
    await server.aclose()


async def test_waiting_until_something_can_be_received_takes_no_byte(env: Env, time: MockClock, address: str) -> None:
    client, server = await joined(env, address)
    with trio.move_on_after(0.02) as scope:
        await server.wait_readable()
    assert scope.cancelled_caught, "nothing has come"
    await client.send([b"some"])
    for _ in range(2):
        await server.wait_readable()
    buffer = bytearray(10)
    received = bytearray()
    while len(received) < 4:
        await server.wait_readable()
        received += buffer[: server.receive_nowait([memoryview(buffer)]) or 0]
    assert received == b"some"
    await client.aclose()
    await server.wait_readable()
    assert server.receive_nowait([memoryview(buffer)]) == 0
    await server.aclose()
    with pytest.raises(ConnectionLost):
        await server.wait_readable()


async def test_closing_ends_the_waits_on_both_sides(env: Env, time: MockClock, address: str) -> None:
    client, server = await joined(env, address)

    async def wait_in_vain() -> None:
        with pytest.raises(ConnectionLost, match="closed"):
            await client.receive_into(memoryview(bytearray(10)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_vain)
        await wait_all_tasks_blocked()
        await client.aclose()
    assert await server.receive_into(memoryview(bytearray(10))) == 0
    with pytest.raises(ConnectionLost):
        await client.send([b"x"])
    with pytest.raises(ConnectionLost):
        await server.send([bytes(1000)] * 100_000)
    await server.aclose()


async def test_a_stream_that_was_closed_is_lost_as_often_as_it_is_read(env: Env, time: MockClock, address: str) -> None:
    client, server = await joined(env, address)
    await client.aclose()
    await server.aclose()
    for stream in (client, server, client):
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await stream.receive_into(memoryview(bytearray(10)))


async def test_closing_with_bytes_unread_resets_the_other_side(env: Env, time: MockClock, address: str) -> None:
    client, server = await joined(env, address)
    await client.send([bytes(1000)])
    with trio.fail_after(5):
        assert await server.receive_into(memoryview(bytearray(1))) == 1
    await server.aclose()
    with pytest.raises(ConnectionLost, match=r"reset|cut off"):
        await client.receive_into(memoryview(bytearray(10)))
    await client.aclose()


async def test_an_address_is_bound_once_and_freed_by_closing(env: Env, time: MockClock, address: str) -> None:
    listener = await env.net.listen(address)
    with pytest.raises(AddressInUse, match=listener.address):
        await env.net.listen(listener.address)
    await listener.aclose()
    await listener.aclose()
    with pytest.raises(ConnectFailed, match=listener.address):
        await env.net.connect(listener.address)
    again = await env.net.listen(listener.address)
    assert again.address == listener.address
    await again.aclose()


async def test_a_closed_listener_ends_accept(env: Env, time: MockClock, address: str) -> None:
    listener = await env.net.listen(address)

    async def accept_in_vain() -> None:
        with pytest.raises(ConnectionLost, match="closed"):
            await listener.accept()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_in_vain)
        await wait_all_tasks_blocked()
        await listener.aclose()
    with pytest.raises(ConnectionLost, match="closed"):
        await listener.accept()


NO_PORT = ["", "localhost", "localhost:", "localhost:http", "localhost:65536", "localhost:-1", "localhost:٣"]
NO_HOST = [":5466", "::1:5466", "[::1]5466", "[localhost]:1"]
NO_PATH = ["unix:", "unix:" + "x" * 108, "unix:a\0b"]


@pytest.mark.parametrize("wrong", [*NO_PORT, *NO_HOST, *NO_PATH])
async def test_an_address_that_is_none_is_invalid(env: Env, time: MockClock, wrong: str) -> None:
    for use in (env.net.listen, env.net.connect):
        with pytest.raises(AddressInvalid):
            await use(wrong)


# --- clock and randomness --------------------------------------------------------------------------------------------


async def test_sleep_passes_monotonic_and_wall_time(env: Env, time: MockClock) -> None:
    wall_ms, start = env.clock.now_ms(), env.clock.monotonic()
    await env.clock.sleep(0.03)
    assert env.clock.monotonic() - start >= 0.03
    assert 25 <= env.clock.now_ms() - wall_ms < 10_000
    with trio.CancelScope() as scope:
        scope.cancel()
        await env.clock.sleep(0)
    assert scope.cancelled_caught


def test_randomness_keeps_its_ranges(env: Env) -> None:
    assert len(env.rng.bytes(16)) == 16
    assert env.rng.bytes(16) != env.rng.bytes(16)
    assert {env.rng.integer(3) for _ in range(200)} == {0, 1, 2}
    assert all(2.0 <= env.rng.uniform(2.0, 2.5) <= 2.5 for _ in range(200))


# --- computations ----------------------------------------------------------------------------------------------------


async def test_a_computation_gives_what_it_returns_or_raises(env: Env, time: MockClock) -> None:
    assert await env.threads.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await env.threads.run(lambda: 1 // 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await env.threads.run(lambda: pytest.fail("it begins"))
    assert scope.cancelled_caught


# --- small files of the operator --------------------------------------------------------------------------------------


async def test_a_named_file_is_read_whole_or_refused(env: Env, time: MockClock, folder: str) -> None:
    file = env.disk.open(f"{folder}/named", create=True)
    file.write([b"content"])
    file.close()
    assert env.disk.read_named(f"{folder}/named", 7) == b"content"
    for path, bytes_max in ((f"{folder}/named", 6), (f"{folder}/missing", 7), (folder, 1 << 20)):
        with pytest.raises(StorageError, match=path):
            env.disk.read_named(path, bytes_max)
