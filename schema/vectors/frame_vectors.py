"""Control messages: one of every member of Frame, with a value of its own in each field, and damaged ones."""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import capnp
import msgspec
from vector import Vector

from linn.core.batch import schema
from linn.wire import codec
from linn.wire import messages as m

CORRELATION = 0x0102030405060708
FROM_CLIENT: list[m.Message] = [
    m.Hello(1, 2, ["zstd", "später"], "linn-docs 0.1", 2**40 + 256, 2**64 - 2),
    m.Authenticate("PLAIN", "\0ann\0opensesame"),
    m.Ping(),
    m.Goodbye("done"),
    m.Publish("orders.eu", True, m.Acks.ALL, 5, True),
    m.Fetch("orders", 3, 2**62, 1, 2**32 - 1, 60_000, 'label.a = "ä"', True),
    m.FindOffset("orders", 3, -1, m.Place.LATEST),
    m.Subscribe(
        "orders",
        "billing",
        1_000,
        2**40,
        [0, 2, 2**31 - 1],
        [2**62, -1, -2],
        'routing_key = "k"',
        "ann",
        10_000,
        True,
        157_852_801,
        2**63 + 1,
        2**62 + 5,
        "workers",
    ),
    m.Unsubscribe(7),
    m.Credit(7, 100),
    m.Heartbeat(7, 12),
    m.Seek(7, 3, 2**62, True),
    m.Commit(7, 3, 12, 2**62, "später"),
    m.Pull(7, 500, 30_000, placed=True, partition=3, start=40),
    m.Settle(
        7,
        [
            m.Settlement(0, 2**64 - 1, 10, 20, m.Verdict.ACK, 0),
            m.Settlement(1, 5, 20, 21, m.Verdict.NACK, 1_500, 2),
            m.Settlement(2, 6, 2**62, 2**62 + 1, m.Verdict.REJECT, 0, 65_535),
            m.Settlement(3, 7, 0, 1, m.Verdict.EXTEND, 2**32 - 1),
            m.Settlement(4, 8, 1, 2, m.Verdict.DONE, 0),
        ],
        ["", "no währung"],
    ),
    m.Resolve(7, 3, 2**64 - 1, 0, 2**63 - 1),
    m.OpenTransactions("billing-ä", 60_000, 2**62, 65_535, 2**64 - 1, 2**64 - 2),
    m.AddBranch(2**62, 65_535, 2**40 + 7, 2**64 - 2),
    m.SettleInTransaction(2**62, 65_535, 2**63 + 1, 7, [m.Settlement(1, 5, 20, 21, m.Verdict.ACK, 0)], 2**64 - 2),
    m.EndTransaction(2**62, 65_535, 2**63 + 1, True, [2**40 + 7, 1], 2**63 - 1, "rows 12 später", 2**64 - 2),
    m.Describe(["orders", "", "späte-flüge"]),
    m.Administer("topic.create", '{"name": "orders"}'),
    m.OpenInbox(),
    m.Reply("3.9f86d081884c7d659a2feaa0c55ad015.später"),
]
FROM_BROKER: list[m.Message] = [
    m.Welcome(1, ["zstd"], "linn", 1 << 24, 8 << 20, 1 << 20, 20_000, 1_000, 999, 2**40 + 256, 2**64 - 2, "ann", "v=="),
    m.Challenge(["SCRAM-SHA-256", "PLAIN"], "r=später"),
    m.Failed("topic.full", "the topic is full; später", True),
    m.Pong(),
    m.Done(),
    m.Published(
        [
            m.Placement(3, 2**62, 12, [0, 2, 5, 2**32 - 1]),
            m.Placement(
                -1, -1, 0, refused=[m.RefusedRecords("message.too_large", "a message of 9 bytes", [1, 2, 7, 9])]
            ),
        ]
    ),
    m.Fetched(5, 2**62, 2**61),
    m.FoundOffset(2**62),
    m.Subscribed(7, m.ConsumerKind.READER, 30_000),
    m.Deliver(7, 3, 2**64 - 1, 65_535, 2**62, m.Phase.COMMIT, 2**61),
    m.Settled([m.Refusal(3, "delivery.not_current", "the lease ended")]),
    m.Resolved(True),
    m.OpenedTransactions(2**62, 65_535, 2**63 + 1, 2**64 - 2),
    m.Assigned(7, 12, [0, 1, 5], [2, 3]),
    m.Description(
        "linn",
        [m.Node(0, "127.0.0.1:5466"), m.Node(1, "[::1]:5466")],
        [
            m.TopicInfo(
                "orders",
                "both",
                [m.PartitionInfo(0, 5, 2**62), m.PartitionInfo(1, 0, 0)],
                "at-least-once",
                9,
                "murmur2",
            ),
            m.TopicInfo("nowhere", "", [], "", 0),
        ],
    ),
    m.Administered('{"created": true}'),
    m.Ended(7, "topic.unknown", "the topic was deleted"),
    m.LeaseEnded(7, 2, 1 << 40),
    m.Inbox("3.9f86d081884c7d659a2feaa0c55ad015"),
]


def fields_of(message: m.Message) -> dict[str, Any]:
    """A message's fields by their names in the schema; enums are numbers."""
    found = {}
    for field in msgspec.structs.fields(type(message)):
        value = getattr(message, field.name)
        if isinstance(value, list):
            value = [fields_of(entry) if isinstance(entry, m.Message) else entry for entry in value]
        found[codec.camel(field.name)] = value
    return found


def member_of(message: m.Message) -> str:
    """The name of a message's member in Frame."""
    name = type(message).__name__
    return name[0].lower() + name[1:]


def says(message: m.Message, sender: str, correlation: int = CORRELATION, batches: int = 0) -> dict[str, Any]:
    """A control message in the manifest."""
    fields = fields_of(message)
    return {
        "from": sender,
        "member": member_of(message),
        "correlation": correlation,
        "batches": batches,
        "fields": fields,
    }


def frame_vectors() -> Iterator[Vector]:
    """All of them, whole ones first."""
    for sender, sent in (("client", FROM_CLIENT), ("broker", FROM_BROKER)):
        for message in sent:
            batches = {"publish": 2, "fetched": 3, "deliver": 1_024, "reply": 1}.get(member_of(message), 0)
            content = bytes(codec.encode(message, CORRELATION, batches))
            what = f"`{member_of(message)}` from the {sender}"
            yield Vector(member_of(message), what, content, says(message, sender, batches=batches))
    yield from _unusual()
    yield from _damaged()


# --- whole, but not as linn writes them ------------------------------------------------------------------------------


def _unusual() -> Iterator[Vector]:
    description = next(message for message in FROM_BROKER if isinstance(message, m.Description))
    yield Vector(
        "segments",
        "a message in several segments, with far pointers",
        _built(schema.load("protocol"), description, words=2),
        says(description, "broker"),
    )
    publish = m.Publish("", False, m.Acks.NONE, -1)
    empty = frame(struct.pack("<IHH", 0xFFFFFFFC, 0, 0), member=member_number("publish"))
    yield Vector("older", "a struct without numbers and pointers: all are defaults", empty, says(publish, "client", 7))
    null = frame(bytes(8), member=member_number("published"))
    yield Vector("null", "a member without its struct: all are defaults", null, says(m.Published([]), "broker", 7))
    placement = m.Published([m.Placement(3, 4, 5)])
    yield Vector(
        "older-entry",
        "list entries that end early",
        _short_entry(),
        says(m.Published([m.Placement(3, 0, 5)]), "broker", 7),
    )
    newer = _newer_schema()
    yield Vector("newer", "structs with fields of a later version", _built(newer, placement), says(placement, "broker"))
    unknown = frame(bytes(8), member=60_000)
    told = {"from": "broker", "member": "unknown", "correlation": 7, "batches": 0, "fields": {}}
    yield Vector("unknown", "a member that this version does not know", unknown, told)


def _built(module: Any, message: m.Message, words: int = 1_024) -> bytes:
    """A message by pycapnp itself, with a first segment of so many words."""
    builder = module.Frame.new_message(num_first_segment_words=words)
    builder.correlation = CORRELATION
    _fill(builder.init(member_of(message)), message)
    return bytes(builder.to_bytes())


def _fill(target: Any, message: m.Message) -> None:
    for name, value in fields_of(message).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = getattr(message, re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), name))
            for entry_target, entry in zip(target.init(name, len(value)), entries, strict=True):
                _fill(entry_target, entry)
        else:
            setattr(target, name, value)


def _newer_schema() -> Any:
    """The protocol with one number and one text more in `Placement` and `Published`."""
    text = (schema.SCHEMA_DIR / "protocol.capnp").read_text(encoding="utf-8")
    for struct_name in ("Published", "Placement"):
        body = re.search(rf"struct {struct_name} {{(.*?)}}", text, re.DOTALL)
        assert body is not None
        next_field = 1 + max(int(ordinal) for ordinal in re.findall(r"@(\d+)", body[1]))
        later = f' laterText @{next_field} :Text = "later"; laterNumber @{next_field + 1} :UInt64 = 5; '
        text = text[: body.end(1)] + "\n" + later + text[body.end(1) :]
    text = text.replace("@0xc8a1f5b0de3f4467", "@0xc8a1f5b0de3f4468", 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "newer.capnp"
        path.write_text(text, encoding="utf-8")
        return capnp.load(str(path))


def _short_entry() -> bytes:
    """Published with one Placement of one word: partition 3 and copies 5, and no base offset."""
    entries = list_pointer(0, 7, 1) + struct.pack("<IHH", 1 << 2, 1, 0) + struct.pack("<iI", 3, 5)
    return frame(struct_pointer(0, 0, 1) + entries, member=member_number("published"))


# --- damaged ---------------------------------------------------------------------------------------------------------


def member_number(member: str) -> int:
    """A member's number in the union of Frame."""
    fields = schema.load("protocol").Frame.schema.node.struct.fields
    return next(int(field.discriminantValue) for field in fields if field.name == member)


def frame(pointers: bytes, member: int) -> bytes:
    """A Frame of one segment, correlation 7, whose pointer and what is behind it are these bytes."""
    body = struct.pack("<IHHQHHI", 0, 2, 1, 7, 0, member, 0) + pointers
    return struct.pack("<II", 0, len(body) // 8) + body


def struct_pointer(offset: int, number_words: int, pointers: int) -> bytes:
    """A pointer to a struct."""
    return struct.pack("<iHH", offset << 2, number_words, pointers)


def list_pointer(offset: int, kind: int, count: int) -> bytes:
    """A pointer to a list."""
    return struct.pack("<iI", offset << 2 | 1, count << 3 | kind)


def text_frame(content: bytes, size: int | None = None) -> bytes:
    """Goodbye with these bytes for its text, whose pointer says `size`."""
    padded = content + bytes(-len(content) % 8)
    pointer = list_pointer(0, 2, len(content) if size is None else size)
    return frame(struct_pointer(0, 0, 1) + pointer + padded, member_number("goodbye"))


def _lists() -> Iterator[tuple[str, str, bytes]]:
    settle = member_number("settle")
    head = struct_pointer(0, 1, 1) + bytes(8)
    empty = list_pointer(0, 7, 0) + struct.pack("<IHH", (2**29 - 1) << 2, 0, 0)
    yield "list-empty-structs", "a list of 2^29 - 1 structs of no size", frame(head + empty, settle)
    yield "list-out", "a list that ends behind the message", frame(head + list_pointer(0, 7, 10_000), settle)
    tag = list_pointer(0, 7, 1) + struct.pack("<IHH", 2 << 2, 4, 0) + bytes(32)
    yield "list-tag", "a list of structs whose tag says more of them than it has words", frame(head + tag, settle)
    count, size = 400, 1 << 12
    texts = [list_pointer(count - 1 - number, 2, size) for number in range(count)]
    shared = struct_pointer(0, 0, 1) + list_pointer(0, 6, count) + b"".join(texts) + b"x" * (size - 1) + b"\0"
    yield (
        "list-shared",
        "400 texts that are all the same 4 KiB of the message",
        frame(shared, member_number("describe")),
    )


def _pointers() -> Iterator[tuple[str, str, bytes]]:
    publish = member_number("publish")
    yield "pointer-out", "a struct behind the message", frame(struct_pointer(9, 1, 1), publish)
    yield "pointer-before", "a struct before the message", frame(struct_pointer(-50, 1, 1), publish)
    yield "pointer-kind", "a list where a struct should be", frame(list_pointer(0, 2, 8) + bytes(8), publish)
    yield "pointer-capability", "a capability", frame(struct.pack("<II", 3, 0), publish)
    yield "pointer-far", "a far pointer to a segment that is not there", frame(struct.pack("<II", 2, 1), publish)
    yield "pointer-far-loop", "a far pointer to itself", frame(struct.pack("<II", 2 | 3 << 3, 0), publish)


def _damaged() -> Iterator[Vector]:
    publish = bytes(codec.encode(m.Publish("orders"), 1))
    cases: list[tuple[str, str, bytes]] = [
        ("empty", "no bytes at all", b""),
        ("head-only", "the segment table alone", publish[:8]),
        ("cut", "the last word is missing", publish[:-8]),
        ("longer", "a word behind the last segment", publish + bytes(8)),
        ("no-words", "a message without a word", bytes(8)),
        ("segments-most", "65 segments", struct.pack("<I", 64) + publish[4:]),
        ("text-end", "a text without its NUL", text_frame(b"done")),
        ("text-out", "a text that ends behind the message", text_frame(b"done\0", size=9)),
        ("text-utf-8", "a text that is not UTF-8", text_frame(b"d\xffne\0")),
        ("text-surrogate", "a text with half of a surrogate pair", text_frame(b"\xed\xa0\x80\0")),
        *_lists(),
        *_pointers(),
    ]
    for name, what, content in cases:
        yield Vector(f"damaged-{name}", what, content, {"error": "protocol.malformed"})
