"""WatchMessages: the changes in the answer to a watch, without I/O.

The answer is a line of JSON for each message, without an end. A message has the events of one or several writes, and
never a part of a write's: the request does not ask for fragments.

Laws: the revisions of events grow from one message to the next. A line that is no message, breaks this order, or ends
the watch raises MetadataUnavailable: another watch begins with all keys. A line without an end takes bounded memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from linn.api import Changes, MetadataError, MetadataUnavailable, Stored
from linn.metadata_stores.etcd.messages import Header, Int64, Keys, KeyValue, StreamError, decoded, shown

LINE_BYTES_MAX = 16 << 20
"""Limit of a message: ten writes of etcd's largest size, or everything that a cluster changes while a reader is away.
A watch with more is lost, and another one reads the keys as they are."""


class Event(msgspec.Struct, frozen=True):
    """A written or removed key."""

    kv: KeyValue
    type: Literal["PUT", "DELETE"] = "PUT"


class Message(msgspec.Struct, frozen=True):
    """A message of a watch."""

    header: Header
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: Int64 = 0
    fragment: bool = False
    events: list[Event] = []


class Line(msgspec.Struct, frozen=True):
    """A line of the answer."""

    result: Message | None = None
    error: StreamError | None = None


class WatchMessages:
    """Reads the answers to watches that follow one another."""

    def __init__(self, keys: Keys, seen: int) -> None:
        """`seen`: the revision of the snapshot."""
        self._keys = keys
        self.seen = seen
        """The last revision of which the changes are known."""
        self._floor = seen
        self._line = bytearray()

    def begin(self) -> int:
        """Begin with another answer, and return the revision from which to ask for it."""
        self._line.clear()
        self._floor = self.seen
        return self.seen + 1

    def feed(self, piece: bytes) -> Sequence[Changes]:
        """Take a piece of the answer; returns the changes of the messages that it completes.

        Raises MetadataUnavailable: the watch is lost.
        """
        found = list[Changes]()
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._add(end)
            line = bytes(self._line)
            self._line.clear()
            if line.strip():
                found += self._changes(line)
        self._add(rest)
        return found

    def _add(self, part: bytes) -> None:
        if len(self._line) + len(part) > LINE_BYTES_MAX:
            self._line.clear()
            raise MetadataUnavailable(f"a watch of etcd's is lost: a message has more than {LINE_BYTES_MAX:,} bytes")
        self._line += part

    def _changes(self, line: bytes) -> Sequence[Changes]:
        try:
            read = decoded(line, Line)
            if read.error is not None or read.result is None:
                raise MetadataError(shown(read.error.message if read.error is not None else "") or "an empty message")
            return self._events(read.result)
        except MetadataError as error:
            raise MetadataUnavailable(f"a watch of etcd's is lost: {error.text}") from error

    def _events(self, message: Message) -> Sequence[Changes]:
        """Return the changes of a message. Raises MetadataError."""
        if message.compact_revision:
            raise MetadataError(f"the changes up to revision {message.compact_revision} are no longer there")
        if message.canceled or message.fragment:
            raise MetadataError(shown(message.cancel_reason) or "etcd has ended it")
        entries, last = dict[str, Stored | None](), self.seen
        for event in message.events:
            revision = event.kv.mod_revision
            if revision <= self._floor:
                continue  # The snapshot has it.
            if revision <= self.seen or revision < last:
                raise MetadataError(f"a change of revision {revision} came after one of {max(last, self.seen)}")
            last = revision
            key = self._keys.inside(event.kv.key)
            entries[key] = self._keys.stored(event.kv) if event.type == "PUT" else None
        if not entries:
            return ()
        self.seen = last
        return (Changes(last, entries),)
