"""Argument checks: the call with a wrong argument fails, with the argument's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from linn.core.batch.record import DUE_MS_MAX, Headers
from linn.core.errors.texts import reason_text
from linn.core.errors.tree import LinnError, MessageInvalid

I32_MAX = (1 << 31) - 1
U32_MAX = (1 << 32) - 1
I64_MAX = (1 << 63) - 1
U64_MAX = (1 << 64) - 1
_WAIT_S_MAX = U32_MAX / 1000
_SHOWN_CHARACTERS_MAX = 80
HeadersInput = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


def shown(value: object) -> str:
    """Return a value's `repr`, shortened for an error text."""
    try:
        return repr(value)[:_SHOWN_CHARACTERS_MAX]
    except ValueError:  # An int of more digits than Python writes.
        return f"so large a {type(value).__name__}"


def checked_number(number: object, what: str, highest: int, lowest: int = 0, or_none: str = "") -> int:
    """Check an int from `lowest` to `highest`; `or_none`: meaning of None, for the error. Raises MessageInvalid."""
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number <= highest:
        none = f", or None, which {or_none}" if or_none else ""
        raise MessageInvalid(f"{what} must be a whole number from {lowest} to {highest}{none}; not {shown(number)}")
    return int(number)


def checked_span(span: object, what: str) -> float:
    """Check a length of time in any unit: a number from 0 to infinity. Raises MessageInvalid."""
    if not isinstance(span, int | float) or not span >= 0:  # NaN fails this as well.
        raise MessageInvalid(f"{what} must be a number of at least 0, not {shown(span)}")
    try:
        return float(span)
    except OverflowError:
        raise MessageInvalid(f"{what} must be a number of at least 0, not {shown(span)}") from None


def checked_wait(wait_s: object) -> float:
    """Check a number of seconds that a broker can be asked to wait. Raises MessageInvalid."""
    span = checked_span(wait_s, "wait_s")
    if span > _WAIT_S_MAX:
        raise MessageInvalid(f"wait_s must be at most {_WAIT_S_MAX:g} seconds, not {shown(wait_s)}")
    return span


ANYWHERE = (False, 0, 0)
"""Pull position without a partition: (whether there is a partition, partition, offset)."""


def checked_place(partition: int | None, start: int) -> tuple[bool, int, int]:
    """Check a pull position. Raises MessageInvalid."""
    if partition is None:
        return ANYWHERE
    checked_number(partition, "partition", I32_MAX)
    checked_number(start, "start", I64_MAX)
    return True, partition, start


def checked_timeout(timeout_s: object) -> float | None:
    """Check a time limit of a call in seconds; None: no limit. Raises MessageInvalid."""
    return None if timeout_s is None else checked_span(timeout_s, "timeout_s")


def checked_text(text: object, what: str) -> str:
    """Check that a text can be sent. Raises MessageInvalid."""
    if not isinstance(text, str):
        raise MessageInvalid(f"{what} must be text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MessageInvalid(f"{what} is not valid Unicode") from error
    return text


def as_bytes(value: object, what: str) -> bytes:
    """Copy a bytes-like `value` to bytes. Raises MessageInvalid for any other type."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise MessageInvalid(f"{what} must be bytes, not {type(value).__name__}")


def checked_headers(headers: HeadersInput | None) -> Headers:
    """Check headers; return them in order. Raises MessageInvalid."""
    if not headers:
        return ()
    try:
        entries = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        for name, value in entries:
            name.encode()
            if value is not None and type(value) is not bytes:
                raise MessageInvalid(f"header {name!r} must be bytes or None, not {type(value).__name__}")
    except LinnError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise MessageInvalid(f"headers must be (text, bytes) pairs or a mapping: {error}") from error
    return entries


def checked_reason(reason: object) -> str:
    """Check a reason, and return it as it is sent: printable, on one line, and truncated. Raises MessageInvalid."""
    if not isinstance(reason, str):
        raise MessageInvalid(f"a reason must be text, not {type(reason).__name__}")
    return reason_text(reason)


def checked_topics(topics: str | Sequence[str], group: str | None) -> tuple[str, ...]:
    """Check a consumer's topic or topics; only a member of a group reads several. Raises MessageInvalid."""
    named = tuple(topics) if isinstance(topics, list | tuple) else (topics,)
    for topic in named:
        checked_text(topic, "a consumer's topic")
    if not named or len(set(named)) < len(named):
        raise MessageInvalid(f"a consumer needs a topic, or several that differ, not {shown(topics)}")
    if len(named) > 1 and not group:
        raise MessageInvalid("a consumer of several topics needs a group")
    return named


def due_ms_of(at: datetime | int | None, delay_ms: int) -> int:
    """The time from which a message may be delivered, in ms since 1970; 0 for None.

    Raises MessageInvalid: it has no zone, lies before 1970 or after the year 9999, or there is a delay as well.
    """
    if at is None:
        return 0
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise MessageInvalid(f"at must have a time zone, such as datetime.now(UTC), unlike {at.isoformat()}")
        at = timestamp_ms_of(at)
    found = checked_number(at, "at", DUE_MS_MAX, 1)
    if delay_ms:
        raise MessageInvalid("a message has a delay or a time, not both")
    return found


def timestamp_ms_of(moment: datetime) -> int:
    """Convert to milliseconds since 1970. Raises MessageInvalid if the machine can't."""
    try:
        return int(moment.timestamp() * 1000)
    except (OverflowError, ValueError, OSError) as error:
        raise MessageInvalid(f"{moment.isoformat()} can't be converted to milliseconds since 1970: {error}") from error
