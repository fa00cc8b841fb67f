"""Env: the only door to the world. Time, randomness, files and network are reached through it, and no other way.

`real_env.RealEnv` is the world; `linn.testing.sim_env.SimEnv` is a seeded one with virtual time, a disk that can tear,
lose, fill and fail, and a network that can cut and delay. ruff bans the modules that would be a second door.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Protocol, TypeVar

from linn.core.batch.flat_message import Buffer
from linn.core.env.file_region import FileRegion, Sendable

T = TypeVar("T")
Spawn = Callable[[Callable[[], Awaitable[None]]], None]
"""A callback that starts a background task in the broker's nursery."""


class Clock(Protocol):
    """Time. Wall time is for people and retention; intervals and deadlines use `monotonic`."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC. May jump, also backwards."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Sleep; a cancellation point even for 0."""


class Rng(Protocol):
    """Randomness. Not for secrets that must withstand an attacker who knows the seed of a simulation."""

    def bytes(self, count: int) -> bytes:
        """Return `count` random bytes."""

    def uniform(self, low: float, high: float) -> float:
        """Return a float in [low, high]."""

    def integer(self, below: int) -> int:
        """Return an integer in [0, below)."""


class File(Protocol):
    """One open file. `write` appends, synchronously, to the page cache; only `sync` makes it survive power loss."""

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Append all buffers at the end; return the bytes written, always their sum.

        Raises:
            DiskFull: the file is cut back to its former size: either all buffers are there or none.
            StorageError: any other failure; the same promise.
        """

    def write_at(self, data: Buffer, position: int) -> None:
        """Overwrite (or extend) at a position. For small fixed-place files. Raises as `write`, without its promise."""

    def size(self) -> int:
        """Current size in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes (not durable before `sync`). Raises StorageError."""

    async def read(self, position: int, bytes_max: int) -> bytearray:
        """Read up to `bytes_max` bytes from `position`; fewer only at the end of the file.

        Does not block the loop. Raises StorageError. Cancellation: nothing is changed.
        """

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Return the `size` bytes from `position` if they are in the page cache; None if that would wait for a disk.

        Raises StorageError.
        """

    def region(self, position: int, size: int) -> FileRegion:
        """Make a region of bytes that won't change, for a `Stream` to send. No I/O. Raises StorageError."""

    async def sync(self) -> None:
        """Flush everything written so far to stable storage (fdatasync), off the loop.

        Raises:
            SyncFailed: the state of whatever was not synced before is unknown; never retry.
        Cancellation: the sync may or may not have happened.
        """

    def close(self) -> None:
        """Close without syncing. Idempotent."""


class Disk(Protocol):
    """Files and folders, by string paths. Changes to a folder are durable only after `sync_dir` of that folder."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and appending; `create` makes it if it does not exist.

        Raises: DiskReadOnly, DiskFull, StorageError (with the path in the text).
        """

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""

    def list_dir(self, path: str) -> list[str]:
        """Sorted names in a folder. Raises StorageError if there is no such folder."""

    def make_dir(self, path: str) -> None:
        """Make a folder and its parents; no error where it exists. Raises DiskReadOnly, DiskFull, StorageError."""

    def rename(self, source: str, target: str) -> None:
        """Atomically put `source` in `target`'s place."""

    def unlink(self, path: str) -> None:
        """Delete a file; no error where there is none."""

    def remove_dir(self, path: str) -> None:
        """Delete an empty folder; no error where there is none."""

    async def sync_dir(self, path: str) -> None:
        """Make creations, renames and unlinks in a folder durable.

        Raises SyncFailed; DescriptorsExhausted: it can be tried again.
        """

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written below `path`."""

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock on a file (made if missing) for this process; returns the function that releases it.

        Raises DataDirLocked.
        """


class Interrupted(Exception):
    """Raised where `Stream.interrupt` ended a wait."""


class Stream(Protocol):
    """One connection: bytes both ways."""

    peer: str
    """The address of the other end, for logs."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Wait for bytes and put them at the start of `buffer`; 0 means that the peer has finished.

        Raises ConnectionLost, Interrupted. Cancellation: no byte is lost, it stays in the socket.
        """

    def interrupt(self) -> None:
        """Make the task that waits in `receive_into` raise Interrupted, unless bytes are on their way to it. No byte is
        lost. Cheaper than a cancel scope around each wait.
        """

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        """Receive bytes that have already arrived, filling one buffer after the other; None if there are none.

        Raises ConnectionLost. It is no checkpoint: bound how often it is called in a row.
        """

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as the connection takes without waiting; returns the number of bytes, from 0 to all.

        Not while another task is in `send`. Raises ConnectionLost.
        """

    async def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all buffers in order.

        Raises ConnectionLost. Cancellation: some bytes may have been sent; the stream is of no more use.
        """

    async def aclose(self) -> None:
        """Close at once; tasks in `receive_into` or `send` raise ConnectionLost. Idempotent."""


class AcceptedStream(Stream, Protocol):
    """A connection accepted by a listener: it also sends pieces of files, and waits without a buffer."""

    async def wait_readable(self) -> None:
        """Wait until `receive_nowait` may return bytes or the end. Always a checkpoint. Raises ConnectionLost."""

    def send_nowait(self, sendables: Sequence[Sendable]) -> int:
        """Send as `Stream.send_nowait` does; it may stop before a FileRegion, or send nothing if there is one."""

    async def send(self, sendables: Sequence[Sendable]) -> None:
        """Send as `Stream.send` does. Parts of a FileRegion that are not in the page cache block the loop on the disk.

        Raises ConnectionLost; also if a FileRegion's file was cut, for the peer can't be told any more.
        """


class Listener(Protocol):
    """A bound address."""

    address: str
    """The address as bound, e.g. "127.0.0.1:5466" with the real port, or "unix:/run/linn.sock"."""

    async def accept(self) -> AcceptedStream:
        """Wait for a connection; survives a lack of descriptors.

        Raises:
            ConnectionLost: the listener is closed.
            LimitExceeded: a connection was accepted and closed, because the remaining descriptors are kept for files.
        """

    async def aclose(self) -> None:
        """Stop listening (and remove a Unix socket's file). Idempotent."""


class Net(Protocol):
    """The network. Addresses are "HOST:PORT", "[V6]:PORT" or "unix:PATH"."""

    async def listen(self, address: str) -> Listener:
        """Bind an address. Port 0 takes a free one. Raises AddressInUse, AddressInvalid."""

    async def connect(self, address: str) -> Stream:
        """Connect. Raises ConnectFailed, AddressInvalid."""


class Process(Protocol):
    """Facts about this process from the operating system."""

    def memory_bytes(self) -> int:
        """Memory in use (resident). For people and metrics: it may include memory that was freed."""

    def memory_bytes_max(self) -> int:
        """Memory that the process may use: the machine's, or its cgroup's if that is less."""

    def descriptors(self) -> int:
        """The number of open file descriptors."""

    def descriptors_max(self) -> int:
        """The number of file descriptors that may be open."""

    def processor_s(self) -> float:
        """Processor time used so far, in seconds."""


class Program(Protocol):
    """One program that was started, with the processes that it has started itself. Its lines are text in UTF-8.

    Each `receive_*` is for one task at a time. Cancellation of one: no line is lost.
    """

    async def send_line(self, line: str) -> None:
        """Send a line to its standard input.

        Raises ProgramEnded: it reads no more. Cancellation: part of the line may have been sent.
        """

    def close_input(self) -> None:
        """End its standard input. Idempotent."""

    async def receive_status(self) -> str | None:
        """Wait for the next line of its status channel; None after the last one."""

    async def receive_output(self) -> str | None:
        """Wait for the next line of its standard output and error; None after the last one."""

    async def wait(self) -> int:
        """Wait for its end, and return its exit code, or minus the number of the signal that ended it. Whatever is left
        of its process group is killed before this returns.
        """

    def terminate(self) -> None:
        """Ask its whole process group to end (SIGTERM)."""

    def kill(self) -> None:
        """End its whole process group at once (SIGKILL)."""


class Programs(Protocol):
    """Programs that a broker runs beside itself."""

    def find(self, name: str, home_variable: str | None = None) -> str | None:
        """The path of a program: in the folder `bin` of the folder that the environment variable `home_variable` names,
        or else in PATH. None if it is in neither.
        """

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        status_variable: str | None = None,
    ) -> AbstractAsyncContextManager[Program]:
        """Run a program inside the block, in a session and process group of its own.

        Args:
            environment: variables in addition to those of this process.
            status_variable: the environment variable that tells the program the number of its status channel, an open
                file descriptor; None: it has no such channel.

        However the block is left, also by cancellation, the whole process group is killed, and no process and no
        descriptor is left behind.

        Raises ProgramNotStarted.
        """


class Env(Protocol):
    """The interfaces through which a broker reaches the outside world: clock, files, network, process, other programs,
    randomness.
    """

    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> Rng: ...
    @property
    def disk(self) -> Disk: ...
    @property
    def net(self) -> Net: ...
    @property
    def process(self) -> Process: ...
    @property
    def programs(self) -> Programs: ...
