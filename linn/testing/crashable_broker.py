"""CrashableBroker: `linn serve` in a process that a test kills, stops and starts again."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from linn.client import Password, Tls
from linn.testing.broker_setup import LOOPBACK, BrokerSetup, Tables
from linn.testing.certificates import AUTHORITY
from linn.testing.process import BrokerProcess

_LOG_LINES_SHOWN = 50


class CrashableBroker(BrokerProcess):
    """A `BrokerProcess` with the configuration of a test. Use it with `with`: leaving the block kills a running
    process.

    Example:
        with CrashableBroker(tmp_path, topics={"orders": {"kind": "queue"}}) as broker:
            with linn.sync.connect(broker.url) as client, client.producer("orders") as producer:
                producer.publish(b"two coffees")
                broker.crash()
                producer.publish(b"one tea")
    """

    def __init__(
        self,
        folder: Path,
        config: str | Path | None = None,
        *,
        topics: Tables | None = None,
        exchanges: Tables | None = None,
        tls: bool = False,
        roles: Tables | None = None,
        users: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Prepare, but start nothing yet; `folder` takes data, log and configuration.

        The other arguments are the same as for `BrokerThread`, but topics that name no storage are on the disk.

        Raises ConfigError.
        """
        self.setup = BrokerSetup(
            config=config,
            topics=topics or {},
            exchanges=exchanges or {},
            tls=tls,
            roles=roles or {},
            users=users or {},
        )
        self._is_secured = tls or bool(users)
        self._text = self.setup.secured_text(folder, LOOPBACK) if self._is_secured else self.setup.text()
        super().__init__(folder, self._text, listen=[] if self._is_secured else [LOOPBACK])

    def start(self) -> CrashableBroker:
        """Start, and return when clients can connect. Raises BrokerNotReady, with its output."""
        super().start()
        if self._is_secured:  # The options of `linn serve` have no logins and no TLS.
            self.configure(self._text.replace(f'"{LOOPBACK}"', f'"{self.address}"'))
        return self

    @property
    def tls(self) -> Tls | None:
        """TLS options for a client of this broker; None for one without TLS."""
        return Tls(ca=str(self.folder / AUTHORITY)) if self.setup.tls else None

    def login(self, user: str) -> Password:
        """Return the login of a user, for a client of this broker. Raises ConfigError: there is no such user."""
        return self.setup.login(user)

    def crash(self) -> None:
        """`kill`, and start again on the same folder and port."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop the process (SIGSTOP), as on a machine that swaps or behind a network that is gone."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process after `pause`."""
        self.signal(signal.SIGCONT)

    def summary(self) -> str:
        """Return the end of the log. Shown when a test fails."""
        lines = self.log_text().splitlines()
        return "\n".join(lines[-_LOG_LINES_SHOWN:]) or "its log is empty"
