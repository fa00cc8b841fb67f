"""CrashableBroker: `linn serve` in a process that a test kills, stops and starts again."""

from __future__ import annotations

import signal
from pathlib import Path

from linn.testing.broker_setup import BrokerSetup, Tables
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
    ) -> None:
        """Prepare, but start nothing yet; `folder` takes data, log and configuration.

        The other arguments are the same as for `BrokerThread`, but topics that name no storage are on the disk.

        Raises ConfigError.
        """
        setup = BrokerSetup(config=config, topics=topics or {}, exchanges=exchanges or {})
        super().__init__(folder, setup.text())

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
