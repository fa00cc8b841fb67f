"""The log of `linn serve`: lines for people or JSON, with fields; and a library that leaves logging alone."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from linn.cli.server.log import HumanFormatter, JsonFormatter, Log
from linn.core.config.tables import LogSettings
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import DiskFull
from linn.testing.process import BrokerProcess


def record(text: str, *arguments: Any, failed: bool = False) -> logging.LogRecord:
    error = None
    if failed:
        try:
            raise ValueError("a reason")
        except ValueError:
            error = sys.exc_info()
    return logging.LogRecord("linn.test", logging.WARNING, "here.py", 1, text, arguments, error)


def entry(written: logging.LogRecord) -> dict[str, Any]:
    """A log record as JSON."""
    line = JsonFormatter().format(written)
    assert "\n" not in line
    made: dict[str, Any] = json.loads(line)
    return made


def human(written: logging.LogRecord) -> str:
    return HumanFormatter(colours=False).format(written)


def test_fields_are_keys_in_json_and_text_for_people() -> None:
    about = {"topic": "jobs", "connection": "127.0.0.1:9"} | log_fields(DiskFull("no room"))
    written = record("%(topic)s: %(error)s", about)
    assert entry(written) == {
        "timestamp": entry(written)["timestamp"],
        "level": "warning",
        "logger": "linn.test",
        "event": "jobs: no room [storage.disk_full]",
        "topic": "jobs",
        "connection": "127.0.0.1:9",
        "error": "no room [storage.disk_full]",
        "code": "storage.disk_full",
    }
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[warning  \] jobs: no room \[storage\.disk_full\] \[linn\.test\]",
        human(written),
    )


def test_the_time_is_when_it_happened() -> None:
    written = record("late")
    written.created = 1_735_689_600.25
    assert entry(written)["timestamp"] == "2025-01-01T00:00:00.250Z"
    assert human(written).startswith(datetime.fromtimestamp(1_735_689_600).strftime("%Y-%m-%d %H:%M:%S "))


def test_a_record_of_another_library_is_written_too() -> None:
    assert entry(record("%s of %d", "three", 4))["event"] == "three of 4"
    assert "three of 4" in human(record("%s of %d", "three", 4))


def test_a_field_can_not_replace_a_standard_field() -> None:
    made = entry(record("%(event)s", {"event": "mine", "level": "none", "timestamp": 0, "exception": 1, "odd": {1, 2}}))
    assert (made["event"], made["level"], made["odd"]) == ("mine", "warning", "{1, 2}")
    assert "exception" not in made


def test_a_traceback_is_one_key_in_json() -> None:
    made = entry(record("failed", failed=True))
    assert made["exception"].startswith("Traceback (most recent call last):\n")
    assert made["exception"].endswith("ValueError: a reason")
    assert human(record("failed", failed=True)).endswith("ValueError: a reason")


@pytest.mark.parametrize("text", ["two\nlines", "a\x1b[31mred\x1b[0m", "\r\x00"])
def test_input_from_a_peer_can_not_forge_a_log_line(text: str) -> None:
    line = human(record("%(topic)s", {"topic": text}))
    assert line.isprintable()
    assert entry(record("%(topic)s", {"topic": text}))["topic"] == text


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_command_line_counts_more_than_the_file(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    log = Log(stream, level="error")
    assert root_logger.level == logging.ERROR
    log.apply(LogSettings(level="debug", format="human"))
    assert root_logger.level == logging.ERROR
    root_logger.error("seen")
    assert "[error    ] seen" in stream.getvalue()
    Log(stream).apply(LogSettings(level="debug"))
    assert root_logger.level == logging.DEBUG


def hostile(broker: BrokerProcess) -> None:
    """Send the broker input for which it writes a log line."""
    host, port = broker.address.split(":")
    with socket.create_connection((host, int(port)), timeout=300) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while client.recv(4096):
            pass


@pytest.mark.system
def test_every_line_of_a_broker_in_a_pipe_is_json(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, '[log]\nlevel = "debug"\n') as broker:
        hostile(broker)
        assert broker.stop() == 0
    entries = [json.loads(line) for line in broker.log_text().splitlines()]
    assert all({"timestamp", "level", "logger", "event"} <= set(each) for each in entries)
    (refused,) = [each for each in entries if each["logger"] == "linn.listening"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", refused["connection"])
    assert refused["code"].startswith("protocol.")
    assert (refused["listener"], refused["protocol"], refused["level"]) == ("native", "capnp", "info")


@pytest.mark.system
def test_the_format_can_be_chosen(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, '[log]\nformat = "json"\n', options=["--log-format", "human"]) as broker:
        hostile(broker)
        assert broker.stop() == 0
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[info     \] ", broker.log_text())
    assert "\x1b" not in broker.log_text()


@pytest.mark.system
def test_the_level_can_be_chosen(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, options=["--log-level", "warning"]) as broker:
        hostile(broker)
        assert broker.stop() == 0
    assert broker.log_text() == ""


@pytest.mark.system
@pytest.mark.parametrize("option", [("--log-format", "xml"), ("--log-level", "loud")])
def test_a_wrong_choice_is_refused(tmp_path: Path, option: tuple[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "linn", "serve", *option], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be" in done.stderr


@pytest.mark.system
def test_a_wrong_table_is_an_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "linn.toml").write_text('[log]\nlevel = "info"\nformat = "xml"\nlevle = 1\n')
    done = subprocess.run(
        [sys.executable, "-m", "linn", "check", "linn.toml"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode != 0
    assert "linn.toml:3: log.format" in done.stdout
    assert 'linn.toml:4: log.levle: unknown key; did you mean "level"?' in done.stdout


@pytest.mark.system
def test_a_terminal_gets_lines_for_people(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "linn", "serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    environment = os.environ | {"TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready ")
        process.terminate()
        written = b""
        while b"stopped" not in written:
            written += os.read(ours, 4096)
        assert process.wait(20) == 0
    os.close(ours)
    assert b"\x1b[" in written, "in colours"
    assert b"SIGTERM: stopping" in written
    assert b'{"' not in written


def test_the_library_does_not_configure_logging() -> None:
    code = (
        "import logging, pkgutil, importlib, linn\n"
        "for m in pkgutil.walk_packages(linn.__path__, 'linn.'):\n"
        "    m.name.endswith('__main__') or importlib.import_module(m.name)\n"
        "assert logging.getLogger().handlers == []\n"
        "loggers = [l for n, l in logging.root.manager.loggerDict.items() if n.partition('.')[0] == 'linn']\n"
        "assert [l for l in loggers if isinstance(l, logging.Logger) and (l.handlers or l.level)] == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
