"""Requests to etcd and its answers, as the JSON gateway of API 3 writes them, without I/O.

Source: https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ and rpc.proto. In JSON, 64-bit numbers are text, zeros are
missing, and bytes are Base64.

Laws: whatever comes is a value of its type or a MetadataError; nothing is guessed. The keys of a cluster begin with
`/linn/NAME/`, which neither side of the store sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from linn.api import NO_LEASE, REMOVED, LeaseLost, LimitExceeded, LinnError, MetadataError, Stored

REQUEST_BYTES_MAX = 4 << 20
"""Limit of a request: etcd refuses writes of more than 1.5 MiB unless it is told otherwise (`--max-request-bytes`)."""
PIECE_KEYS = 500
SAID_CHARACTERS_MAX = 200
"""Limit of etcd's words in an error of ours."""
_LINEARIZABLE = {"serializable": False}
_REFUSALS = {3, 5, 6, 7, 8, 9, 11, 12, 16}
"""Codes of gRPC with which etcd says that it did nothing: the request, its time or its sender is wrong."""
_NOT_ASKED = ("etcdserver: no leader",)
"""Errors under codes that say less, which etcd raises before it does anything."""
_RESOURCES, _UNAUTHENTICATED = 8, 16

Int64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Revision = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
T = TypeVar("T")


class Header(msgspec.Struct, frozen=True):
    """The head of every answer."""

    cluster_id: int = 0
    revision: Int64 = 0


class KeyValue(msgspec.Struct, frozen=True):
    """A key with its last write."""

    key: bytes
    mod_revision: Revision
    value: bytes = b""


class RangeAnswer(msgspec.Struct, frozen=True):
    """The answer to a range."""

    header: Header
    kvs: list[KeyValue] = []
    more: bool = False


class WriteAnswer(msgspec.Struct, frozen=True):
    """The answer to a transaction."""

    header: Header
    succeeded: bool = False


class GrantAnswer(msgspec.Struct, frozen=True):
    """The answer to a lease's grant."""

    header: Header
    number: Revision = msgspec.field(name="ID")
    ttl_s: Revision = msgspec.field(name="TTL")


class Renewal(msgspec.Struct, frozen=True):
    """The state of a lease after its renewal; a time to live of 0: it has ended."""

    header: Header
    number: Revision = msgspec.field(name="ID")
    ttl_s: Int64 = msgspec.field(name="TTL", default=0)


class RenewalLine(msgspec.Struct, frozen=True):
    """A line of the answer to a renewal, which is a stream."""

    result: Renewal


class HeaderAnswer(msgspec.Struct, frozen=True):
    """An answer of which nothing else is needed."""

    header: Header


class TokenAnswer(msgspec.Struct, frozen=True):
    """The answer to a login."""

    header: Header
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=8192, pattern=r"^[\x21-\x7e]+$")]


class StreamError(msgspec.Struct, frozen=True):
    """An error in a stream."""

    message: str = ""
    grpc_code: int = 0


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error: as text, or as an object in a stream."""

    error: str | StreamError
    message: str = ""
    code: int = 0


class Refusal(NamedTuple):
    """An error of etcd's."""

    text: str
    code: int
    """The code of gRPC; 0: not told."""
    is_sure: bool
    """Whether nothing was done."""

    @property
    def wants_login(self) -> bool:
        """Whether another token may help."""
        return self.code == _UNAUTHENTICATED or "invalid auth token" in self.text

    @property
    def is_of_the_member(self) -> bool:
        """Whether another member, or the same one later, may say something else."""
        return not self.is_sure or self.text in _NOT_ASKED or "too many requests" in self.text

    def as_error(self) -> LinnError:
        """Return the error for the caller."""
        if "lease not found" in self.text:
            return LeaseLost("the lease has ended")
        if any(words in self.text for words in ("too many operations", "too large", "larger than max")):
            return LimitExceeded(f"the write is too large for etcd: {self.text}")
        return MetadataError(f"etcd refused: {self.text}")


def decoded(body: bytes, kind: type[T]) -> T:
    """Decode an answer. Raises MetadataError, which names the fault."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MetadataError(f"it answered what is no answer of etcd's: {error!s:.{SAID_CHARACTERS_MAX}}") from error


def refusal_of(status: int, body: bytes) -> Refusal:
    """Read the answer to a request that failed. Never raises: without an error of etcd's nothing is sure."""
    try:
        found = decoded(body, ErrorAnswer)
    except MetadataError:
        return Refusal(f"HTTP status {status}", 0, is_sure=False)
    if isinstance(found.error, StreamError):
        text, code = found.error.message, found.error.grpc_code
    else:
        text, code = found.message or found.error, found.code
    text = shown(text)
    return Refusal(text, code, code in _REFUSALS or text in _NOT_ASKED)


def shown(text: str) -> str:
    """Return words of etcd's as part of a line."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text[:SAID_CHARACTERS_MAX].split()))


class Keys:
    """The keys of one cluster in etcd."""

    def __init__(self, cluster: str) -> None:
        self.prefix = f"/linn/{cluster}/".encode()
        self.end = self.prefix[:-1] + bytes([self.prefix[-1] + 1])
        """The first key behind all of them."""

    def outside(self, key: str) -> bytes:
        """Return a key as etcd has it. Raises MetadataError: it is no text in UTF-8."""
        try:
            return self.prefix + key.encode()
        except UnicodeEncodeError as error:
            raise MetadataError(f"the key {key!r:.80} is no text in UTF-8") from error

    def inside(self, key: bytes) -> str:
        """Return a key of etcd's as the store has it. Raises MetadataError: it is none of the cluster's."""
        if not key.startswith(self.prefix):
            raise MetadataError(f"it answered with {key!r:.80}, which was not asked for")
        try:
            return key[len(self.prefix) :].decode()
        except UnicodeDecodeError as error:
            raise MetadataError(f"the key {key!r:.80} in etcd is no text in UTF-8") from error

    def stored(self, entry: KeyValue) -> Stored:
        """Return the value of a key. Raises MetadataError: it is no JSON."""
        try:
            return Stored(entry.mod_revision, msgspec.json.decode(entry.value))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise MetadataError(f"the value of {entry.key!r:.80} in etcd is no JSON: {error!s:.80}") from error

    # --- requests and answers ---

    def range_request(self) -> bytes:
        """Ask for all keys as they are now."""
        return msgspec.json.encode({"key": self.prefix, "range_end": self.end, **_LINEARIZABLE})

    def revision_request(self) -> bytes:
        """Ask for the revision, as it is now."""
        return msgspec.json.encode({"key": self.prefix, "count_only": True, **_LINEARIZABLE})

    def read(self, answer: RangeAnswer) -> Iterator[Mapping[str, Stored]]:
        """Yield the keys of an answer, in pieces that take some milliseconds each. Raises MetadataError."""
        if answer.more:
            raise MetadataError("it answered with a part of the keys")
        revision = answer.header.revision
        if revision < 1 or any(entry.mod_revision > revision for entry in answer.kvs):
            raise MetadataError(f"it answered with keys that are newer than its revision {revision}")
        for at in range(0, len(answer.kvs), PIECE_KEYS):
            yield {self.inside(entry.key): self.stored(entry) for entry in answer.kvs[at : at + PIECE_KEYS]}

    def write_request(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int) -> bytes:
        """Ask for a write under conditions. Raises LimitExceeded: it has more than REQUEST_BYTES_MAX."""
        compare = [
            {"target": "MOD", "result": "EQUAL", "key": self.outside(key), "mod_revision": str(revision)}
            for key, revision in conditions.items()
        ]
        body = msgspec.json.encode(
            {"compare": compare, "success": [self._operation(*it, lease) for it in changes.items()]}
        )
        if len(body) > REQUEST_BYTES_MAX:
            raise LimitExceeded(f"the write has {len(body):,} bytes, and {REQUEST_BYTES_MAX:,} are the limit")
        return body

    def _operation(self, key: str, value: Any, lease: int) -> dict[str, Any]:
        if value is REMOVED:
            return {"request_delete_range": {"key": self.outside(key)}}
        put: dict[str, Any] = {"key": self.outside(key), "value": msgspec.json.encode(value)}
        return {"request_put": put if lease == NO_LEASE else {**put, "lease": str(lease)}}

    def watch_request(self, start_revision: int) -> bytes:
        """Ask for all changes from a revision on."""
        create = {"key": self.prefix, "range_end": self.end, "start_revision": str(start_revision)}
        return msgspec.json.encode({"create_request": {**create, "progress_notify": True}})


def grant_request(ttl_s: float) -> bytes:
    """Ask for a lease; etcd counts whole seconds."""
    return msgspec.json.encode({"TTL": str(math.ceil(ttl_s))})


def lease_request(lease: int) -> bytes:
    """Ask for something about a lease."""
    return msgspec.json.encode({"ID": str(lease)})


def login_request(user: str, password: str) -> bytes:
    """Ask for a token."""
    return msgspec.json.encode({"name": user, "password": password})


def renewed(body: bytes, lease: int) -> None:
    """Read the answer to a renewal. Raises LeaseLost: the lease has ended; MetadataError."""
    found = decoded(body, RenewalLine).result
    if found.number != lease:
        raise MetadataError(f"it answered about the lease {found.number}, and was asked about {lease}")
    if found.ttl_s == 0:
        raise LeaseLost(f"the lease {lease} has ended")
