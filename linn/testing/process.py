"""`linn serve` as a process, for tests and the demo. Every wait has a timeout, and every process is stopped.

Laws: only processes that this object started are signalled, by their id; a broker ends when its parent process ends, in
any way; after a restart the broker has the same data folder and addresses.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from linn.core.errors.tree import LinnError

READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0
_READ_BYTES = 65536


class BrokerNotReady(LinnError):
    """`linn serve` ended, or hung, instead of becoming ready. `returncode` is None if it hung."""

    code = "broker.not_ready"

    def __init__(self, text: str, returncode: int | None = None) -> None:
        super().__init__(text)
        self.returncode = returncode


class BrokerProcess:
    """A broker in a process of its own. Use it in a `with` statement: leaving the block kills a running process."""

    def __init__(
        self,
        folder: Path,
        config: str | None = None,
        *,
        listen: Sequence[str] = ("127.0.0.1:0",),
        options: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Prepare, but start nothing yet.

        Args:
            folder: takes the data (`data`), the log (`stderr.log`) and the configuration (`linn.toml`).
            config: the TOML text, or None for defaults.
            listen: addresses; empty: the addresses of the configuration.
            options: further options of `linn serve`.
            environment: variables, in addition to this process's environment.
        """
        self.folder = folder
        self.data_dir = folder / "data"
        self.urls: list[str] = []
        """One URL per listener, once it is ready."""
        self.ready_s = 0.0
        """Seconds from the start of the process to its ready line."""
        self._listen = list(listen)
        self._options = list(options)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "stderr.log"
        self._log_begins_at = 0
        """Position in the log at which the output of the last start begins."""
        self._config = folder / "linn.toml"
        self._config.write_text(config or "")

    # --- life ---

    def start(self) -> BrokerProcess:
        """Start and wait until clients can connect.

        Raises:
            BrokerNotReady: it ended, or did not become ready in time (and was killed then); with its output.
        """
        assert self._process is None, "it runs already"
        started = time.monotonic()
        with self._log.open("ab") as log:
            self._log_begins_at = log.tell()
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        try:
            output = self._await_ready(started + READY_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        self.ready_s = time.monotonic() - started
        self.urls = [line.removeprefix("ready ") for line in output.splitlines() if line.startswith("ready ")]
        if self._listen:
            # A restart takes the same port, so that clients find the broker again.
            self._listen = [url.removeprefix("linn://").replace("linn+unix://", "unix:") for url in self.urls]
        return self

    def configure(self, config: str) -> None:
        """Replace the configuration by this TOML text, from the next start on."""
        self._config.write_text(config)

    def _command(self) -> list[str]:
        listen = [part for address in self._listen for part in ("--listen", address)]
        place = ["--data-dir", str(self.data_dir)]
        return [
            sys.executable,
            "-m",
            "linn",
            "serve",
            str(self._config),
            "--with-parent",
            *place,
            *listen,
            *self._options,
        ]

    def _await_ready(self, deadline: float) -> str:
        """Return the broker's output, up to the line for people that follows the last ready line."""
        process = self._running()
        assert process.stdout is not None
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not (b"\nlinn " in output and output.endswith(b"\n")):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BrokerNotReady(f"not ready after {READY_TIMEOUT_S:g} s: {self._said()[-500:]}")
                chunk = os.read(process.stdout.fileno(), _READ_BYTES)
                if not chunk:
                    code = process.wait(STOP_TIMEOUT_S)
                    raise BrokerNotReady(f"ended with {code}: {self._said()[-2000:].strip()}", code)
                output += chunk
        return output.decode()

    def _said(self) -> str:
        return self._log.read_bytes()[self._log_begins_at :].decode(errors="replace")

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it is not running"
        return self._process

    def kill(self) -> None:
        """Kill the process (SIGKILL), by its id, and wait for its end. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code. A broker that does not end in time is killed: then the code is -9."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, without waiting."""
        self._running().send_signal(number)

    def wait(self) -> int:
        """Wait for a process that was told to end. Returns its exit code, or -9 if it was late and was killed."""
        process = self._running()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        return self._ended()

    def _ended(self) -> int:
        process, self._process = self._running(), None
        code = process.wait(STOP_TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # --- inspection ---

    @property
    def url(self) -> str:
        """URL of the first listener."""
        return self.urls[0]

    @property
    def address(self) -> str:
        """HOST:PORT of the first listener."""
        return self.url.partition("://")[2]

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._running().pid

    def log_text(self) -> str:
        """The complete stderr of the process, over all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return self._log.read_text(errors="replace")
        return ""
