"""Messages to bytes and back, for one Frame at a time. No I/O, and no state: `connection` has that.

Laws: nothing that a peer sent makes this raise anything but ProtocolError; reading costs time and memory in proportion
to the frame's bytes, whatever its pointers claim.
"""

from __future__ import annotations

import typing
from typing import Any, NamedTuple

import capnp

from linn.core import schema
from linn.core.errors import ProtocolError, RequestUnknown
from linn.core.flat_message import Buffer
from linn.protocols.capnp import messages
from linn.protocols.capnp.messages import Message

ENTRIES_MAX = 65_536
"""Length of any list in a control message: what a client may settle at once."""
NESTING_MAX = 8
"""The deepest message, a description, has four levels."""


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
    """How one message class lies in the schema: computed once, from its annotations."""

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
        for name, place in self.scalars:
            setattr(target, place, getattr(message, name))
        for name, place in self.enums:
            setattr(target, place, int(getattr(message, name)))
        for name, place in self.lists:
            setattr(target, place, getattr(message, name))
        for name, place, cls in self.nested:
            entries = getattr(message, name)
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


_ENUMS = {"Publish": ("acks",), "Subscribed": ("kind",), "Settlement": ("verdict",)}
_VOID = {"ping": messages.Ping, "pong": messages.Pong, "done": messages.Done}
_layouts: dict[type[Message], _Layout] = {}


def _layout(cls: type[Message]) -> _Layout:
    layout = _layouts.get(cls)
    if layout is None:
        layout = _layouts[cls] = _Layout(cls)
    return layout


def _bounded(entries: Any) -> Any:
    if len(entries) > ENTRIES_MAX:
        raise ProtocolError(f"a list of {len(entries)} entries in a control message, more than {ENTRIES_MAX}")
    return entries


_BY_MEMBER = {_layout(cls).member: cls for cls in Message.__subclasses__()}
"""Parts of messages are in it as well; no member of Frame has their names."""


def _words_of(message: Message) -> int:
    """A first segment that holds most messages, so that they are sent as one."""
    return 64 if not isinstance(message, messages.Settle) else 16 + 6 * len(message.entries)


def encode(message: Message, correlation: int = 0, batches: int = 0) -> bytes:
    """One control message as it goes on the wire."""
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


def decode(frame: Buffer) -> Decoded:
    """Read one control message.

    Raises:
        ProtocolError: the bytes are not a Frame.
        RequestUnknown: a member that this version does not know.
    """
    try:
        # Twice the frame's words: overlapping pointers can't make it larger than it is.
        with schema.load("protocol").Frame.from_bytes(
            frame if type(frame) is bytes else bytes(frame),
            traversal_limit_in_words=len(frame) // 4 + 64,
            nesting_limit=NESTING_MAX,
        ) as reader:
            return _read(reader)
    except (capnp.KjException, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError("a control message can't be read") from error


def _read(reader: Any) -> Decoded:
    correlation, batches = reader.correlation, reader.batches
    try:
        member = str(reader.which())
    except capnp.KjException as error:
        raise RequestUnknown(f"request {correlation} is of a kind that this version does not know") from error
    if member in _VOID:
        return Decoded(correlation, batches, _VOID[member]())
    return Decoded(correlation, batches, _layout(_BY_MEMBER[member]).read(getattr(reader, member)))
