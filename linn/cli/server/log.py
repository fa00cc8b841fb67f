"""Log of `linn serve`: records of the standard library's logging, written by structlog for people or for programs.

Only the command configures logging. Values in a record are fields (`linn.core.env.log_fields`): for people they are
part of the text; in JSON each is a key beside `timestamp`, `level`, `logger` and `event`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from io import StringIO
from typing import Any, TextIO

import msgspec

from linn.core.config.tables import LogSettings
from linn.core.errors.texts import one_line, printable

_RESERVED = ("timestamp", "level", "logger", "event", "exception")
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


class Log:
    """Handler of the root logger."""

    def __init__(self, stream: TextIO, *, level: str | None = None, format: str | None = None) -> None:
        """`level`, `format`: options of the command line, which take precedence over the file."""
        given = {"level": level, "format": format}
        self._given = {key: value for key, value in given.items() if value is not None}
        self._stream = stream
        self._handler = logging.StreamHandler(stream)
        logging.getLogger().addHandler(self._handler)
        self.apply(LogSettings())

    def apply(self, settings: LogSettings) -> None:
        """Apply the settings of the file, except for those given on the command line."""
        chosen = msgspec.structs.replace(settings, **self._given)
        on_terminal = self._stream.isatty()
        as_json = chosen.format == "json" or (chosen.format == "auto" and not on_terminal)
        self._handler.setFormatter(LogFormatter(as_json=as_json, colours=on_terminal and "NO_COLOR" not in os.environ))
        logging.getLogger().setLevel(chosen.level.upper())


class LogFormatter(logging.Formatter):
    """Formatter that loads structlog with the first record, so that the start does not wait for it."""

    def __init__(self, *, as_json: bool, colours: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._colours = colours
        self._formatter: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._formatter is None:
            self._formatter = _json_formatter() if self._as_json else _human_formatter(self._colours)
        return self._formatter.format(record)


def load_structlog() -> None:
    """Load structlog, which takes a tenth of a second: to be called in a thread, so that it does not block the loop.

    If the process has no descriptor left for that, the first record tries again.
    """
    with contextlib.suppress(OSError):
        _load_structlog()


def _load_structlog() -> None:
    """Load structlog without rich, which it uses for coloured tracebacks: half of the time, and of the memory."""
    absent = "rich" not in sys.modules
    if absent:
        sys.modules["rich"] = None  # type: ignore[assignment] # An import of it fails now.
    try:
        importlib.import_module("structlog")
    finally:
        if absent:
            del sys.modules["rich"]


def _json_formatter() -> logging.Formatter:
    _load_structlog()
    import structlog

    return structlog.stdlib.ProcessorFormatter(
        pass_foreign_args=True,
        foreign_pre_chain=[_with_fields],
        processors=[
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(default=str),
        ],
    )


def _human_formatter(colours: bool) -> logging.Formatter:
    _load_structlog()
    import structlog

    def plain_traceback(stream: TextIO, exc_info: Any) -> None:
        """Write a traceback without control characters that a peer may have sent, in an error's text."""
        text = StringIO()
        structlog.dev.plain_traceback(text, exc_info)
        stream.write(printable(text.getvalue()))

    renderer = structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=0, exception_formatter=plain_traceback)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_for_people],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


def _with_fields(logger: object, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Convert a record to keys and values, including its fields."""
    record: logging.LogRecord = entry["_record"]
    fields = entry.pop("positional_args")
    written = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    head = {
        "timestamp": written.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": entry.pop("event"),
    }
    if isinstance(fields, Mapping):
        head |= {key: value for key, value in fields.items() if key not in _RESERVED}
    return {**head, **entry}


def _for_people(logger: object, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Convert a record to one line, without control characters that a peer may have sent."""
    record: logging.LogRecord = entry["_record"]
    entry["event"] = one_line(entry["event"])
    entry["timestamp"] = datetime.fromtimestamp(record.created).strftime(_TIME_FORMAT)
    entry["level"] = record.levelname.lower()
    entry["logger"] = record.name
    return entry
