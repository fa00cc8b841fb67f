"""Facts of the real Env alone: the kernel's limits, other processes, and descriptors."""

from __future__ import annotations

import os
import resource
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from linn.core.env.real.disk import RealDisk
from linn.core.env.real.net import RealNet
from linn.core.env.real.process import RealProcess, memory_limit_files
from linn.core.errors.tree import AddressInUse, AddressInvalid, ConnectFailed, DiskFull, DiskReadOnly, StorageError

NOBODY = 65534


@contextmanager
def soft_limit(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everywhere, so the test lends itself to nobody."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("room", [0, 1, 6, 4096])
async def test_a_write_that_fails_in_the_middle_is_taken_back(tmp_path: Path, room: int) -> None:
    file = RealDisk().open(f"{tmp_path}/log", create=True)
    file.write([b"before"])
    with soft_limit(resource.RLIMIT_FSIZE, 6 + room):
        with pytest.raises(StorageError, match="File too large"):
            file.write([bytes(5000), bytes(5000)])
        assert os.path.getsize(tmp_path / "log") == file.size() == 6
    file.write([b" after"])
    assert await file.read(0, 100) == b"before after"
    file.close()


def test_a_full_device_is_disk_full() -> None:
    file = RealDisk().open("/dev/full")
    with pytest.raises(DiskFull, match="/dev/full"):
        file.write([b"x"])
    with pytest.raises(DiskFull, match="/dev/full"):
        file.write_at(b"x", 0)
    file.close()


def test_a_folder_that_may_not_be_written_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with unprivileged():
        for refused in (
            lambda: RealDisk().open(f"{tmp_path}/log", create=True),
            lambda: RealDisk().make_dir(f"{tmp_path}/folder"),
            lambda: RealDisk().lock(f"{tmp_path}/lock"),
        ):
            with pytest.raises(DiskReadOnly, match=str(tmp_path)):
                refused()
    tmp_path.chmod(0o700)


async def test_uncached_bytes_are_read_from_the_disk(tmp_path: Path) -> None:
    content = os.urandom(1 << 20)
    file = RealDisk().open(f"{tmp_path}/log", create=True)
    file.write([content])
    await file.sync()
    os.posix_fadvise(file._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    assert await file.read(12_345, 1 << 20) == content[12_345:]
    file.close()


async def test_a_descriptor_outlives_close_while_a_thread_uses_it(tmp_path: Path) -> None:
    file = RealDisk().open(f"{tmp_path}/log", create=True)
    descriptor, may_go_on = file._descriptor, threading.Event()

    def use(given: int) -> int:
        assert may_go_on.wait(10)
        return os.fstat(given).st_ino

    async with trio.open_nursery() as nursery:
        nursery.start_soon(file._in_thread, use)
        await wait_all_tasks_blocked()
        file.close()
        may_go_on.set()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_a_sync_does_not_stop_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, loop_thread = [], threading.get_ident()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(threading.get_ident()))
    file = RealDisk().open(f"{tmp_path}/log", create=True)
    await file.sync()
    assert synced
    assert synced != [loop_thread]
    file.close()


async def test_a_listener_without_descriptors_waits_and_goes_on(autojump_clock: MockClock) -> None:
    listener = await RealNet().listen("127.0.0.1:0")
    client = await RealNet().connect(listener.address)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    with soft_limit(resource.RLIMIT_NOFILE, lowest_free), trio.move_on_after(5) as scope:
        await listener.accept()
    assert scope.cancelled_caught
    server = await listener.accept()
    for end in (server, client, listener):
        await end.aclose()


async def test_a_port_is_shared_only_by_listeners_that_say_so() -> None:
    net = RealNet()
    one = await net.listen("127.0.0.1:0", shares_port=True)
    other = await net.listen(one.address, shares_port=True)
    assert other.address == one.address
    with pytest.raises(AddressInUse):
        await net.listen(one.address)
    await one.aclose()
    client = await net.connect(other.address)
    accepted = await other.accept()
    alone = await net.listen("127.0.0.1:0")
    with pytest.raises(AddressInUse):
        await net.listen(alone.address, shares_port=True)
    for end in (client, accepted, other, alone):
        await end.aclose()


async def test_a_dead_brokers_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = f"{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    listener = await RealNet().listen(f"unix:{path}")
    await (await RealNet().connect(f"unix:{path}")).aclose()
    await listener.aclose()
    assert not os.path.exists(path)


async def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(AddressInUse, match="precious"):
        await RealNet().listen(f"unix:{path}")
    assert path.read_text() == "data"


async def test_closing_leaves_a_socket_that_another_broker_has_created(tmp_path: Path) -> None:
    path = f"{tmp_path}/s"
    listener = await RealNet().listen(f"unix:{path}")
    os.rename(path, f"{path}.old")
    other = await RealNet().listen(f"unix:{path}")
    await listener.aclose()
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    await other.aclose()


async def test_an_address_that_is_not_of_this_machine_can_not_be_bound() -> None:
    with pytest.raises(AddressInvalid, match=r"192\.0\.2\.1:5466"):
        await RealNet().listen("192.0.2.1:5466")


async def test_a_unix_socket_in_no_folder_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(AddressInvalid, match="no/s"):
        await RealNet().listen(f"unix:{tmp_path}/no/s")
    with pytest.raises(ConnectFailed, match="no/s"):
        await RealNet().connect(f"unix:{tmp_path}/no/s")


async def test_tcp_does_not_wait_to_fill_packets() -> None:
    listener = await RealNet().listen("127.0.0.1:0")
    client = await RealNet().connect(listener.address)
    server = await listener.accept()
    for end in (client, server):
        assert end._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await end.aclose()
    await listener.aclose()


async def test_a_name_finds_its_listener() -> None:
    listener = await RealNet().listen("localhost:0")
    port = listener.address.rpartition(":")[2]
    client = await RealNet().connect(f"localhost:{port}")
    await client.aclose()
    await listener.aclose()


class TwoAddresses(trio.abc.HostnameResolver):
    """Every name has two addresses, the second of which is the loopback's."""

    def __init__(self, first: str) -> None:
        self.first = first

    async def getaddrinfo(
        self, host: bytes | None, port: object, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[int, int, int, str, tuple[str, object]]]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, (self.first, port)), (*kind, ("127.0.0.1", port))]

    async def getnameinfo(self, sockaddr: tuple[str, int], flags: int) -> tuple[str, str]:
        return sockaddr[0], str(sockaddr[1])


async def test_a_name_is_bound_and_found_at_the_first_of_its_addresses_that_will_do() -> None:
    trio.socket.set_custom_hostname_resolver(TwoAddresses("192.0.2.1"))
    listener = await RealNet().listen("broker.example:0")
    assert listener.address.startswith("127.0.0.1:")
    trio.socket.set_custom_hostname_resolver(TwoAddresses("127.0.0.2"))
    client = await RealNet().connect(f"broker.example:{listener.address.rpartition(':')[2]}")
    await client.aclose()
    await listener.aclose()


async def test_an_address_in_use_is_not_evaded_by_a_names_next_one() -> None:
    taken = await RealNet().listen("127.0.0.2:0")
    trio.socket.set_custom_hostname_resolver(TwoAddresses("127.0.0.2"))
    with pytest.raises(AddressInUse):
        await RealNet().listen(f"broker.example:{taken.address.rpartition(':')[2]}")
    await taken.aclose()


@pytest.mark.parametrize(
    ("cgroups", "files"),
    [
        (
            "0::/app.slice/linn.service\n",
            [
                "/sys/fs/cgroup/app.slice/linn.service/memory.max",
                "/sys/fs/cgroup/app.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ],
        ),
        (
            "5:cpu,cpuacct:/docker/a:b\n4:memory,hugetlb:/docker/a:b\n",
            [
                "/sys/fs/cgroup/memory/docker/a:b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ],
        ),
        ("", []),
    ],
)
def test_memory_may_be_limited_by_each_cgroup_that_the_process_is_in(cgroups: str, files: list[str]) -> None:
    assert memory_limit_files(cgroups) == files


def test_a_process_may_use_more_memory_than_it_does() -> None:
    assert 0 < RealProcess().memory_bytes() < RealProcess().memory_bytes_max()
