"""Log of `linn serve`: records of the standard library's logging, written for people or for programs.

Only the command configures logging. Values in a record are fields (`linn.core.env.log_fields`): for people they are
part of the text; in JSON each is a key beside `timestamp`, `level`, `logger` and `event`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from linn.core.config.tables import LogSettings
from linn.core.errors.texts import one_line, printable

_RESERVED = ("timestamp", "level", "logger", "event", "worker", "exception")
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_LEVEL_WIDTH = 9
_BOLD, _DIM, _BLUE, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[34m", "\x1b[0m"
_LEVEL_COLOURS = {"debug": "\x1b[32m", "info": "\x1b[32m", "warning": "\x1b[33m"}
_SEVERE = "\x1b[31m"


class Log:
    """Handler of the root logger."""

    def __init__(
        self, stream: TextIO, *, level: str | None = None, format: str | None = None, worker: int | None = None
    ) -> None:
        """`level`, `format`: options of the command line, which take precedence over the file. `worker`: a number that
        each line of JSON has; for people the supervisor writes it."""
        given = {"level": level, "format": format}
        self._given = {key: value for key, value in given.items() if value is not None}
        self._worker = worker
        self._stream = stream
        self.level = self._given.get("level")
        self.is_json = False
        self._handler = logging.StreamHandler(stream)
        logging.getLogger().addHandler(self._handler)
        self.apply(LogSettings())

    def apply(self, settings: LogSettings) -> None:
        """Apply the settings of the file, except for those given on the command line."""
        chosen = msgspec.structs.replace(settings, **self._given)
        on_terminal = self._stream.isatty()
        self.is_json = chosen.format == "json" or (chosen.format == "auto" and not on_terminal)
        colours = on_terminal and "NO_COLOR" not in os.environ
        formatters = HumanFormatter(colours=colours), JsonFormatter(self._worker)
        self._handler.setFormatter(formatters[self.is_json])
        logging.getLogger().setLevel(chosen.level.upper())


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, a key for each of its fields."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        written = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, object] = {
            "timestamp": written.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if self._worker is not None:
            entry["worker"] = self._worker
        if isinstance(record.args, Mapping):
            entry |= {key: value for key, value in record.args.items() if key not in _RESERVED}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class HumanFormatter(logging.Formatter):
    """Formats a record as one line, and a traceback, without control characters that a peer may have sent."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        parts = (
            (_DIM, datetime.fromtimestamp(record.created).strftime(_TIME_FORMAT)),
            (_LEVEL_COLOURS.get(level, _SEVERE), f"[{level:<{_LEVEL_WIDTH}}]"),
            (_BOLD, one_line(record.getMessage())),
            (_BLUE, f"[{record.name}]"),
        )
        line = " ".join(f"{colour}{text}{_RESET}" if self._colours else text for colour, text in parts)
        return f"{line}\n{printable(self.formatException(record.exc_info))}" if record.exc_info else line
