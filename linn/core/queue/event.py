"""Events of a shared subscription, as rows of its event log; docs call the log "subscription log".

Laws: applying the rows in order to a fresh subscription restores its state. Each row names the offsets it is about and
replaces their earlier state, so an offset without a row is ready and was never delivered: events lost with the tail of
the log lead to redelivery, never to a skipped record. A `Started` row replaces everything before it, so a snapshot may
stand anywhere in the log, in one record, and the records before it may be trimmed.

Layout: one version byte, then rows of 32 bytes, little-endian: kind u8, reason u8, zero u16, number u32, first i64, end
i64, argument i64. Unused fields are zero, and a row that breaks that is refused. A snapshot is a record of another
version, with the layout in `event_run`; one in the version of rows, after a `Started`, is read as well. A record that
speaks of holders begins with a table of them: byte 3, count u16, and for each since_ms i64, bytes u8, name in UTF-8;
the rest is a record of one of the versions above, whose rows have a holder's index in place of the u16 that is zero. A
record that has reasons has a table of them next: byte 4, count u16, and for each bytes u8, text in UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, starmap
from operator import lt
from typing import ClassVar, Final, TypeVar

from linn.core.errors.tree import LogCorrupt
from linn.core.queue.dead_letter import DeadReason, Ending
from linn.core.queue.event_run import (
    Columns,
    EventRun,
    Holder,
    Items,
    Snapshot,
    Tables,
    decode_snapshot,
    encode_snapshot,
)
from linn.core.queue.offset_ranges import OffsetRanges

T = TypeVar("T")

EVENT_VERSION: Final = 1
SNAPSHOT_VERSION: Final = 2
HOLDERS_VERSION: Final = 3
TEXTS_VERSION: Final = 4
OFFSET_MAX: Final = 2**63 - 1
ATTEMPTS_MAX: Final = 2**31 - 1
"""Limit at which attempts stop being counted: a client that nacks in a loop for days overflows no row."""
LOST: Final = 1 << 31
"""A flag beside the attempts of records that came back, last time, because their consumer was lost."""
DELIVERY_ID_MAX: Final = 2**62
"""Limit far above any id that can be given out, so that ids can still jump at each restart."""

Row = tuple[int, int, int, int, int, int, int]
"""(kind, reason, holder or text, number, first, end, argument)"""

_ROW = struct.Struct("<BBHIqqq")
_HOLDER = struct.Struct("<qB")


@dataclass(frozen=True, slots=True)
class Started:
    """The start of a log: all records before `offset` are settled, nothing else is known; delivery ids continue at
    `next_delivery_id`.
    """

    kind: ClassVar[int] = 1
    offset: int
    next_delivery_id: int

    def row(self) -> Row:
        return (self.kind, 0, 0, 0, self.offset, self.offset, self.next_delivery_id)


@dataclass(frozen=True, slots=True)
class Acquired:
    """[first, end) was leased for attempt `attempt`; no delivery id above `delivery_id` has been given out."""

    kind: ClassVar[int] = 2
    first: int
    end: int
    attempt: int
    delivery_id: int

    def row(self) -> Row:
        return (self.kind, 0, 0, self.attempt, self.first, self.end, self.delivery_id)


@dataclass(frozen=True, slots=True)
class Settled:
    """[first, end) is settled: acked, purged, delivered, or published elsewhere."""

    kind: ClassVar[int] = 3
    first: int
    end: int

    def row(self) -> Row:
        return (self.kind, 0, 0, 0, self.first, self.end, 0)


@dataclass(frozen=True, slots=True)
class Returned:
    """[first, end) was returned after `attempts` attempts, and is ready for the next at `ready_ms`; 0: at once.

    `ready_ms` is a wall time. When it has come, the leader says so by another event, with 0.
    """

    kind: ClassVar[int] = 4
    first: int
    end: int
    attempts: int
    ready_ms: int

    def row(self) -> Row:
        return (self.kind, 0, 0, self.attempts, self.first, self.end, self.ready_ms)


@dataclass(frozen=True, slots=True)
class Died:
    """[first, end) gets no more attempts."""

    kind: ClassVar[int] = 5
    first: int
    end: int
    attempts: int
    reason: DeadReason

    def row(self) -> Row:
        return (self.kind, self.reason, 0, self.attempts, self.first, self.end, 0)


@dataclass(frozen=True, slots=True)
class Intended:
    """Dead records [first, end) are about to be published elsewhere, with these numbers of an internal producer."""

    kind: ClassVar[int] = 11
    first: int
    end: int
    sequence: int
    producer: int

    def row(self) -> Row:
        return (self.kind, 0, 0, self.sequence, self.first, self.end, self.producer)


@dataclass(frozen=True, slots=True)
class Skipped:
    """The records before `offset` are gone from the topic's log."""

    kind: ClassVar[int] = 7
    offset: int

    def row(self) -> Row:
        return (self.kind, 0, 0, 0, self.offset, self.offset, 0)


@dataclass(frozen=True, slots=True)
class DeliveryIdsStarted:
    """A restart: delivery ids continue at `next_delivery_id`, above all that may have been given out and lost."""

    kind: ClassVar[int] = 8
    next_delivery_id: int

    def row(self) -> Row:
        return (self.kind, 0, 0, 0, 0, 0, self.next_delivery_id)


@dataclass(frozen=True, slots=True)
class Decided:
    """[first, end), which was leased as `delivery_id`, is the holder's for good: it will settle these records."""

    kind: ClassVar[int] = 9
    first: int
    end: int
    attempt: int
    delivery_id: int
    holder: Holder

    def row(self) -> Row:
        """The row without its holder's index."""
        return (self.kind, 0, 0, self.attempt, self.first, self.end, self.delivery_id)


@dataclass(frozen=True, slots=True)
class Explained:
    """[first, end) was returned or rejected for this reason, the latest that was given."""

    kind: ClassVar[int] = 10
    first: int
    end: int
    cause: str

    def row(self) -> Row:
        """The row without its text's index."""
        return (self.kind, 0, 0, 0, self.first, self.end, 0)


@dataclass(frozen=True, slots=True)
class Ended:
    """[first, end), which the same record of the log settles, ended in this way, and not by a consumer."""

    kind: ClassVar[int] = 12
    first: int
    end: int
    ending: Ending

    def row(self) -> Row:
        return (self.kind, self.ending, 0, 0, self.first, self.end, 0)


SingleEvent = (
    Started
    | Acquired
    | Settled
    | Returned
    | Died
    | Intended
    | Skipped
    | DeliveryIdsStarted
    | Decided
    | Explained
    | Ended
)
"""One row of the log."""
SubscriptionEvent = SingleEvent | EventRun | Snapshot

_FROM_ROW: Final[dict[int, Callable[[int, int, int, int, int], SingleEvent]]] = {
    Started.kind: lambda reason, number, first, end, argument: Started(first, argument),
    Acquired.kind: lambda reason, number, first, end, argument: Acquired(first, end, number, argument),
    Settled.kind: lambda reason, number, first, end, argument: Settled(first, end),
    Returned.kind: lambda reason, number, first, end, argument: Returned(first, end, number, argument),
    Died.kind: lambda reason, number, first, end, argument: Died(first, end, number, DeadReason(reason)),
    Skipped.kind: lambda reason, number, first, end, argument: Skipped(first),
    DeliveryIdsStarted.kind: lambda reason, number, first, end, argument: DeliveryIdsStarted(argument),
    Intended.kind: lambda reason, number, first, end, argument: Intended(first, end, number, argument),
    Ended.kind: lambda reason, number, first, end, argument: Ended(first, end, Ending(reason)),
}
_COLUMNS: Final = {
    Acquired.kind: Columns(numbers=True, arguments=True),
    Settled.kind: Columns(),
    Returned.kind: Columns(numbers=True, arguments=True),
    Died.kind: Columns(numbers=True, reasons=True),
    Decided.kind: Columns(numbers=True, arguments=True, holders=True),
    Explained.kind: Columns(texts=True),
    Intended.kind: Columns(numbers=True, arguments=True),
    Ended.kind: Columns(reasons=True),
}
"""Columns of rows about a range of offsets, besides the range."""
_WITH_DELIVERY_ID: Final = frozenset({Started.kind, Acquired.kind, DeliveryIdsStarted.kind, Decided.kind})
_WITH_ATTEMPT: Final = frozenset({Acquired.kind, Decided.kind})
_REASONS: Final[dict[int, frozenset[int]]] = {Died.kind: frozenset(DeadReason), Ended.kind: frozenset(Ending)}
"""The reasons that rows of a kind may have; of other kinds it is 0."""
_WITH_TABLES: Final = frozenset[type]({Decided, Explained})


def encode_events(events: Iterable[SubscriptionEvent]) -> bytes:
    """Encode events as one record of the event log. A snapshot is a record of its own."""
    some = list(events)
    if len(some) == 1 and isinstance(some[0], Snapshot):
        tables = Tables(_indexed(_holders_in(some)), _indexed(_texts_in(some)))
        return _encode_tables(tables) + bytes((SNAPSHOT_VERSION,)) + encode_snapshot(some[0], tables)
    single = single_events(some)
    if _WITH_TABLES.isdisjoint(map(type, single)):
        return b"".join([bytes((EVENT_VERSION,)), *[_ROW.pack(*event.row()) for event in single]])
    tables = Tables(_indexed(_holders_in(single)), _indexed(_texts_in(single)))
    rows = [_ROW.pack(*_row_of(event, tables)) for event in single]
    return b"".join([_encode_tables(tables), bytes((EVENT_VERSION,)), *rows])


def _indexed(items: list[T]) -> dict[T, int]:
    return {item: index for index, item in enumerate(dict.fromkeys(items))}


def _row_of(event: SingleEvent, tables: Tables) -> Row:
    row = event.row()
    if isinstance(event, Decided):
        return (*row[:2], tables.holders[event.holder], *row[3:])
    return (*row[:2], tables.texts[event.cause], *row[3:]) if isinstance(event, Explained) else row


def _encode_tables(tables: Tables) -> bytes:
    """The tables of holders and of texts, in the order of their indexes; of each nothing if it is empty."""
    parts: list[bytes] = []
    if tables.holders:
        parts += [bytes((HOLDERS_VERSION,)), len(tables.holders).to_bytes(2, "little")]
    for name, since_ms in tables.holders:
        encoded = name.encode()
        parts += [_HOLDER.pack(since_ms, len(encoded)), encoded]
    if tables.texts:
        parts += [bytes((TEXTS_VERSION,)), len(tables.texts).to_bytes(2, "little")]
    for text in tables.texts:
        encoded = text.encode()
        parts += [bytes((len(encoded),)), encoded]
    return b"".join(parts)


def _decode_holders(view: memoryview) -> tuple[list[Holder], memoryview]:
    """The table of holders at the head of a record, if it has one, and the rest of the record. Raises LogCorrupt."""
    holders: list[Holder] = []
    if not view or view[0] != HOLDERS_VERSION:
        return holders, view
    position = 3
    try:
        for _ in range(int.from_bytes(view[1:3], "little")):
            since_ms, size = _HOLDER.unpack_from(view, position)
            position += _HOLDER.size
            name = bytes(view[position : position + size]).decode()
            position += size
            holders.append(Holder(name, since_ms))
    except (struct.error, UnicodeDecodeError) as error:
        raise LogCorrupt("a record of a subscription log has holders that can't be read") from error
    if position >= len(view) or not holders or not all(holder.name and holder.since_ms >= 0 for holder in holders):
        raise LogCorrupt("a record of a subscription log ends inside its table of holders")
    return holders, view[position:]


def _decode_texts(view: memoryview) -> tuple[list[str], memoryview]:
    """The table of texts at the head of a record, if it has one, and the rest of the record. Raises LogCorrupt."""
    texts: list[str] = []
    if not view or view[0] != TEXTS_VERSION:
        return texts, view
    position = 3
    try:
        for _ in range(int.from_bytes(view[1:3], "little")):
            behind = position + 1 + view[position]
            texts.append(bytes(view[position + 1 : behind]).decode())
            position = behind
    except (IndexError, UnicodeDecodeError) as error:
        raise LogCorrupt("a record of a subscription log has reasons that can't be read") from error
    if position >= len(view) or not all(texts):
        raise LogCorrupt("a record of a subscription log ends inside its table of reasons")
    return texts, view[position:]


def decode_events(data: bytes | bytearray | memoryview) -> list[SubscriptionEvent]:
    """Decode one record of the event log; consecutive rows of one kind become a run.

    Raises:
        LogCorrupt: another version, half a row, or a row that no subscription can have written.
    """
    holders, view = _decode_holders(memoryview(data))
    texts, view = _decode_texts(view)
    events = _decode_rest(view, Items(holders, texts))
    if (holders and list(_indexed(_holders_in(events))) != holders) or (
        texts and list(_indexed(_texts_in(events))) != texts
    ):
        raise LogCorrupt(
            "a record of a subscription log has holders or reasons in its table that are unused, or there twice"
        )
    return events


def _texts_in(events: Iterable[SubscriptionEvent]) -> list[str]:
    """The reasons of events, in order; one may be there several times."""
    texts: list[str] = []
    for event in events:
        if isinstance(event, Explained):
            texts.append(event.cause)
        elif isinstance(event, EventRun):
            texts += event.texts
        elif isinstance(event, Snapshot):
            texts += [text for run in event.runs for text in run.texts]
    return texts


def _holders_in(events: Iterable[SubscriptionEvent]) -> list[Holder]:
    """The holders of decisions, in order; one may be there several times."""
    holders: list[Holder] = []
    for event in events:
        if isinstance(event, Decided):
            holders.append(event.holder)
        elif isinstance(event, Snapshot):
            holders += [holder for run in event.runs for holder in run.holders]
    return holders


def _decode_rest(view: memoryview, items: Items) -> list[SubscriptionEvent]:
    """Decode what follows a record's tables. Raises LogCorrupt."""
    if view and view[0] == SNAPSHOT_VERSION:
        snapshot = decode_snapshot(view[1:], _COLUMNS, items)
        if not _is_sound_start(snapshot) or not all(map(_is_sound, snapshot.runs)):
            raise LogCorrupt("a snapshot of a subscription has values that no broker can have written")
        return [snapshot]
    if not view or view[0] != EVENT_VERSION:
        raise LogCorrupt("a record of a subscription log has a version that this broker can't read")
    rows = view[1:]
    if len(rows) % _ROW.size:
        raise LogCorrupt("a record of a subscription log ends inside a row")
    events: list[SubscriptionEvent] = []
    position = 0
    for kind, same in groupby(bytes(rows[:: _ROW.size])):
        end = position + _ROW.size * len(list(same))
        events += _decode_rows(kind, list(_ROW.iter_unpack(rows[position:end])), items)
        position = end
    return events


def single_events(events: Iterable[SubscriptionEvent]) -> list[SingleEvent]:
    """The same events, one per row."""
    single: list[SingleEvent] = []
    for event in events:
        if isinstance(event, Snapshot):
            single.append(Started(event.offset, event.next_delivery_id))
            single += single_events(event.runs)
        elif isinstance(event, EventRun) and event.kind == Decided.kind:
            single += map(Decided, event.firsts, event.ends, event.numbers, event.arguments, event.holders)
        elif isinstance(event, EventRun) and event.kind == Explained.kind:
            single += map(Explained, event.firsts, event.ends, event.texts)
        elif isinstance(event, EventRun):
            make, unused = _FROM_ROW[event.kind], (0,) * len(event.firsts)
            columns = (event.reasons or unused, event.numbers or unused, event.firsts, event.ends)
            single += map(make, *columns, event.arguments or unused)
        else:
            single.append(event)
    return single


def _decode_rows(kind: int, rows: list[Row], items: Items) -> list[SubscriptionEvent]:
    """Decode rows of one kind."""
    if kind == Decided.kind:
        return [_decode_decided(row, items.holders) for row in rows]
    if kind == Explained.kind:
        return [_decode_explained(row, items.texts) for row in rows]
    if len(rows) > 1 and (has := _COLUMNS.get(kind)) is not None:
        _, reasons, zeros, numbers, firsts, ends, arguments = zip(*rows, strict=True)
        others = list(zip((numbers, arguments, reasons), has[:3], strict=True))
        run = EventRun(kind, firsts, ends, *[column if used else () for column, used in others])
        if _is_sound(run) and not any(zeros) and not any(any(column) for column, used in others if not used):
            return [run]
    return [_decode_row(row) for row in rows]


def _is_sound_start(snapshot: Snapshot) -> bool:
    return snapshot.offset >= 0 and 0 <= snapshot.next_delivery_id <= DELIVERY_ID_MAX


def _is_sound(run: EventRun) -> bool:
    """Whether a subscription can have written these rows."""
    return (
        min(run.firsts) >= 0
        and all(map(lt, run.firsts, run.ends))
        and (not run.arguments or 0 <= min(run.arguments) <= max(run.arguments) <= _argument_max(run.kind))
        and _REASONS.get(run.kind, frozenset()).issuperset(run.reasons)
        and (run.kind not in _WITH_ATTEMPT or min(run.numbers) > 0)
    )


def _argument_max(kind: int) -> int:
    return DELIVERY_ID_MAX if kind in _WITH_DELIVERY_ID else OFFSET_MAX


def _decode_row(row: Row) -> SingleEvent:
    kind, reason, _, number, first, end, argument = row
    make = _FROM_ROW.get(kind)
    sound = (
        (0 <= first < end if kind in _COLUMNS else first >= 0)
        and 0 <= argument <= _argument_max(kind)
        and reason in _REASONS.get(kind, (0,))
        and (kind != Acquired.kind or number > 0)
    )
    event = make(reason, number, first, end, argument) if make is not None and sound else None
    if event is None or event.row() != row:
        raise LogCorrupt(f"a subscription log has a row that no broker can have written: {row}")
    return event


def _decode_decided(row: Row, holders: Sequence[Holder]) -> Decided:
    _, zero, holder, attempt, first, end, delivery_id = row
    is_sound = 0 <= first < end and attempt > 0 and 0 <= delivery_id <= DELIVERY_ID_MAX
    if zero or not is_sound or holder >= len(holders):
        raise LogCorrupt(f"a subscription log has a row that no broker can have written: {row}")
    return Decided(first, end, attempt, delivery_id, holders[holder])


def _decode_explained(row: Row, texts: Sequence[str]) -> Explained:
    _, zero, text, number, first, end, argument = row
    if zero or number or argument or not 0 <= first < end or text >= len(texts):
        raise LogCorrupt(f"a subscription log has a row that no broker can have written: {row}")
    return Explained(first, end, texts[text])


class EventBuffer:
    """The events since the last `take`, coalesced: traffic in order is two rows for any number of calls.

    Settled offsets go last, because no later event of the same buffer can be about them. The buffer is one record of
    the log: all of it is written or none, which makes that reordering invisible.
    """

    __slots__ = ("_acquired", "_events", "settled")

    def __init__(self) -> None:
        self._events: list[SubscriptionEvent] = []
        self.settled = OffsetRanges()
        """Offsets of the one or more `Settled(...)`."""
        self._acquired: tuple[int, int, int, int] | None = None

    def acquired(self, first: int, end: int, attempt: int, delivery_id: int) -> None:
        """Add `Acquired(...)`, joined with the previous grant if it continues it."""
        open_run = self._acquired
        if open_run is not None:
            if open_run[1] == first and open_run[2] == attempt:
                first = open_run[0]
            else:
                self._events.append(Acquired(*open_run))
        self._acquired = (first, end, attempt, delivery_id)

    def add(self, event: SubscriptionEvent) -> None:
        """Add any other event, joined with the previous one if it continues it."""
        if self._acquired is not None:
            self._events.append(Acquired(*self._acquired))
            self._acquired = None
        joined = _joined(self._events[-1], event) if self._events else None
        if joined is not None:
            self._events[-1] = joined
        else:
            self._events.append(event)

    def take(self) -> list[SubscriptionEvent]:
        """Return the events so far, in order, and empty the buffer."""
        events = self._events
        if self._acquired is not None:
            events.append(Acquired(*self._acquired))
        events += starmap(Settled, self.settled)
        self._events = []
        self.settled = OffsetRanges()
        self._acquired = None
        return events

    def __len__(self) -> int:
        """The number of events, of rows of the log."""
        return len(self._events) + len(self.settled) + (self._acquired is not None)


def _joined(last: SubscriptionEvent, event: SubscriptionEvent) -> SubscriptionEvent | None:
    """One event for both, if they are alike and `event` begins where `last` ends; otherwise None."""
    match last, event:
        case Returned(first, end, attempts, ready_ms), Returned(start, stop, again, again_ms) if (
            end == start and attempts == again and ready_ms == again_ms
        ):
            return Returned(first, stop, attempts, ready_ms)
        case Died(first, end, attempts, reason), Died(start, stop, again, why) if (
            end == start and attempts == again and reason == why
        ):
            return Died(first, stop, attempts, reason)
        case Explained(first, end, cause), Explained(start, stop, other) if end == start and cause == other:
            return Explained(first, stop, cause)
        case Ended(first, end, ending), Ended(start, stop, other_ending) if end == start and ending == other_ending:
            return Ended(first, stop, ending)
    return None


def clip_event(event: SubscriptionEvent, end: int) -> SubscriptionEvent | None:
    """Cut an event down to a topic's log that ends at `end`; None where nothing is left of it.

    The state log may have outlived records of the data log that were never synced. Their offsets will be given to other
    records, which were not delivered or settled yet.
    """
    if isinstance(event, DeliveryIdsStarted):
        return event
    if isinstance(event, EventRun | Snapshot):
        return event.clipped(end)
    if isinstance(event, Started | Skipped):
        return event if event.offset <= end else replace(event, offset=end)
    if event.end <= end:
        return event
    if event.first >= end:
        return None
    return replace(event, end=end)
