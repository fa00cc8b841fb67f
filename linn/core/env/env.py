"""Env: the only door to the world. Time, randomness, files and network are reached only through it.

`real.env.RealEnv` is the real world; `linn.testing.SimEnv` is a seeded one with virtual time, a disk that can tear
and lose writes, fill up and fail, and a network that can cut and delay connections. ruff bans modules that bypass Env.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
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
    """Randomness. A simulation's seed predicts all of it."""

    def bytes(self, count: int) -> bytes:
        """Return `count` random bytes, which are fit for secrets outside of a simulation."""

    def uniform(self, low: float, high: float) -> float:
        """Return a float in [low, high]. Not for secrets."""

    def integer(self, below: int) -> int:
        """Return an integer in [0, below). Not for secrets."""


class File(Protocol):
    """One open file. `write` appends, synchronously, to the page cache; only `sync` protects it against power loss."""

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Append all buffers; return the number of bytes written, always their sum.

        Raises:
            DiskFull: the file is cut back to its former size: either all buffers are written or none.
            StorageError: any other failure; the same promise.
        """

    def write_at(self, data: Buffer, position: int) -> None:
        """Overwrite (or extend) at a position. For small files. Raises as `write`, but may leave a partial write."""

    def size(self) -> int:
        """Current size in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes (not durable before `sync`). Raises StorageError."""

    async def read(self, position: int, bytes_max: int) -> bytearray:
        """Read up to `bytes_max` bytes from `position`; fewer only at the end of the file.

        Does not block the loop. Raises StorageError. Cancellation: nothing is changed.
        """

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Return `size` bytes from `position` if they are in the page cache; None if reading would wait for a disk.

        Raises StorageError.
        """

    def region(self, position: int, size: int) -> FileRegion:
        """Make a region of bytes that won't change, to be sent by a `Stream`. No I/O. Raises StorageError."""

    async def sync(self) -> None:
        """Flush everything written so far to stable storage (fdatasync), off the loop.

        Raises:
            SyncFailed: the state of unsynced data is unknown; never retry.
        Cancellation: the sync may or may not have happened.
        """

    def close(self) -> None:
        """Close without syncing. Idempotent."""


class Disk(Protocol):
    """Files and folders, by string paths. Changes to a folder are durable only after `sync_dir` of that folder."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and appending; `create` it if it does not exist, for the process's user alone (0600).

        Raises: DiskReadOnly, DiskFull, StorageError (with the path in the text).
        """

    def read_named(self, path: str, bytes_max: int, *, private: bool = False) -> bytes:
        """Read a small file of the operator's, such as a certificate, at once.

        Args:
            private: refuse a file that other users may use: it holds a secret.

        Raises StorageError: there is none, it may not be read, it is not a regular file, or is larger than `bytes_max`.
        """

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""

    def list_dir(self, path: str) -> list[str]:
        """Sorted names in a folder. Raises StorageError if there is no such folder."""

    def make_dir(self, path: str) -> None:
        """Make a folder and its missing parents, for the process's user alone (0700); no error if it exists.

        Raises DiskReadOnly, DiskFull, StorageError.
        """

    def rename(self, source: str, target: str) -> None:
        """Atomically put `source` in `target`'s place."""

    def unlink(self, path: str) -> None:
        """Delete a file; no error if there is none."""

    def remove_dir(self, path: str) -> None:
        """Delete an empty folder; no error if there is none."""

    async def sync_dir(self, path: str) -> None:
        """Make creations, renames and unlinks in a folder durable.

        Raises SyncFailed; DescriptorsExhausted, which can be retried.
        """

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written below `path`."""

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock on a file (made if missing) for this process; returns the function that releases it.

        Raises DataDirLocked.
        """


class Interrupted(Exception):
    """Raised when `Stream.interrupt` ends a wait."""


class Stream(Protocol):
    """One connection: bytes both ways."""

    peer: str
    """The address of the other end, for logs."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Wait for bytes and put them at the start of `buffer`; returns their number, 0 at the end of the stream.

        Raises ConnectionLost, Interrupted. Cancellation: no byte is lost; bytes stay in the socket.
        """

    async def wait_readable(self) -> None:
        """Wait until `receive_nowait` may return bytes or the end. Always a checkpoint.

        Raises ConnectionLost, Interrupted.
        """

    def interrupt(self) -> None:
        """Make the task that waits in `receive_into` or `wait_readable` raise Interrupted, unless it is about to
        return. No byte is lost. Cheaper than a cancel scope around each wait."""

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        """Receive bytes that have already arrived, filling one buffer after the other; None if there are none.

        Raises ConnectionLost. It is not a checkpoint: limit the number of calls in a row.
        """

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as the connection takes without waiting; returns the number of bytes sent.

        Not while another task is in `send`. Raises ConnectionLost.
        """

    async def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all buffers in order.

        Raises ConnectionLost. Cancellation: some bytes may have been sent; the stream can't be used any more.
        """

    async def aclose(self) -> None:
        """Close at once; tasks in `receive_into` or `send` raise ConnectionLost. Idempotent."""


class AcceptedStream(Stream, Protocol):
    """A connection accepted by a listener, which can also send pieces of files."""

    def peer_uid(self) -> int | None:
        """Return the user id of the process at the other end of a Unix socket; None: it is no Unix socket."""

    def send_nowait(self, sendables: Sequence[Sendable]) -> int:
        """Send as `Stream.send_nowait` does; may stop before a FileRegion, or send nothing if there is one."""

    async def send(self, sendables: Sequence[Sendable]) -> None:
        """Send as `Stream.send` does. Parts of a FileRegion that are not in the page cache block the loop on the disk.

        Raises ConnectionLost; also if a FileRegion's file was cut, because the frame can't be completed.
        """


class Listener(Protocol):
    """A bound address."""

    address: str
    """The address as bound, e.g. "127.0.0.1:5466" with the real port, or "unix:/run/linn.sock"."""

    async def accept(self) -> AcceptedStream:
        """Wait for a connection; survives a lack of descriptors.

        Raises:
            ConnectionLost: the listener is closed.
            LimitExceeded: a connection was accepted and closed, because the remaining descriptors are reserved for
                files.
        """

    async def aclose(self) -> None:
        """Stop listening (and remove a Unix socket's file). Idempotent."""


class Net(Protocol):
    """The network. Addresses are "HOST:PORT", "[V6]:PORT" or "unix:PATH"."""

    async def listen(self, address: str, *, socket_mode: int = 0o600, shares_port: bool = False) -> Listener:
        """Bind an address. Port 0 takes a free one.

        `shares_port`: whether other processes of this user may listen at the same port, if they say so too. The kernel
        spreads connections over them.

        `socket_mode`: the mode of a Unix socket's file, whatever the umask; at no time does it have more rights. By
        default only the process's user can connect.

        Raises AddressInUse, AddressInvalid.
        """

    async def connect(self, address: str) -> Stream:
        """Connect. Raises ConnectFailed, AddressInvalid."""


class Threads(Protocol):
    """Threads for computations of a millisecond or more that free the interpreter's lock, as OpenSSL's do."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return its result. Two run at a time, and others wait in order.

        Raises what `work` raises. Cancellation: only before it begins; a running computation is waited for.
        """


class Process(Protocol):
    """Facts about this process from the operating system."""

    def memory_bytes(self) -> int:
        """Memory in use (resident), for people and metrics: it may include freed memory."""

    def memory_bytes_max(self) -> int:
        """The memory limit of the process: the machine's memory, or its cgroup's limit if lower."""

    def descriptors(self) -> int:
        """The number of open file descriptors."""

    def descriptors_max(self) -> int:
        """The limit of open file descriptors."""

    def user_id(self) -> int | None:
        """The user id of the process; None in a simulation."""

    def boot_id(self) -> str:
        """The boot of the machine: another one after each power failure and reboot; "" if it is unknown."""

    def host(self) -> str:
        """The name of the machine."""

    def variable(self, name: str) -> str | None:
        """The value of a variable of the process's environment; None if it is not set."""

    def processor_s(self) -> float:
        """Processor time used so far, in seconds."""


class Program(Protocol):
    """A started program, with its child processes. Its lines are text in UTF-8.

    Only one task at a time may call each `receive_*`. Cancelling it loses no line.
    """

    async def send_line(self, line: str) -> None:
        """Send a line to its standard input.

        Raises ProgramEnded: it no longer reads. Cancellation: part of the line may have been sent.
        """

    def close_input(self) -> None:
        """End its standard input. Idempotent."""

    async def receive_status(self) -> str | None:
        """Wait for the next line of its status channel; None after the last one."""

    async def receive_output(self) -> str | None:
        """Wait for the next line of its standard output or error; None after the last one."""

    async def wait(self) -> int:
        """Wait for its end; return its exit code, or minus the number of the signal that ended it. Remaining processes
        of its group are killed before this returns."""

    def terminate(self) -> None:
        """Ask its whole process group to end (SIGTERM)."""

    def kill(self) -> None:
        """End its whole process group at once (SIGKILL)."""


INHERITED = ("HOME", "LANG", "LANGUAGE", "LC_*", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")
"""Variables of this process that every program gets: where things are, who runs it, and what people read."""


class Programs(Protocol):
    """Programs that a broker runs beside itself."""

    def find(self, name: str, home_variable: str | None = None) -> str | None:
        """Find a program: in the folder `bin` of the folder named by the environment variable `home_variable`, or else
        in PATH. Returns its path; None if it is in neither."""

    def run(
        self,
        command: Sequence[str],
        *,
        inherits: Collection[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        status_variable: str | None = None,
    ) -> AbstractAsyncContextManager[Program]:
        """Run a program inside the block, in a session and process group of its own.

        Args:
            inherits: further variables of this process that the program gets, each a name, or the beginning of names
                with a `*` behind it. It always gets the variables in `INHERITED`, and no others, which may be secrets.
            environment: variables and their values, in addition.
            status_variable: the environment variable with the number of the program's status channel, an open file
                descriptor; None: no channel.

        When the block is left, even by cancellation, the whole process group is killed, and no process or descriptor
        remains.

        Raises ProgramNotStarted.
        """


class Env(Protocol):
    """The interfaces through which a broker reaches the outside world: clock, files, network, process, other programs,
    threads, randomness."""

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
    @property
    def threads(self) -> Threads: ...
