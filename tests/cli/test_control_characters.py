"""Names that clients choose, and errors about them: no command prints control characters of theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from open_transaction import open_transaction

import linn.sync
from linn.cli.completion import group_names
from linn.cli.server.log import Log
from linn.core.config.tables import LogSettings
from linn.testing.process import BrokerProcess

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n[bold]\u202e"
SHOWN: list[tuple[str, ...]] = [
    ("topics", "list"),
    ("topics", "describe", "jobs"),
    ("exchanges", "describe", "shop"),
    ("bindings", "list"),
    ("groups", "list"),
    ("groups", "describe", EVIL),
    ("groups", "describe", f"no {EVIL}"),
    ("groups", "reset", EVIL, "--to", "latest", "--dry-run"),
    ("groups", "delete", f"no {EVIL}", "--yes"),
    ("queues", "list"),
    ("queues", "describe", "jobs"),
    ("subscriptions", "describe", "jobs", EVIL),
    ("dead-letters", "list", "graves"),
    ("dead-letters", "describe", "graves", "0/0"),
    ("deliveries", "list"),
    ("transactions", "list"),
    ("transactions", "describe", EVIL),
    ("transactions", "abort", EVIL, "--dry-run"),
    ("connections", "list"),
    ("definitions", "export"),
    ("top", "--once", "--interval", "0.1"),
    ("route", "explain", "--exchange", "shop", "--routing-key", EVIL),
    ("route", "explain", "--exchange", "shop", "--routing-key", "else"),
    ("browse", "jobs", "--format", "json"),
    ("consume", "jobs", "--group", "other", "--no-follow", "--format", "pretty"),
    ("ping", "--count", "1"),
    ("whoami",),
    ("cluster", "status"),
    ("doctor",),
    ("bindings", "delete", "shop", "jobs", "--key", f"no {EVIL}"),
    ("topics", "describe", f"no {EVIL}"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), "[spark]\nenabled = false\n") as process:
        with linn.sync.connect(process.url, name=EVIL) as client:
            client.admin.create_topic("graves")
            client.admin.create_topic("jobs", kind="both", dead_letter="graves", max_deliveries=3)
            client.admin.create_exchange("shop", type="topic")
            client.admin.bind("shop", "jobs", EVIL)
            with client.producer("jobs") as producer:
                producer.publish(EVIL.encode(), key=EVIL.encode(), routing_key=EVIL, labels={EVIL: EVIL})
            with client.consumer("jobs") as consumer:
                next(consumer).reject().wait()
                with client.consumer("jobs", group=EVIL) as member, open_transaction(process.url, EVIL, "orders", EVIL):
                    next(member).ack().wait()
                    yield process


def hostile(text: str) -> list[str]:
    return [letter for letter in text if not letter.isprintable() and letter not in "\n"]


@pytest.mark.parametrize("command", SHOWN, ids=lambda command: " ".join(command[:2]))
def test_no_command_prints_control_characters(quick: Any, broker: BrokerProcess, command: tuple[str, ...]) -> None:
    done = quick(*command)
    assert done.returncode in (0, 1)
    assert done.stdout or done.stderr
    assert hostile(done.stdout) == []
    assert hostile(done.stderr) == []


def test_completion_leaves_out_names_that_a_shell_would_act_on(broker: BrokerProcess) -> None:
    line = SimpleNamespace(params={"url": broker.url})
    assert EVIL not in group_names(cast(typer.Context, line))


def test_a_traceback_in_the_log_has_no_control_characters() -> None:
    stream = StringIO()
    log = Log(stream, format="text")
    try:
        log.apply(LogSettings())
        try:
            raise ValueError(EVIL)
        except ValueError:
            logging.getLogger("linn.test").exception("it failed: %s", EVIL)
    finally:
        logging.getLogger().removeHandler(log._handler)
    assert "ValueError" in stream.getvalue()
    assert hostile(stream.getvalue()) == []
