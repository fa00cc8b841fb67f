"""Servers of databases, as the tests start them: each in a folder of its own, on a socket there, ended by its pid.

PostgreSQL refuses to run as root, so root's tests give the folder to another user and start it as that one.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_UNPRIVILEGED = ("postgres", "nobody")


def _postgres_programs() -> Path:
    """The folder of PostgreSQL's newest programs."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).parent
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found:
        pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql")
    return max(found, key=lambda path: int(path.parent.name))


def _unprivileged() -> dict[str, Any]:
    """Arguments of a process that must not be root's."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in _UNPRIVILEGED:
        if name in names:
            return {"user": names[name].pw_uid, "group": names[name].pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


@contextmanager
def _server(command: list[str], ready: bytes, end: signal.Signals, **options: Any) -> Iterator[int]:
    """Run a server, and wait until it says that it is ready; yields its pid."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            pytest.fail(f"the server has not started: {b''.join(said).decode()}")
        reader = threading.Thread(target=process.stdout.read)
        reader.start()
        try:
            yield process.pid
        finally:
            process.send_signal(end)
            process.wait(60)
            reader.join()


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run PostgreSQL; yields how to connect."""
    programs, become = _postgres_programs(), _unprivileged()
    with tempfile.TemporaryDirectory(prefix="linn-") as folder:
        if become:
            os.chown(folder, become["user"], become["group"])
        options: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, **become}
        data = ["--encoding=UTF8", f"--pgdata={folder}/data"]
        initdb = [f"{programs}/initdb", "--auth=trust", "--username=linn", "--no-sync", *data]
        subprocess.run(initdb, capture_output=True, check=True, timeout=300, **options)
        # What is committed survives the tests, which end no machine: without fsync they take a tenth of the time.
        settings = ["fsync=off", "listen_addresses=", f"unix_socket_directories={folder}", "log_min_messages=log"]
        command = [f"{programs}/postgres", f"-D{folder}/data", *(f"-c{setting}" for setting in settings)]
        with _server(command, b"ready to accept connections", signal.SIGINT, **options):
            yield f"host={folder} user=linn dbname=postgres"


@contextmanager
def redis_server() -> Iterator[str]:
    """Run Redis; yields its URL."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis's server is not installed: apt-get install redis-server")
    with tempfile.TemporaryDirectory(prefix="linn-") as folder:
        command = [program, "--port", "0", "--unixsocket", f"{folder}/socket", "--save", "", "--dir", folder]
        with _server(command, b"eady to accept connections", signal.SIGTERM):
            yield f"unix://{folder}/socket"
