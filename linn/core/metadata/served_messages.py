"""Messages between a server of metadata and its clients, and their frames. No I/O.

A frame is a length of 4 bytes, the most significant one first, and so many bytes of JSON: one message. Both ends are
the same version of linn, on one machine, for one user: the first message says which, and no later message is optional.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from linn.core.errors.metadata import MetadataError
from linn.core.errors.tree import LimitExceeded

HELLO_BYTES_MAX = 1024
"""Limit of the first message, which has a version in it: a stranger costs no more."""
REQUEST_BYTES_MAX = 2 << 20
"""Limit of a request: more than the 1.5 MiB that etcd takes, so that what fits there is not refused here."""
ANSWER_BYTES_MAX = 64 << 20
"""Limit of an answer, which may be all keys: 1 KiB for each partition of 10,000 topics with 6 partitions."""
REQUESTS_MAX = 16
"""Requests of a connection that are performed at a time; then its further ones wait in the socket."""
_LENGTH_BYTES = 4

Number = Annotated[int, msgspec.Meta(ge=0)]
TtlS = Annotated[float, msgspec.Meta(gt=0, le=24 * 3600.0)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages."""


# --- from a client ---------------------------------------------------------------------------------------------------


class Hello(_Message, tag="hello", frozen=True):
    """The first message. The answer is `Done`, or `Entries` for a watch, or `Failed`."""

    version: str
    """The client's version of linn."""
    watches: bool
    """Whether the connection is for one watch, and no requests."""


class Load(_Message, tag="load", frozen=True):
    """A request for all keys. The answer is `Entries`."""

    number: Number


class Put(_Message, tag="put", frozen=True):
    """A request to write. The answer is `Done` with the revision."""

    number: Number
    changes: dict[str, Any]
    removed: list[str]
    conditions: dict[str, Number]
    lease: Number


class Grant(_Message, tag="grant", frozen=True):
    """A request for a lease. The answer is `Done` with its number."""

    number: Number
    ttl_s: TtlS


class Renew(_Message, tag="renew", frozen=True):
    """A request to renew a lease. The answer is `Done`."""

    number: Number
    lease: Number


class Revoke(_Message, tag="revoke", frozen=True):
    """A request to end a lease. The answer is `Done`."""

    number: Number
    lease: Number


Request = Load | Put | Grant | Renew | Revoke

# --- from the server -------------------------------------------------------------------------------------------------


class Done(_Message, tag="done", frozen=True):
    """The answer to a request that was performed."""

    number: Number
    result: Number = 0


class Entries(_Message, tag="entries", frozen=True):
    """Keys: all of them, or the changed ones of a watch, for which `number` is 0."""

    number: Number
    revision: Number
    entries: dict[str, tuple[Number, Any] | None]
    """(revision, value) by key; None: it was removed."""


class Failed(_Message, tag="failed", frozen=True):
    """The answer to a request that failed. Number 0: the connection ends."""

    number: Number
    code: str
    text: str


Answer = Done | Entries | Failed
HELLO = msgspec.json.Decoder(Hello)
REQUEST: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
ANSWER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
M = TypeVar("M")

# --- frames ----------------------------------------------------------------------------------------------------------


def framed(message: _Message, bytes_max: int) -> bytes:
    """Encode a message as a frame. Raises LimitExceeded: it has more than `bytes_max` bytes."""
    body = msgspec.json.encode(message)
    if len(body) > bytes_max:
        raise LimitExceeded(
            f"a message for the metadata store has {len(body)} bytes, and at most {bytes_max} are taken"
        )
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def decoded(decoder: msgspec.json.Decoder[M], body: bytes) -> M:
    """Decode the body of a frame. Raises MetadataError: it is no such message."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MetadataError(f"a message of linn or its metadata store is wrong: {error!s:.200}") from error


class Frames:
    """Bodies of frames out of received bytes. It holds at most one frame and one piece of received bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append received bytes."""
        self._buffer += data

    def next(self, bytes_max: int) -> bytes | None:
        """Take the next body; None: it is not complete. Raises MetadataError: it has more than `bytes_max` bytes."""
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        size = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        if size > bytes_max:
            raise MetadataError(f"a message of linn or its metadata store has {size} bytes, more than {bytes_max}")
        end = _LENGTH_BYTES + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH_BYTES:end])
        del self._buffer[:end]
        return body
