"""Encoding and decoding of messages, one Frame at a time. No I/O, and no state: `connection` has the state.

Laws: input from a peer raises nothing but ProtocolError; reading takes time and memory proportional to the frame's
bytes, whatever its pointers claim.
"""

from __future__ import annotations

import contextlib
import struct
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import capnp

from linn.core.batch import schema
from linn.core.batch.flat_message import Buffer
from linn.core.errors.names import NAME_CHARACTERS_MAX
from linn.core.errors.tree import MessageInvalid, ProtocolError
from linn.wire import messages
from linn.wire.messages import Message
from linn.wire.settle_reader import read_settle

ENTRIES_MAX = 65_536
"""Longest list in a control message: the number of entries that a client may settle at once."""
NESTING_MAX = 8
"""Limit of the nesting; the deepest message, a description, has four levels."""


class Decoded(NamedTuple):
    """One control message."""

    correlation: int
    batches: int
    message: Message


def camel(name: str) -> str:
    """The schema's spelling of a snake-case name."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class _Layout:
    """The layout of one message class in the schema: computed once, from its annotations."""

    def __init__(self, cls: type[Message]) -> None:
        self.cls = cls
        self.member = camel(cls.__name__[0].lower() + cls.__name__[1:])
        self.scalars: list[tuple[str, str]] = []
        self.enums: list[tuple[str, str]] = []
        self.lists: list[tuple[str, str]] = []
        self.nested: list[tuple[str, str, type[Message]]] = []
        for name, hint in typing.get_type_hints(cls).items():
            item = next(iter(typing.get_args(hint)), None)
            if item is None:
                (self.enums if name in _ENUMS.get(cls.__name__, ()) else self.scalars).append((name, camel(name)))
            elif issubclass(item, Message):
                self.nested.append((name, camel(name), item))
            else:
                self.lists.append((name, camel(name)))

    def write(self, target: Any, message: Message) -> None:
        """Write a message. Raises MessageInvalid if the value of a field does not fit the schema."""
        name = ""
        try:
            for name, place in self.scalars:
                setattr(target, place, getattr(message, name))
            for name, place in self.enums:
                setattr(target, place, int(getattr(message, name)))
            for name, place in self.lists:
                if items := getattr(message, name):  # An empty list is encoded as a null pointer.
                    setattr(target, place, items)
        except (capnp.KjException, OverflowError, TypeError, ValueError) as error:
            raise MessageInvalid(f"{self.member}: {name} can't be {_shown(getattr(message, name))}") from error
        for name, place, cls in self.nested:
            entries = getattr(message, name)
            if not entries:
                continue
            layout = _layout(cls)
            for entry_target, entry in zip(target.init(place, len(entries)), entries, strict=True):
                layout.write(entry_target, entry)

    def read(self, source: Any) -> Message:
        values = {name: getattr(source, place) for name, place in self.scalars}
        for name, place in self.enums:
            values[name] = getattr(source, place).raw
        for name, place in self.lists:
            values[name] = list(_bounded(getattr(source, place)))
        for name, place, cls in self.nested:
            layout = _layout(cls)
            values[name] = [layout.read(entry) for entry in _bounded(getattr(source, place))]
        return self.cls(**values)


_ENUMS = {
    "Publish": ("acks",),
    "FindOffset": ("place",),
    "Subscribed": ("kind",),
    "Settlement": ("verdict",),
    "Deliver": ("phase",),
}
_FROM_BROKERS = frozenset(
    {
        "welcome",
        "published",
        "fetched",
        "foundOffset",
        "subscribed",
        "deliver",
        "settled",
        "resolved",
        "openedTransactions",
        "assigned",
        "description",
        "administered",
        "ended",
        "leaseEnded",
        "challenge",
        "followed",
        "replicated",
        "inbox",
    }
)
"""Messages that a broker never reads, because a list in one may have a million parts."""
_UNREAD = messages.Settlement(0, 0, 0, 0)
_OF_PEERS = frozenset(
    {
        "peerChallenge",
        "peerProof",
        "peerWelcome",
        "peerPong",
        "openLane",
        "closeLane",
        "follow",
        "followed",
        "replicate",
        "replicated",
        "joinTransaction",
        "markTransaction",
    }
)
"""Messages between brokers, which no client sends."""
_VOID = {
    "ping": messages.Ping,
    "pong": messages.Pong,
    "done": messages.Done,
    "closeLane": messages.CloseLane,
    "openInbox": messages.OpenInbox,
}
_layouts: dict[type[Message], _Layout] = {}


def _layout(cls: type[Message]) -> _Layout:
    layout = _layouts.get(cls)
    if layout is None:
        layout = _layouts[cls] = _Layout(cls)
    return layout


def _shown(value: object) -> str:
    """A value as text for an error."""
    try:
        return repr(value)[:80]
    except ValueError:  # An int with more digits than Python converts.
        return f"so large a {type(value).__name__}"


def _bounded(entries: Any) -> Any:
    if len(entries) > ENTRIES_MAX:
        raise ProtocolError(f"a list of {len(entries)} entries in a control message, more than {ENTRIES_MAX}")
    return entries


_BY_MEMBER = {_layout(cls).member: cls for cls in Message.__subclasses__()}
"""Includes parts of messages; no member of Frame has their names."""


def _words_of(message: Message) -> int:
    """Size in words of a first segment that holds most messages, so that they are sent as one segment."""
    if isinstance(message, messages.Settle | messages.SettleInTransaction):
        return 16 + 6 * len(message.entries)
    if isinstance(message, messages.Published):
        lists = [placement.returned for placement in message.placements]
        lists += [refused.records for placement in message.placements for refused in placement.refused]
        return 16 + sum([24 + len(records) // 2 for records in lists])
    if isinstance(message, messages.Publish):
        return 16 + len(message.target) // 2 + sum([2 + len(topic) // 2 for topic in message.topics])
    if isinstance(message, messages.MarkTransaction):
        return 32 + len(message.topic) // 8 + len(message.commits) + len(message.aborts)
    return 64


def encode(message: Message, correlation: int = 0, batches: int = 0) -> Buffer:
    """Encode one control message. Raises MessageInvalid if the value of a field does not fit."""
    if (
        type(message) is messages.Published
        and len(message.placements) == 1
        and not (placement := message.placements[0]).returned
        and not placement.refused
    ):
        return _PUBLISHED.fill(
            correlation,
            placement.partition,
            placement.base_offset,
            placement.copies,
            placement.leader_epoch,
            placement.topic_id_high,
            placement.topic_id_low,
        )
    if type(message) is messages.Settled and not message.refused:
        return _SETTLED.fill(correlation, batches)
    if type(message) is messages.Deliver:
        return _DELIVER.fill(
            correlation,
            batches,
            message.subscription,
            message.partition,
            message.delivery_id,
            message.attempt,
            message.passed_to,
            message.phase,
            message.settled_before,
        )
    if type(message) is messages.Publish and len(message.target) <= NAME_CHARACTERS_MAX and not message.topics:
        frame = bytearray(
            _encoded_publish(
                message.target, message.to_exchange, message.acks, message.partition, message.mandatory, batches
            )
        )
        _U64.pack_into(frame, _CORRELATION_AT, correlation)
        return frame
    if type(message) is messages.Done:
        return _DONE.fill(correlation, batches)
    if type(message) is messages.EndTransaction and _is_plain_commit(message):
        numbers = message.producer_id, message.epoch, message.number, message.branches[0], message.producer_key
        with contextlib.suppress(struct.error):  # A number does not fit; the encoding below names it.
            return _COMMIT.fill(correlation, batches, *numbers)
    return _encode(message, correlation, batches)


@lru_cache(maxsize=1024)
def _encoded_publish(target: str, to_exchange: bool, acks: int, partition: int, mandatory: bool, batches: int) -> bytes:
    """Encode a publish with correlation 0, cached: a producer repeats it with each batch."""
    return _encode(messages.Publish(target, to_exchange, acks, partition, mandatory), 0, batches)


def _encode(message: Message, correlation: int, batches: int) -> bytes:
    frame = schema.load("protocol").Frame.new_message(num_first_segment_words=_words_of(message))
    frame.correlation = correlation
    if batches:
        frame.batches = batches
    layout = _layout(type(message))
    if layout.member in _VOID:
        setattr(frame, layout.member, None)
    else:
        layout.write(frame.init(layout.member), message)
    return bytes(frame.to_bytes())


class _Template:
    """A message whose bytes are constant except for numbers at fixed places: encoded once, then filled in.

    The places are found by encoding marker values, so that the schema stays the only source of the layout.
    """

    def __init__(self, make: Callable[..., tuple[Message, int, int]], kinds: str) -> None:
        """`make` takes one number per letter of `kinds` (struct's) and returns (message, correlation, batches)."""
        zero = _encode(*make(*[0] * len(kinds)))
        self._places: list[tuple[struct.Struct, int]] = []
        for index, kind in enumerate(kinds):
            packer = struct.Struct("<" + kind)
            mark = int.from_bytes(b"\x5a" * packer.size)
            marked = _encode(*make(*[mark if place == index else 0 for place in range(len(kinds))]))
            at = marked.index(packer.pack(mark))
            assert marked[:at] + packer.pack(0) + marked[at + packer.size :] == zero
            self._places.append((packer, at))
        self._zero = zero

    def fill(self, *numbers: int) -> bytearray:
        """Return the message with these numbers."""
        message = bytearray(self._zero)
        for (packer, at), number in zip(self._places, numbers, strict=True):
            packer.pack_into(message, at, number)
        return message

    @property
    def shape(self) -> tuple[int, bytes]:
        """A quick test whether a message may match this template: its size and its member."""
        return len(self._zero), self._zero[_MEMBER_AT : _MEMBER_AT + 2]

    def read(self, content: bytes) -> list[int] | None:
        """The numbers of a message of this shape; None if another byte differs."""
        blank = bytearray(content)
        numbers: list[int] = []
        for packer, at in self._places:
            numbers += packer.unpack_from(content, at)
            packer.pack_into(blank, at, 0)
        return numbers if blank == self._zero else None


_CORRELATION_AT = 16
_MEMBER_AT = 26
"""The offset of the union tag of `Frame`, in a message whose root struct comes first."""
_U64 = struct.Struct("<Q")

_PUBLISHED = _Template(
    lambda correlation, partition, base_offset, copies, *identity: (
        messages.Published([messages.Placement(partition, base_offset, copies, [], *identity)]),
        correlation,
        0,
    ),
    "QiqIiQQ",
)
_DELIVER = _Template(
    lambda correlation, batches, *fields: (messages.Deliver(*fields), correlation, batches),
    "QHIiQHqHq",
)
_SETTLE = _Template(
    lambda correlation, subscription, partition, delivery_id, first, end, verdict, ms: (
        messages.Settle(subscription, [messages.Settlement(partition, delivery_id, first, end, verdict, ms)]),
        correlation,
        0,
    ),
    "QIiQqqHI",
)
"""A settle of one entry, from a client that acks record by record."""
_SETTLED = _Template(lambda correlation, batches: (messages.Settled([]), correlation, batches), "QH")
_DONE = _Template(lambda correlation, batches: (messages.Done(), correlation, batches), "QH")
_COMMIT = _Template(
    lambda correlation, batches, producer_id, epoch, number, branch, key: (
        messages.EndTransaction(producer_id, epoch, number, True, [branch], producer_key=key),
        correlation,
        batches,
    ),
    "QHqIQqQ",
)
"""The commit of a transaction that has written to one topic, without a sequence."""


def _is_plain_commit(message: messages.EndTransaction) -> bool:
    return message.is_commit and len(message.branches) == 1 and not message.sequence and not message.identity


def _read_published(
    correlation: int, partition: int, base_offset: int, copies: int, epoch: int, id_high: int, id_low: int
) -> Decoded:
    placement = messages.Placement(partition, base_offset, copies, [], epoch, id_high, id_low)
    return Decoded(correlation, 0, messages.Published([placement]))


def _read_deliver(correlation: int, batches: int, *fields: int) -> Decoded:
    return Decoded(correlation, batches, messages.Deliver(*fields))


def _read_settle(correlation: int, subscription: int, *entry: int) -> Decoded:
    return Decoded(correlation, 0, messages.Settle(subscription, [messages.Settlement(*entry)]))


def _read_settled(correlation: int, batches: int) -> Decoded:
    return Decoded(correlation, batches, messages.Settled([]))


def _read_commit(
    correlation: int, batches: int, producer_id: int, epoch: int, number: int, branch: int, key: int
) -> Decoded:
    commit = messages.EndTransaction(producer_id, epoch, number, True, [branch], producer_key=key)
    return Decoded(correlation, batches, commit)


_READERS: dict[tuple[int, bytes], tuple[_Template, Callable[..., Decoded]]] = {
    _PUBLISHED.shape: (_PUBLISHED, _read_published),
    _DELIVER.shape: (_DELIVER, _read_deliver),
    _SETTLE.shape: (_SETTLE, _read_settle),
    _SETTLED.shape: (_SETTLED, _read_settled),
    _COMMIT.shape: (_COMMIT, _read_commit),
}

_CACHED_FRAME_BYTES_MAX = 512
_CACHED_FRAMES_MAX = 4_096
_decoded: dict[bytes, Decoded] = {}


def put_in_lane(frame: Buffer, lane: int) -> Buffer:
    """Return an encoded message with the number of a lane."""
    laned = bytearray(frame)
    _U32.pack_into(laned, _lane_at(laned), lane)
    return laned


def take_out_of_lane(frame: memoryview) -> int:
    """Set the lane of a received message to 0; returns its number.

    Raises ProtocolError: the root struct is not at the beginning, where every broker writes it.
    """
    try:
        at = _lane_at(frame)
        lane: int = _U32.unpack_from(frame, at)[0]
        _U32.pack_into(frame, at, 0)
    except struct.error as error:
        raise ProtocolError("a control message can't be read") from error
    return lane


def _lane_at(frame: Buffer) -> int:
    """The place of the lane's number. Raises ProtocolError; struct.error: the frame ends before it."""
    root_at = 8 * ((_U32.unpack_from(frame)[0] + 1) // 2 + 1)
    pointer, data_words = _ROOT.unpack_from(frame, root_at)
    if pointer or data_words < _LANE_WORDS:
        raise ProtocolError("a control message of a peer begins with its root struct, which has a lane")
    at: int = root_at + 8 + _LANE_IN_DATA
    return at


_U32 = struct.Struct("<I")
_ROOT = struct.Struct("<IH")
"""A pointer to a struct that directly follows it is 0; then come the words of the struct's data."""
_LANE_WORDS, _LANE_IN_DATA = 2, 12


def decode(frame: memoryview, *, from_client: bool = False, from_peer: bool = False) -> Decoded:
    """Decode one control message. Messages are shared and must not be changed.

    Clients repeat requests with another correlation, whose place is fixed if the root struct comes first; the other
    bytes are looked up in a cache.

    An unknown member becomes `messages.Unknown`.

    Raises ProtocolError if the bytes are not a Frame or, `from_client`, not a client's message. `from_peer`: it may
    also be a message between brokers.
    """
    if len(frame) > _CACHED_FRAME_BYTES_MAX:
        return _read_settlements(frame) or _decode(frame, from_client, from_peer)
    content = frame.tobytes()
    key = content[:_CORRELATION_AT] + content[_CORRELATION_AT + 8 :]
    known = _decoded.get(key)
    if known is not None:
        return Decoded(int.from_bytes(content[_CORRELATION_AT : _CORRELATION_AT + 8], "little"), known[1], known[2])
    template = _READERS.get((len(content), content[_MEMBER_AT : _MEMBER_AT + 2]))
    if template is not None and (numbers := template[0].read(content)) is not None:
        return template[1](*numbers)
    if content[_MEMBER_AT : _MEMBER_AT + 2] == _SETTLE.shape[1] and (settle := _read_settlements(content)) is not None:
        return settle
    decoded = _decode(content, from_client, from_peer)
    if content[:4] == _ONE_SEGMENT and content[8:12] == _ROOT_FIRST and type(decoded.message) in _REPEATED:
        if len(_decoded) >= _CACHED_FRAMES_MAX:
            _decoded.clear()
        _decoded[key] = decoded
    return decoded


def _read_settlements(frame: Buffer) -> Decoded | None:
    """Decode a settle of several entries; None if it is another message."""
    settle = read_settle(frame)
    return Decoded(settle[0], 0, settle[1]) if settle is not None else None


def _settlements_of(settle: Any) -> int:
    """The number of a settle's entries, or of its reasons if there are more."""
    return max(len(settle.entries), len(settle.reasons))


def _rows_of(follow: Any) -> int:
    """The epochs of all logs of a follow together."""
    return sum([len(table.epochs) for table in _bounded(follow.logs)])


_ONE_SEGMENT = _ROOT_FIRST = bytes(4)
_REPEATED = (messages.Publish, messages.Credit, messages.Pull, messages.Ping, messages.Pong, messages.Done)
"""Messages that often recur with equal content, unlike settlements and answers."""


def _decode(frame: Buffer, from_client: bool = False, from_peer: bool = False) -> Decoded:
    try:
        # Twice the frame's words: overlapping pointers can't make a message larger.
        with schema.load("protocol").Frame.from_bytes(
            frame if type(frame) is bytes else bytes(frame),
            traversal_limit_in_words=len(frame) // 4 + 64,
            nesting_limit=NESTING_MAX,
        ) as reader:
            return _read(reader, from_client, from_peer)
    except (capnp.KjException, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError("a control message can't be read") from error


def _read(reader: Any, from_client: bool, from_peer: bool) -> Decoded:
    correlation, batches = reader.correlation, reader.batches
    try:
        member = str(reader.which())
    except capnp.KjException:
        return Decoded(correlation, batches, messages.Unknown())
    if from_client:
        if not from_peer and (member in _OF_PEERS or reader.lane):
            raise ProtocolError("a client sends nothing that brokers send to one another")
        if member in _FROM_BROKERS:
            raise ProtocolError(f"a client does not send {_BY_MEMBER[member].__name__}")
        if member == "follow" and (rows := _rows_of(reader.follow)) > messages.FOLLOW_ROWS_MAX:
            raise ProtocolError(f"logs with {rows:,} epochs in one follow, more than {messages.FOLLOW_ROWS_MAX:,}")
        if member == "settle" and (count := _settlements_of(reader.settle)) > messages.SETTLE_ENTRIES_MAX:
            # Refused for their number alone.
            return Decoded(correlation, batches, messages.Settle(reader.settle.subscription, [_UNREAD] * count))
    if member in _VOID:
        return Decoded(correlation, batches, _VOID[member]())
    return Decoded(correlation, batches, _layout(_BY_MEMBER[member]).read(getattr(reader, member)))
