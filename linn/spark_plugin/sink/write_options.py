"""Options and columns of a write. They are checked without I/O, before anything connects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from linn.core.transactions.event import IDENTITY_CHARACTERS_MAX
from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.place import PLACE, BrokerPlace, broker_place, check_names
from linn.spark_plugin.source.options import duration_ms

NAME, NUMBER, TIMEOUT = "linn.transaction.name", "linn.transaction.number", "linn.transaction.timeout"
IDENTITY = "linn.transaction.identity"
KNOWN = (*PLACE, "topic", "exchange", NAME, NUMBER, IDENTITY, TIMEOUT, "checkpointLocation", "queryName")
"""The last two are Spark's own, which it passes on."""
TIMEOUT_S = 900.0
"""Default time after which the broker aborts an uncommitted write."""
BYTES = ("binary", "string")
TYPES: Mapping[str, tuple[str, ...]] = {
    "key": BYTES,
    "value": BYTES,
    "topic": ("string",),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "routing_key": ("string",),
    "labels": ("map<string,string>",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""Columns that a write takes, and their types in Spark; other columns are ignored."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options of a write."""

    broker: BrokerPlace
    topic: str | None = None
    exchange: str | None = None
    timeout_s: float = TIMEOUT_S
    name: str | None = None
    """Transactional name of batch writes, by which the broker knows earlier writes."""
    number: int | None = None
    """Number of this write under `name`."""
    identity: str | None = None
    """Text that tells this write from another with the same number; None: its rows identify it."""


def checked_write(given: Mapping[str, str], columns: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Check the options of a write, whose names are case-insensitive, and its columns, by name, with their types.

    Raises SparkOptionInvalid.
    """
    options = {name.lower(): value for name, value in given.items()}
    check_names(options, KNOWN, "sink")
    topic, exchange = options.get("topic"), options.get("exchange")
    _check_columns(columns, has_target=topic is not None or exchange is not None)
    if topic is not None and exchange is not None:
        raise SparkOptionInvalid("topic and exchange contradict each other: give one of them")
    if exchange is not None and "partition" in columns:
        raise SparkOptionInvalid("an exchange chooses partitions itself: drop the column partition")
    name, number, identity = options.get(NAME), options.get(NUMBER), options.get(IDENTITY)
    if (name is None) != (number is None):
        raise SparkOptionInvalid(f"{NAME} and {NUMBER} go together")
    if name is not None and is_stream:
        raise SparkOptionInvalid(f"{NAME} is for batch writes: a streaming query has the numbers of its batches")
    if number is not None and not re.fullmatch(r"\d{1,18}", number.strip()):
        raise SparkOptionInvalid(f"{NUMBER} is a number from 0 on, not {number!r}")
    if identity is not None and (number is None or not 0 < len(identity) <= IDENTITY_CHARACTERS_MAX):
        raise SparkOptionInvalid(f"{IDENTITY} goes with {NUMBER}, and has 1 to {IDENTITY_CHARACTERS_MAX} characters")
    timeout = options.get(TIMEOUT.lower())
    timeout_s = TIMEOUT_S if timeout is None else duration_ms(timeout, TIMEOUT) / 1000
    if not 0 < timeout_s <= 3600:
        raise SparkOptionInvalid(f"{TIMEOUT} is more than 0s and at most 1h, not {timeout}")
    counted = None if number is None else int(number)
    return WriteOptions(broker_place(options), topic, exchange, timeout_s, name, counted, identity)


def _check_columns(columns: Mapping[str, str], *, has_target: bool) -> None:
    for name in columns:
        if name not in TYPES and name.lower() in TYPES:
            raise SparkOptionInvalid(f"the column {name} would be passed over: call it {name.lower()}")
    if "value" not in columns:
        raise SparkOptionInvalid(f"the column value is missing: there are {', '.join(columns)}")
    for name, types in TYPES.items():
        if name in columns and columns[name] not in types:
            raise SparkOptionInvalid(f"the column {name} is {' or '.join(types)}, not {columns[name]}")
    if not has_target and "topic" not in columns:
        raise SparkOptionInvalid("no topic is named: give the option topic or exchange, or a column topic")
