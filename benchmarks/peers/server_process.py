"""A peer's server as a process. Laws: on loopback; it is ended by its id on every way out; its log is in its folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

from benchmarks.peers.peer import PeerFailed, PeerMissing

READY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 15.0
POLL_S = 0.05
"""Between two questions: another's server says to nobody when it is ready, so that it has to be asked."""
Answer = TypeVar("Answer")


def program(name: str, how: str) -> str:
    """The path of a program. Raises PeerMissing, with `how` to install it."""
    found = shutil.which(name)
    if found is None:
        raise PeerMissing(f"{name} is not installed: {how}")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def running(
    command: Sequence[str], folder: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The id of a process that accepts connections at `port`. Raises PeerFailed."""
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(os.environ) | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        try:
            until_answered(lambda: _knock(process, log.stem, port), OSError, log.stem)
        except PeerFailed as error:
            raise PeerFailed(f"{error}: {_end_of(log)}") from error
        yield process.pid
    finally:
        process.terminate()
        try:
            process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=END_TIMEOUT_S)


def _knock(process: subprocess.Popen[bytes], name: str, port: int) -> None:
    """Raises OSError where it does not accept connections yet, PeerFailed where it never will."""
    if process.poll() is not None:
        raise PeerFailed(f"{name} ended with {process.returncode}")
    socket.create_connection(("127.0.0.1", port), timeout=1).close()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:].strip()


def until_answered(
    ask: Callable[[], Answer], errors: type[Exception] | tuple[type[Exception], ...], what: str
) -> Answer:
    """Ask until there is an answer: some servers accept connections before they are ready. Raises PeerFailed."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return ask()
        except errors as error:
            if time.monotonic() > deadline:
                raise PeerFailed(f"{what} did not answer within {READY_TIMEOUT_S:g} s: {error!r}") from error
            time.sleep(POLL_S)


def values_of(received: Sequence[object]) -> list[bytes]:
    """The values of records; what has none, or carries an error, is not one that was published. Raises PeerFailed."""
    wrong = next((value for value in received if type(value) is not bytes), None)
    if wrong is not None or None in received:
        raise PeerFailed(f"a record came without its value: {wrong!r}")
    return cast(list[bytes], received)
