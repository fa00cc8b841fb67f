"""Real etcd for a test: one member or three on free ports of this machine, in a folder of their own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import free_ports

START_S_MAX = 60.0


class EtcdMember:
    """One process of etcd's, and its folder."""

    def __init__(self, name: str, folder: Path, ports: tuple[int, int], flags: Sequence[str], scheme: str) -> None:
        self.name = name
        self.folder = folder
        self.url = f"{scheme}://127.0.0.1:{ports[0]}"
        self.peer_url = f"http://127.0.0.1:{ports[1]}"
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def start(self, cluster: str) -> None:
        """Start the process; it need not be ready then."""
        assert self._process is None, "it runs"
        command = [
            "etcd", "--name", self.name, "--data-dir", str(self.folder / "data"),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url,
            "--initial-cluster", cluster, "--initial-cluster-token", self.folder.parent.name,
            "--heartbeat-interval", "50", "--election-timeout", "500",
            "--logger", "zap", "--log-level", "error", *self._flags,
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill the process, whatever its state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process as it is (SIGSTOP)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def empty(self) -> None:
        """Delete all data of a member that does not run."""
        assert self._process is None
        shutil.rmtree(self.folder / "data")

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def ask(self, path: str, request: Mapping[str, Any], timeout_s: float = 2.0) -> Any:
        """Ask the member. Raises OSError."""
        body = json.dumps(request).encode()
        try:
            with urllib.request.urlopen(f"{self.url}{path}", body, timeout=timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise


class Etcd:
    """An etcd of one or several members."""

    def __init__(self, folder: Path, count: int, flags: Sequence[str] = (), scheme: str = "http") -> None:
        ports, self._scheme = free_ports(2 * count), scheme
        self.members = list[EtcdMember]()
        for number in range(count):
            place = folder / f"member-{number}"
            place.mkdir(parents=True)
            pair = ports[2 * number], ports[2 * number + 1]
            self.members.append(EtcdMember(f"member-{number}", place, pair, flags, scheme))
        self._cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    def start(self) -> None:
        """Start all members that do not run, and wait until they have a leader; with TLS, do not wait."""
        for member in self.members:
            if member.has_ended():
                member.kill()
                member.start(self._cluster)
        for member in self.members if self._scheme == "http" else ():
            self.wait_ready(member)

    def wait_ready(self, member: EtcdMember) -> None:
        """Wait until a member answers reads."""
        end_s = time.monotonic() + START_S_MAX
        while time.monotonic() < end_s:
            try:
                member.ask("/v3/kv/range", {"key": "AA=="})
                return
            except urllib.error.HTTPError as error:
                if error.code == 400:  # It wants a login.
                    return
            except (OSError, ValueError):
                pass
            if member.has_ended():
                pytest.fail(f"etcd ended: {(member.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        pytest.fail(f"etcd is not ready: {(member.folder / 'log').read_text()[-2000:]}")

    def leader(self) -> EtcdMember:
        """Return the member that leads."""
        status = self.members[0].ask("/v3/maintenance/status", {})
        found = self.members[0].ask("/v3/cluster/member/list", {})["members"]
        (name,) = [member["name"] for member in found if member["ID"] == status["leader"]]
        return next(member for member in self.members if member.name == name)


@contextmanager
def running_etcd(folder: Path, count: int = 1, flags: Sequence[str] = (), scheme: str = "http") -> Iterator[Etcd]:
    """Run an etcd while the block runs; skips the test where etcd is not installed."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: apt install etcd-server")
    etcd = Etcd(folder, count, flags, scheme)
    try:
        etcd.start()
        yield etcd
    finally:
        for member in etcd.members:
            member.kill()
