"""Options of `format("linn")`, with the names of Spark's Kafka source. They are checked before anything connects.

Law: an unknown or invalid option is refused with one line that names it. If several options set the start or the end,
they have the same precedence as in Spark's Kafka source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from linn.core.errors.tree import PredicateInvalid
from linn.core.routing.record_filter import RecordFilter
from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.place import PLACE, BrokerPlace, broker_place, check_names

LATEST, EARLIEST = -1, -2
"""Offsets that stand for the ends of a partition, in JSON as in Spark's Kafka source."""
TOPIC_OPTIONS = ("subscribe", "subscribePattern", "assign")
START_OPTIONS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
"""Options for the start, in order of precedence, as in Spark's Kafka source."""
END_OPTIONS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STRATEGY = "startingOffsetsByTimestampStrategy"
LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
KNOWN = (
    *PLACE,
    *TOPIC_OPTIONS,
    *START_OPTIONS,
    STRATEGY,
    *END_OPTIONS,
    *LIMITS,
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "includeId",
    "where",
)
MAX_TRIGGER_DELAY_MS = 15 * 60_000
"""Default of `maxTriggerDelay`, as in Spark's Kafka source."""
_DURATION = re.compile(r"(\d{1,9})\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?)")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}

Numbers = Mapping[str, Mapping[int, int]]
"""Offsets or times by topic and partition."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Start or end of a read: an end of the log, named by `default`, or offsets, or times by partition."""

    default: int
    option: str = ""
    """Name of the given option."""
    offsets: Numbers | None = None
    timestamp_ms: int | None = None
    timestamps_ms: Numbers | None = None
    is_strict: bool = False
    """Whether a time that no record has is an error; otherwise it stands for the end of the log."""

    @property
    def named(self) -> set[tuple[str, int]] | None:
        """Topics and partitions that the option names; None: it applies to all."""
        given = self.offsets if self.offsets is not None else self.timestamps_ms
        if given is None:
            return None
        return {(topic, partition) for topic, partitions in given.items() for partition in partitions}

    def time_of(self, place: tuple[str, int]) -> int | None:
        """Return the time that determines the offset in this topic and partition; None if no time does."""
        if self.timestamp_ms is not None:
            return self.timestamp_ms
        return self.timestamps_ms[place[0]][place[1]] if self.timestamps_ms is not None else None


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of one micro-batch."""

    offsets_max: int | None = None
    offsets_min: int | None = None
    delay_ms_max: int = MAX_TRIGGER_DELAY_MS
    """Longest wait for `offsets_min`."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options. One of `topics`, `pattern` and `assigned` selects the partitions to read."""

    broker: BrokerPlace
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    start: Bound = Bound(EARLIEST)
    end: Bound = Bound(LATEST)
    limits: ReadLimits = ReadLimits()
    fails_on_data_loss: bool = True
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    includes_headers: bool = False
    includes_id: bool = False
    where: str | None = None
    """Predicate over labels and routing key, which the broker applies; None: all records."""


def checked_options(given: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """Check the options of a read, whose names are case-insensitive. Raises SparkOptionInvalid."""
    options = {name.lower(): value for name, value in given.items()}
    check_names(options, KNOWN, "source")
    topics_by = [name for name in TOPIC_OPTIONS if name.lower() in options]
    if len(topics_by) > 1:
        raise SparkOptionInvalid(f"{' and '.join(topics_by)} contradict each other: give one of them")
    if not topics_by:
        hint = "" if options else "; Spark drops the options of CREATE TABLE, so use CREATE TEMPORARY VIEW"
        raise SparkOptionInvalid(f"no topic is named: give one of {', '.join(TOPIC_OPTIONS)}{hint}")
    if is_stream:
        for name in END_OPTIONS:
            if name.lower() in options:
                raise SparkOptionInvalid(f"{name} is for batch reads: a stream has no end")
    start, end = _start(options, is_stream), _bound(options, END_OPTIONS, LATEST)
    _check_order(start, end)
    return ReadOptions(
        broker=broker_place(options),
        topics=_topics(options),
        pattern=_pattern(options),
        assigned=_assigned(options),
        start=start,
        end=end,
        limits=_limits(options),
        fails_on_data_loss=flag(options, "failOnDataLoss", True),
        partitions_min=_count(options, "minPartitions"),
        records_per_partition_max=_count(options, "maxRecordsPerPartition"),
        where=_where(options),
        **included(given),
    )


def included(given: Mapping[str, str]) -> dict[str, bool]:
    """Return the optional columns that are requested. Raises SparkOptionInvalid."""
    options = {name.lower(): value for name, value in given.items()}
    return {
        "includes_headers": flag(options, "includeHeaders", False),
        "includes_id": flag(options, "includeId", False),
    }


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    if "subscribe" not in options:
        return ()
    topics = tuple(dict.fromkeys(name.strip() for name in options["subscribe"].split(",") if name.strip()))
    if not topics:
        raise SparkOptionInvalid("subscribe names no topic")
    return topics


def _where(options: Mapping[str, str]) -> str | None:
    where = options.get("where")
    if where is not None:
        try:
            RecordFilter.parse(where)
        except PredicateInvalid as error:
            raise SparkOptionInvalid(f"where: {error.text}") from error
    return where


def _pattern(options: Mapping[str, str]) -> str | None:
    pattern = options.get("subscribepattern")
    if pattern is not None and not pattern.strip():
        raise SparkOptionInvalid("subscribePattern is empty")
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


def _start(options: Mapping[str, str], is_stream: bool) -> Bound:
    """Return the start; the default of a stream is the end of the log."""
    if not is_stream:
        start = _bound(options, START_OPTIONS, EARLIEST)
    elif (text := options.get("startingoffsets", "latest").strip().lower()) in ("earliest", "latest"):
        plain = {name: value for name, value in options.items() if name != "startingoffsets"}
        start = _bound(plain, START_OPTIONS, EARLIEST if text == "earliest" else LATEST)
    else:
        start = _bound(options, START_OPTIONS, EARLIEST, refuses=False)
    strategy = options.get(STRATEGY.lower(), "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise SparkOptionInvalid(f"{STRATEGY} is error or latest, not {strategy!r}")
    return replace(start, is_strict=strategy == "error") if "Timestamp" in start.option else start


def _bound(options: Mapping[str, str], names: Sequence[str], default: int, *, refuses: bool = True) -> Bound:
    """Return the bound that the first of `names` gives. `refuses`: the end of the log that is not allowed here."""
    name = next((name for name in names if name.lower() in options), None)
    if name is None:
        return Bound(default)
    text = options[name.lower()].strip()
    if name.endswith("ByTimestamp"):
        return Bound(default, name, timestamps_ms=_numbers(text, name, lowest=0))
    if name.endswith("Timestamp"):
        if not re.fullmatch(r"\d{1,18}", text):
            raise SparkOptionInvalid(f"{name} is a time in milliseconds since 1970, not {text!r}")
        return Bound(default, name, timestamp_ms=int(text))
    word, refused = ("earliest", "latest") if default == EARLIEST else ("latest", "earliest")
    if text.lower() == word:
        return Bound(default, name)
    if text.lower() == refused:
        raise SparkOptionInvalid(f'{name} of a batch read is "{word}" or JSON, not "{refused}"')
    found = _numbers(text, name, lowest=EARLIEST)
    other_end = LATEST if default == EARLIEST else EARLIEST
    for topic, partitions in found.items():
        for partition, offset in partitions.items():
            if refuses and offset == other_end:
                raise SparkOptionInvalid(
                    f"{name} of a batch read can't be {other_end} in partition {partition} of {topic}"
                )
    return Bound(default, name, offsets=found)


def _check_order(start: Bound, end: Bound) -> None:
    """Check that no partition's start is after its end, if both are offsets or both are times. Raises
    SparkOptionInvalid.
    """
    for starts, ends in ((start.offsets, end.offsets), (start.timestamps_ms, end.timestamps_ms)):
        for topic, partitions in (starts or {}).items():
            for partition, first in partitions.items():
                last = (ends or {}).get(topic, {}).get(partition, LATEST)
                if first > last >= 0:
                    raise SparkOptionInvalid(
                        f"{start.option} has {first} for partition {partition} of {topic}, after {end.option}, {last}"
                    )


def _numbers(text: str, name: str, *, lowest: int) -> dict[str, dict[int, int]]:
    example = 'JSON such as {"orders": {"0": 23, "1": 0}}'
    ends = ", with -2 for the earliest offset and -1 for the latest" if lowest < 0 else ", in milliseconds since 1970"
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in _object(text, name, example).items():
        if not isinstance(partitions, dict):
            raise SparkOptionInvalid(f"{name} is {example}")
        for partition, number in partitions.items():
            if not re.fullmatch(r"[0-9]{1,9}", partition) or not _is_number(number, lowest):
                raise SparkOptionInvalid(f"{name} is {example}{ends}")
        found[topic] = {int(partition): number for partition, number in partitions.items()}
    return found


def duration_ms(text: str, name: str) -> int:
    """Return a duration such as 30s or 15 minutes in milliseconds. Raises SparkOptionInvalid."""
    matched = _DURATION.fullmatch(text.strip().lower())
    if matched is None:
        raise SparkOptionInvalid(f"{name} is a duration such as 15m or 30s, not {text!r}")
    unit = matched[2]
    return int(matched[1]) * (1 if unit == "ms" or unit.startswith("milli") else _UNIT_MS[unit[0]])


def _limits(options: Mapping[str, str]) -> ReadLimits:
    delay = options.get("maxtriggerdelay")
    delay_ms = MAX_TRIGGER_DELAY_MS if delay is None else duration_ms(delay, "maxTriggerDelay")
    low, high = _count(options, "minOffsetsPerTrigger"), _count(options, "maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise SparkOptionInvalid(f"minOffsetsPerTrigger is {low}, more than maxOffsetsPerTrigger, which is {high}")
    return ReadLimits(high, low, delay_ms)


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


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return an option that is true or false. Raises SparkOptionInvalid."""
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise SparkOptionInvalid(f"{name} is true or false, not {text!r}")
    return text == "true"


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text.strip()) or int(text) == 0:
        raise SparkOptionInvalid(f"{name} is a number from 1 on, not {text!r}")
    return int(text)
