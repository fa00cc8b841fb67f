"""Options of `format("linn")`, with the names of Spark's Kafka source. Pure: they are checked before anything connects.

Law: an option that is unknown, wrong or contradicts another one is refused with one line that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from linn.spark_plugin.errors import SparkOptionInvalid

LATEST, EARLIEST = -1, -2
"""Offsets that stand for the ends of a partition, in JSON as in Spark's Kafka source."""
SERVERS = "linn.bootstrap.servers"
TOPIC_OPTIONS = ("subscribe", "subscribePattern", "assign")
START_OPTIONS = ("startingOffsets", "startingTimestamp")
END_OPTIONS = ("endingOffsets", "endingTimestamp")
KNOWN = (
    SERVERS,
    *TOPIC_OPTIONS,
    *START_OPTIONS,
    *END_OPTIONS,
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "includeId",
)
NOT_YET = (
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
"""Options of Spark's Kafka source that this one does not have yet."""

Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what a job reads: offsets by partition, or a time, or the end of the log that `default` names."""

    default: int
    offsets: Offsets | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options. One of `topics`, `pattern` and `assigned` says what is read."""

    url: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    start: Bound = Bound(EARLIEST)
    end: Bound = Bound(LATEST)
    fails_on_data_loss: bool = True
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    includes_headers: bool = False
    includes_id: bool = False


def checked_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a batch read, whose names are case-insensitive. Raises SparkOptionInvalid."""
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options)
    if not options.get(SERVERS, "").strip():
        raise SparkOptionInvalid(f"{SERVERS} is missing: the broker's address, such as linn://127.0.0.1:5466")
    _one_of(options, TOPIC_OPTIONS, needed=True)
    address = options[SERVERS].strip()
    if "," in address:
        raise SparkOptionInvalid(f"{SERVERS} is the address of one broker, not {address!r}")
    return ReadOptions(
        url=address if address.startswith("linn") and ":/" in address else f"linn://{address}",
        topics=_topics(options),
        pattern=_pattern(options),
        assigned=_assigned(options),
        start=_bound(options, START_OPTIONS, EARLIEST),
        end=_bound(options, END_OPTIONS, LATEST),
        fails_on_data_loss=_flag(options, "failOnDataLoss", True),
        partitions_min=_count(options, "minPartitions"),
        records_per_partition_max=_count(options, "maxRecordsPerPartition"),
        includes_headers=_flag(options, "includeHeaders", False),
        includes_id=_flag(options, "includeId", False),
    )


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in KNOWN}
    not_yet = {name.lower(): name for name in NOT_YET}
    for name in options:
        if name in not_yet:
            raise SparkOptionInvalid(f"linn's Spark source does not have the option {not_yet[name]} yet")
        if name not in known:
            raise SparkOptionInvalid(f"linn's Spark source has no option {name!r}: it has {', '.join(KNOWN)}")


def _one_of(options: Mapping[str, str], names: tuple[str, ...], *, needed: bool = False) -> str | None:
    found = [name for name in names if name.lower() in options]
    if len(found) > 1:
        raise SparkOptionInvalid(f"{' and '.join(found)} contradict each other: give one of them")
    if needed and not found:
        raise SparkOptionInvalid(f"no topic is named: give one of {', '.join(names)}")
    return found[0] if found else None


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    if "subscribe" not in options:
        return ()
    topics = tuple(dict.fromkeys(name.strip() for name in options["subscribe"].split(",") if name.strip()))
    if not topics:
        raise SparkOptionInvalid("subscribe names no topic")
    return topics


def _pattern(options: Mapping[str, str]) -> str | None:
    pattern = options.get("subscribepattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise SparkOptionInvalid(f"subscribePattern is no regular expression: {error}") from error
    return pattern


def _assigned(options: Mapping[str, str]) -> dict[str, tuple[int, ...]] | None:
    if "assign" not in options:
        return None
    example = 'JSON such as {"orders": [0, 1]}'
    found = _object(options["assign"], "assign", example)
    for partitions in found.values():
        if not isinstance(partitions, list) or not partitions or not all(map(_is_number, partitions)):
            raise SparkOptionInvalid(f"assign is {example}")
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in found.items()}


def _bound(options: Mapping[str, str], names: tuple[str, str], default: int) -> Bound:
    name = _one_of(options, names)
    if name is None:
        return Bound(default)
    text = options[name.lower()].strip()
    if name == names[1]:
        if not re.fullmatch(r"\d{1,18}", text):
            raise SparkOptionInvalid(f"{name} is a time in milliseconds since 1970, not {text!r}")
        return Bound(default, timestamp_ms=int(text))
    word, refused = ("earliest", "latest") if default == EARLIEST else ("latest", "earliest")
    if text.lower() == word:
        return Bound(default)
    if text.lower() == refused:
        raise SparkOptionInvalid(f'{name} of a batch read is "{word}" or JSON, not "{refused}"')
    return Bound(default, offsets=_offsets(text, name, LATEST if default == EARLIEST else EARLIEST))


def _offsets(text: str, name: str, refused: int) -> dict[str, dict[int, int]]:
    example = 'JSON such as {"orders": {"0": 23, "1": 0}}'
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in _object(text, name, example).items():
        if not isinstance(partitions, dict):
            raise SparkOptionInvalid(f"{name} is {example}")
        found[topic] = {}
        for partition, offset in partitions.items():
            if not partition.isdecimal() or not _is_number(offset, EARLIEST):
                raise SparkOptionInvalid(f"{name} is {example}, with -2 for the earliest offset and -1 for the latest")
            if offset == refused:
                raise SparkOptionInvalid(f"{name} of a batch read can't be {refused} in partition {partition}")
            found[topic][int(partition)] = offset
    return found


def _object(text: str, name: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SparkOptionInvalid(f"{name} is {example}, not {text[:60]!r}") from error
    if not isinstance(found, dict) or not found:
        raise SparkOptionInvalid(f"{name} is {example}")
    return found


def _is_number(value: object, lowest: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value < 1 << 63


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise SparkOptionInvalid(f"{name} is true or false, not {text!r}")
    return text == "true"


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}", text.strip()) or int(text) == 0:
        raise SparkOptionInvalid(f"{name} is a number from 1 on, not {text!r}")
    return int(text)
