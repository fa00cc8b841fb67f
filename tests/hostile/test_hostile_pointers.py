"""Pointers that lie, in control messages and in batches: what is read is never more than what was sent."""

from __future__ import annotations

import struct

import pytest
import wire
from attack import WatchedBroker, attacked, request

from linn.wire import messages as m

CONFIG = """
[exchanges.e]
type = "topic"
[topics.t]
kind = "stream"
bindings = [{ exchange = "e", key = "#" }]
[topics.q]
"""
MALFORMED = "refused protocol.malformed"
BATCH_MALFORMED = "failed batch.malformed"
PUBLISH = request(m.Publish("t"), wire.CORRELATION, 1)
ROUTED = request(m.Publish("e", True), wire.CORRELATION, 1)
NUL_WORD = bytes(8)


def settle(entries: bytes) -> bytes:
    """A settle whose list of entries is this pointer and what is behind it."""
    return wire.control("settle", wire.struct_pointer(0, 1, 1) + NUL_WORD + entries)


def describe(topics: bytes) -> bytes:
    """A describe whose list of topics is this."""
    return wire.control("describe", wire.struct_pointer(0, 0, 1) + topics)


def routed(routes: bytes, pair_count: int = 1) -> bytes:
    """A publish through an exchange that has to read these routes, a segment without its table."""
    fields = {wire.ROUTES: wire.framed(wire.padded(routes)), wire.BODY: wire.body([b"v"] * max(1, pair_count))}
    if pair_count > 1:
        fields[wire.ROUTE_INDEX] = struct.pack(f"<{pair_count}H", *range(pair_count))
    return ROUTED + wire.batch(max(1, pair_count), fields, pair_count=pair_count)


def pairs(pointer: bytes) -> bytes:
    """Routes whose list of pairs is this pointer and what is behind it."""
    return wire.struct_pointer(0, 0, 1) + pointer


def one_pair(key: bytes, labels: bytes = NUL_WORD) -> bytes:
    """Routes of one pair, with these two pointers and what is behind them."""
    return pairs(wire.list_pointer(0, wire.STRUCTS, 2) + wire.tag(1, 0, 2) + key + labels)


def with_field(place: int, pointer: bytes) -> bytes:
    """A publish of a batch of one record, one of whose eight pointers is this."""
    message = wire.plain([b"v" * 64])
    at = 16 + wire.NUMBERS.size + 8 * place
    return PUBLISH + wire.sealed(message[:at] + pointer + message[at + 8 :])


def with_body_field(place: int, pointer: bytes) -> bytes:
    """A publish of a batch, one of the thirteen pointers of whose body is this."""
    content = wire.body([b"v" * 64])
    at = 16 + 8 * place
    return PUBLISH + wire.batch(1, {wire.BODY: content[:at] + pointer + content[at + 8 :]})


def test_a_struct_that_points_to_itself_is_read_once_or_not_at_all(broker: WatchedBroker) -> None:
    cases = {
        "a request": (wire.control("settle", wire.struct_pointer(-1, 0, 1)), MALFORMED),
        "a root": (wire.framed(wire.struct_pointer(-1, 2, 1)), MALFORMED),
        "a list of texts": (describe(wire.list_pointer(-1, wire.POINTERS, 1)), MALFORMED),
        "a list of structs": (settle(wire.list_pointer(-1, wire.STRUCTS, 6)), MALFORMED),
        "the root of a batch": (PUBLISH + root_moved(-1), "refused batch.malformed"),
        "the root of a body": (with_body_root(wire.struct_pointer(-1, 0, 13)), BATCH_MALFORMED),
        "a field of a batch": (with_field(wire.BODY, wire.list_pointer(-1, wire.BYTES, 64)), BATCH_MALFORMED),
        "a column of a body": (with_body_field(wire.VALUES, wire.list_pointer(-1, wire.BYTES, 64)), BATCH_MALFORMED),
        "routes": (routed(wire.struct_pointer(-1, 0, 1)), BATCH_MALFORMED),
        "pairs": (routed(pairs(wire.list_pointer(-1, wire.STRUCTS, 2))), BATCH_MALFORMED),
        "labels that are their own pair": (
            routed(one_pair(NUL_WORD, wire.list_pointer(-4, wire.STRUCTS, 2))),
            BATCH_MALFORMED,
        ),
        "a routing key": (routed(one_pair(wire.list_pointer(-1, wire.BYTES, 8))), BATCH_MALFORMED),
    }
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(cases)


def root_moved(offset: int) -> bytes:
    """A batch whose root struct stands elsewhere."""
    message = wire.plain([b"v"])
    return wire.sealed(message[:8] + struct.pack("<i", offset << 2) + message[12:])


def with_body_root(pointer: bytes) -> bytes:
    """A publish of a batch whose body's root pointer is this."""
    content = wire.body([b"v"])
    return PUBLISH + wire.batch(1, {wire.BODY: content[:8] + pointer + content[16:]})


@pytest.mark.parametrize("depth", [65, 969, 100_000])
def test_nesting_costs_nothing_however_deep(broker: WatchedBroker, depth: int) -> None:
    chain = wire.struct_pointer(0, 0, 1) * depth
    lists = wire.list_pointer(0, wire.POINTERS, 1) * depth
    unknown = wire.struct_pointer(0, 2, 2) + struct.pack("<QHHI", 7, 0, wire.MEMBERS.index("describe"), 0)
    objects = '{"name":' * depth + '""' + "}" * depth
    cases = {
        "structs": (wire.control("settle", chain), MALFORMED),
        "lists of lists": (describe(lists), MALFORMED),
        "a field of a newer version": (wire.framed(unknown + bytes(8) + chain), "answered"),
        "labels of labels": (routed(one_pair(NUL_WORD, chain)), BATCH_MALFORMED),
        "arrays of JSON": (administer("[" * depth), "failed config.invalid"),
        "objects of JSON": (administer(objects), "failed config.invalid"),
        "arrays in a setting": (
            administer('{"name": "x", "settings": {"retention": ' + "[" * depth + "]" * depth + "}}"),
            "failed config.invalid",
        ),
    }
    with attacked(broker, memory_bytes=12 << 20) as attack:
        attack.tries(cases)


def administer(arguments: str, verb: str = "topic.create") -> bytes:
    return request(m.Administer(verb, arguments), wire.CORRELATION)


def empty_structs(count: int) -> bytes:
    """A list of structs without a size."""
    return wire.list_pointer(0, wire.STRUCTS, 0) + wire.tag(count, 0, 0)


def test_a_list_of_half_a_billion_nothings_is_refused_by_its_length(broker: WatchedBroker) -> None:
    most = wire.ENTRIES_MAX
    cases = {
        "settlements": (settle(empty_structs(most)), MALFORMED),
        "as many as a request may have": (settle(empty_structs(65_536)), MALFORMED),
        "settlements without bits": (settle(wire.list_pointer(0, 0, most)), MALFORMED),
        "topics": (describe(wire.list_pointer(0, 0, most)), MALFORMED),
        "topics that are structs": (describe(empty_structs(most)), MALFORMED),
        "topics that are not there": (describe(wire.list_pointer(0, wire.POINTERS, most)), MALFORMED),
        "pairs": (routed(pairs(empty_structs(most))), BATCH_MALFORMED),
        "pairs without bits": (routed(pairs(wire.list_pointer(0, 0, most))), BATCH_MALFORMED),
        "65,535 pairs, as the batch says": (routed(pairs(empty_structs(65_535)), 65_535), BATCH_MALFORMED),
        "labels": (routed(one_pair(NUL_WORD, empty_structs(most))), BATCH_MALFORMED),
        "256 labels": (routed(one_pair(NUL_WORD, empty_structs(256))), BATCH_MALFORMED),
        "a column": (with_field(wire.PRIORITIES, wire.list_pointer(8, wire.BYTES, most)), BATCH_MALFORMED),
        "a column without bits": (with_field(wire.PRIORITIES, wire.list_pointer(8, 0, most)), BATCH_MALFORMED),
        "a column of a body": (with_body_field(wire.VALUES, wire.list_pointer(8, wire.BYTES, most)), BATCH_MALFORMED),
        "2^32-1 records": (PUBLISH + wire.batch(2**32 - 1, {wire.BODY: wire.body([b"v"])}), BATCH_MALFORMED),
    }
    with attacked(broker, memory_bytes=4 << 20) as attack:
        attack.tries(cases)


def test_overlapping_pointers_do_not_amplify_the_input(broker: WatchedBroker) -> None:
    count, size = 60_000, 1 << 16
    names = b"".join(wire.list_pointer(count - 1 - place, wire.BYTES, size) for place in range(count))
    shared = b"x" * (size - 1) + b"\0"
    requests = {
        "60,000 topics of 64 KiB in half a megabyte": (
            describe(wire.list_pointer(0, wire.POINTERS, count) + names + shared),
            MALFORMED,
        ),
        "lists that share their settlements": (
            settle(wire.list_pointer(0, wire.STRUCTS, 6 * 40_000) + wire.tag(40_000, 6, 0) + bytes(8 * 60_000)),
            MALFORMED,
        ),
    }
    values = bytes(1 << 19)
    content = wire.body([values])
    body_words = len(content) // 8
    twice: dict[int, bytes | tuple[int, int]] = {wire.BODY: content, wire.IDS: (0, len(content))}
    keyed = wire.body([values], {3: (0, 8), 4: (1, len(values))})
    batches = {
        "fields of a batch": (PUBLISH + wire.batch(1, twice), BATCH_MALFORMED),
        "columns of a body": (PUBLISH + wire.batch(1, {wire.BODY: keyed}), BATCH_MALFORMED),
        "routing keys": (routed(shared_keys(4_000, 4_000), 4_000), BATCH_MALFORMED),
        "labels": (routed(shared_labels(4_000, 256), 4_000), BATCH_MALFORMED),
    }
    assert body_words > 1 << 15
    with attacked(broker, memory_bytes=12 << 20, cpu_s=0.3) as attack:
        attack.tries(requests | batches)


def shared_keys(count: int, size: int) -> bytes:
    """Pairs whose routing keys are the same bytes."""
    key = b"k" * size + b"\0"
    inside = b"".join(
        wire.list_pointer(2 * (count - place) - 1, wire.BYTES, len(key)) + NUL_WORD for place in range(count)
    )
    return pairs(wire.list_pointer(0, wire.STRUCTS, 2 * count) + wire.tag(count, 0, 2) + inside + key)


def shared_labels(count: int, labels: int) -> bytes:
    """Pairs whose labels are the same list."""
    inside = b"".join(
        NUL_WORD + wire.list_pointer(2 * (count - place - 1), wire.STRUCTS, 4 * labels) for place in range(count)
    )
    return pairs(
        wire.list_pointer(0, wire.STRUCTS, 2 * count)
        + wire.tag(count, 0, 2)
        + inside
        + wire.tag(labels, 2, 2)
        + bytes(32 * labels)
    )


def test_an_unknown_member_fails_alone_and_an_unknown_number_is_refused(broker: WatchedBroker) -> None:
    values = wire.body([b"v"])
    acks = struct.pack("<HHI", 0, 3, 0)
    publish = wire.struct_pointer(0, 1, 1) + acks + wire.text(b"t\0")
    cases = {
        "a member behind the last": (wire.control(len(wire.MEMBERS), NUL_WORD), "failed protocol.request_unknown"),
        "member 65,535": (wire.control(65_535, NUL_WORD), "failed protocol.request_unknown"),
        "an unknown member with a batch": (
            wire.control(999, NUL_WORD, batches=1) + wire.plain([b"v"]),
            "failed protocol.request_unknown",
        ),
        "a member that is another's": (wire.control("ping", wire.struct_pointer(0, 0, 1) + NUL_WORD), "answered"),
        "what only brokers say": (wire.control("published", NUL_WORD), MALFORMED),
        "acks 3": (wire.control("publish", publish, batches=1) + wire.plain([b"v"]), "failed protocol.request_unknown"),
        "codec 2": (PUBLISH + wire.batch(1, {wire.BODY: values}, codec=2), BATCH_MALFORMED),
        "a kind of label": (routed(one_label(kind=4)), BATCH_MALFORMED),
        "a format": (
            PUBLISH + wire.batch(1, {wire.BODY: b"another's batch"}, format=255),
            "failed batch.format_unknown",
        ),
    }
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(cases)
        peer = attack.connect()
        subscribed = peer.ask(m.Subscribe("q"))
        assert isinstance(subscribed, m.Subscribed)
        verdicts = struct.pack("<iIQqqII", 0, 0, 1, 0, 1, 4 << 16, 0)
        settled = peer.ask_raw(
            wire.control(
                "settle",
                wire.struct_pointer(0, 1, 1)
                + struct.pack("<Q", subscribed.subscription)
                + wire.list_pointer(0, wire.STRUCTS, 5)
                + wire.tag(1, 5, 0)
                + verdicts,
            )
        )
        assert isinstance(settled, m.Settled)
        assert [refusal.code for refusal in settled.refused] == ["delivery.not_current"]
        peer.is_served()


def one_label(name: bytes = b"n\0", kind: int = 0, value: bytes = b"v\0") -> bytes:
    """Routes of one pair with one label."""
    numbers = struct.pack("<HHIQ", kind, 0, 0, 0)
    label = numbers + wire.list_pointer(1, wire.BYTES, len(name)) + wire.list_pointer(1, wire.BYTES, len(value))
    labels = wire.list_pointer(0, wire.STRUCTS, 4) + wire.tag(1, 2, 2)
    return one_pair(NUL_WORD, labels + label + wire.padded(name) + wire.padded(value))


def far_request(pointer: bytes, *segments: bytes) -> bytes:
    """A describe whose struct is behind this pointer, in a message with more segments."""
    return wire.framed(wire.root("describe") + pointer, *segments)


def test_far_pointers_lead_to_valid_data_or_are_refused(broker: WatchedBroker) -> None:
    topics = wire.struct_pointer(0, 0, 1) + wire.list_pointer(0, wire.POINTERS, 1) + wire.text(b"t\0")
    far_itself = wire.far_pointer(0, 3)
    cases = {
        "to the next segment": (far_request(wire.far_pointer(1, 0), topics), "answered"),
        "by two hops": (
            far_request(wire.far_pointer(1, 0, double=True), wire.far_pointer(2, 0) + wire.tag(0, 0, 1), topics[8:]),
            "answered",
        ),
        "to no segment": (far_request(wire.far_pointer(9, 0), topics), MALFORMED),
        "to segment 2^32-1": (far_request(wire.far_pointer(2**32 - 1, 0), topics), MALFORMED),
        "beyond a segment": (far_request(wire.far_pointer(1, 2**29 - 1), topics), MALFORMED),
        "to itself": (wire.framed(wire.root("describe") + far_itself), MALFORMED),
        "to itself in two hops": (
            wire.framed(wire.root("describe") + wire.far_pointer(0, 3, double=True) + far_itself),
            MALFORMED,
        ),
        "in a circle": (far_request(wire.far_pointer(1, 0), wire.far_pointer(0, 3)), MALFORMED),
        "in a circle of two hops": (
            far_request(wire.far_pointer(1, 0, double=True), wire.far_pointer(1, 0, double=True) + wire.tag(0, 0, 1)),
            MALFORMED,
        ),
        "a root far away": (wire.framed(wire.far_pointer(1, 0), wire.root("ping") + NUL_WORD), "answered"),
        "a capability": (wire.control("describe", struct.pack("<II", 3, 0)), MALFORMED),
        "a batch's root": (PUBLISH + far_root(wire.plain([b"v"])), "refused batch.malformed"),
        "a batch's column": (with_field(wire.BODY, wire.far_pointer(1, 0)), BATCH_MALFORMED),
        "a body's column": (with_body_field(wire.VALUES, wire.far_pointer(0, 0)), BATCH_MALFORMED),
        "routes": (routed(wire.far_pointer(0, 0)), BATCH_MALFORMED),
        "a routing key": (routed(one_pair(wire.far_pointer(1, 0))), BATCH_MALFORMED),
        "a routing key in its own segment": (routed(one_pair(wire.far_pointer(0, 3))), BATCH_MALFORMED),
    }
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(cases)


def far_root(message: bytes) -> bytes:
    """A batch whose root pointer is a far one."""
    return wire.sealed(message[:8] + wire.far_pointer(0, 1) + message[16:])


TEXTS = {
    "without its NUL": b"abcd",
    "of no bytes": b"",
    "that is not UTF-8": b"t\xff\xfe\0",
    "half a character": b"\xed\xa0\x80\0",
    "cut in a character": b"t\xe2\x82\0",
    "overlong": b"\xc0\xaf\0",
}


def test_text_without_its_end_or_that_is_no_utf_8_is_refused(broker: WatchedBroker) -> None:
    requests = {f"a topic {name}": (describe_one(text), MALFORMED) for name, text in TEXTS.items()}
    reasons = {
        f"a reason {name}": (
            wire.control(
                "settle",
                wire.struct_pointer(0, 1, 2) + NUL_WORD * 2 + wire.list_pointer(0, wire.POINTERS, 1) + wire.text(text),
            ),
            MALFORMED,
        )
        for name, text in TEXTS.items()
    }
    published = {
        f"a target {name}": (
            wire.control("publish", wire.struct_pointer(0, 1, 1) + NUL_WORD + wire.text(text), batches=1)
            + wire.plain([b"v"]),
            MALFORMED,
        )
        for name, text in TEXTS.items()
    }
    keys = {
        f"a routing key {name}": (routed(one_pair(*key_and_text(text))), BATCH_MALFORMED)
        for name, text in TEXTS.items()
    }
    labels = {f"a label {name}": (routed(one_label(name=text)), BATCH_MALFORMED) for name, text in TEXTS.items()}
    values = {
        f"a label's text {name}": (routed(one_label(value=text)), BATCH_MALFORMED) for name, text in TEXTS.items()
    }
    arguments = {
        "arguments": (administer('{"name": "\\udcff"}'), "failed config.invalid"),
        "a name": (administer('{"name": "\\u0000"}'), "failed config.invalid"),
    }
    with attacked(broker, memory_bytes=2 << 20, cpu_s=0.3) as attack:
        attack.tries(requests | reasons | published | keys | labels | values | arguments)
        hellos = {name: (wire.control("hello", greeting(text)), MALFORMED) for name, text in TEXTS.items()}
        attack.tries(hellos, greeted=False)


def describe_one(text: bytes) -> bytes:
    return describe(wire.list_pointer(0, wire.POINTERS, 1) + wire.text(text))


def key_and_text(text: bytes) -> tuple[bytes, bytes]:
    """A pair's two pointers: its routing key is this text, which lies behind both."""
    return wire.list_pointer(1, wire.BYTES, len(text)), NUL_WORD + wire.padded(text)


def greeting(client: bytes) -> bytes:
    return wire.struct_pointer(0, 1, 2) + struct.pack("<HHI", 1, 1, 0) + NUL_WORD + wire.text(client)
