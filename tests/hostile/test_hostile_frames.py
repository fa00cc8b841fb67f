"""Frames that are none, or not what they say: to a running broker before hello, behind it, and in a batch's place."""

from __future__ import annotations

import ssl
import struct

import pytest
import wire
from attack import WatchedBroker, attacked, request

from linn.wire import messages as m
from linn.wire.connection import hello

CONFIG = """
[exchanges.e]
type = "fanout"
[topics.t]
kind = "stream"
bindings = [{ exchange = "e" }]
"""
PUBLISH = request(m.Publish("t"), wire.CORRELATION, batches=1)
MALFORMED = "refused protocol.malformed"
TOO_LARGE = "refused protocol.frame_too_large"


def sizes(*numbers: int) -> bytes:
    """A segment table that says this, and nothing behind it."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


LENGTHS = {
    "a frame of no words": (sizes(0, 0), MALFORMED),
    "a frame of 2^31 bytes": (sizes(0, 2**28), TOO_LARGE),
    "a frame of 2^31 words": (sizes(0, 2**31), TOO_LARGE),
    "a frame of 2^32-1 words": (sizes(0, 2**32 - 1), TOO_LARGE),
}


@pytest.mark.parametrize("place", ["before hello", "behind hello", "in a batch's place"])
def test_a_frame_of_no_length_or_of_gigabytes_is_refused_by_its_length_alone(broker: WatchedBroker, place: str) -> None:
    announced = PUBLISH if place == "in a batch's place" else b""
    cases = {name: (announced + data, outcome) for name, (data, outcome) in LENGTHS.items()}
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(cases, greeted=place != "before hello")


def test_before_hello_nothing_above_16_kib_is_taken(broker: WatchedBroker) -> None:
    largest = (16 << 10) - 8
    greeting = wire.control("hello", hello_of(b"x" * (largest - 100)))
    assert largest - 100 < len(greeting) <= largest + 8
    cases = {
        "a hello of a word more": (sizes(0, largest // 8 + 1) + bytes(largest + 8), TOO_LARGE),
        "a hello in two segments": (sizes(1, 1, largest // 8 - 1, 0) + bytes(largest), TOO_LARGE),
        "a publish that is large": (PUBLISH + wire.plain([bytes(1 << 20)]), MALFORMED + " protocol.frame_too_large"),
        "a hello that announces batches": (
            wire.control("hello", hello_of(b"x"), batches=3) + sizes(0, 1 << 14) + bytes(1 << 17),
            TOO_LARGE,
        ),
    }
    with attacked(broker, memory_bytes=4 << 20) as attack:
        attack.tries(cases, greeted=False)
        peer = attack.connect(greeted=False)
        peer.send(greeting)
        assert isinstance(peer.frame()[1], m.Welcome), "the limit itself is allowed"
        peer.is_served()


def hello_of(client: bytes) -> bytes:
    """The struct of a hello from a client with this name."""
    numbers = struct.pack("<HHI", 1, 1, 0)
    return wire.struct_pointer(0, 1, 2) + numbers + bytes(8) + wire.text(client + b"\0")


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


STRANGERS = {
    "TLS": (client_hello(), MALFORMED),
    "HTTP GET": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", MALFORMED),
    "HTTP POST": (b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n" + b"<script/>", MALFORMED),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), MALFORMED),
    "AMQP": (b"AMQP\x00\x00\x09\x01", MALFORMED),
    "Kafka": (struct.pack(">ihhih", 22, 18, 3, 1, 8) + b"a-client", MALFORMED),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", MALFORMED),
}


@pytest.mark.parametrize("greeted", [False, True], ids=["before hello", "behind hello"])
def test_tls_http_and_other_protocols_get_an_error_that_names_linn(broker: WatchedBroker, greeted: bool) -> None:
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(STRANGERS, greeted=greeted)


def test_a_table_of_too_many_segments_is_refused_before_it_is_read(broker: WatchedBroker) -> None:
    cases = {
        "2^32 segments": (sizes(2**32 - 1, 1), MALFORMED),
        "2^32-1 segments": (sizes(2**32 - 2, 1), MALFORMED),
        "65 segments": (sizes(64, 1), MALFORMED),
        "64 segments of 2^32-1 words": (sizes(63, *[2**32 - 1] * 64, 0), TOO_LARGE),
        "a batch of 2^32-1 segments": (PUBLISH + sizes(2**32 - 2, 1), MALFORMED),
        "a batch of two segments": (PUBLISH + wire.framed(bytes(400), bytes(8)), "refused batch.malformed"),
        "64 segments": (wire.framed(wire.root("ping") + bytes(8), *[bytes(8)] * 63), "answered"),
    }
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(cases)


def test_a_segment_that_is_larger_than_its_frame_is_refused_or_waited_for_in_vain(broker: WatchedBroker) -> None:
    values = wire.body([b"v"])
    longer = values[:4] + sizes(len(values)) + values[8:]
    routes = wire.framed(wire.struct_pointer(0, 0, 1) + bytes(8))
    longer_routes = routes[:4] + sizes(1_000) + routes[8:]
    cases = {
        "a frame that is cut": (sizes(0, 1_000) + bytes(80), "closed"),
        "a second segment over the limit": (sizes(1, 1, 1 << 22, 0) + bytes(8), TOO_LARGE),
        "a second segment that never comes": (sizes(1, 3, 1 << 15, 0) + wire.root("ping"), "closed"),
        "a body whose segment is longer": (PUBLISH + wire.batch(1, {wire.BODY: longer}), "failed batch.malformed"),
        "routes whose segment is longer": (
            request(m.Publish("e", True), wire.CORRELATION, 1)
            + wire.batch(1, {wire.ROUTES: longer_routes, wire.BODY: values}, pair_count=1),
            "failed batch.malformed",
        ),
    }
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(cases)


def test_a_frame_that_is_cut_anywhere_or_not_of_whole_words_is_refused(broker: WatchedBroker) -> None:
    whole = PUBLISH + wire.plain([b"v"])
    whole_hello = request(hello("x"), 1)
    cut = {f"{size} bytes of a publish": (whole[:size], "closed") for size in range(1, len(whole), 37)}
    short = {
        "a frame of one null word": (wire.framed(bytes(8)), MALFORMED),
        "a root beyond the end": (wire.framed(wire.struct_pointer(5, 2, 1) + bytes(8)), MALFORMED),
        "a root that is a list": (wire.framed(wire.list_pointer(0, 2, 8) + bytes(8)), MALFORMED),
        "a frame without its pointer's struct": (
            wire.framed(wire.root("publish") + wire.struct_pointer(0, 2, 1)),
            MALFORMED,
        ),
        "a body of 13 bytes": (PUBLISH + wire.batch(1, {wire.BODY: bytes(13)}), "failed batch.malformed"),
        "a body that begins in mid-word": (
            PUBLISH + wire.batch(1, {wire.BODY: b"\0" + wire.body([b"v"])}),
            "failed batch.malformed",
        ),
        "a batch of a few words": (PUBLISH + wire.framed(bytes(40)), "refused batch.malformed"),
    }
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(cut | short)
        attack.tries({"half a hello": (whole_hello[: len(whole_hello) // 2], "refused connection.lost")}, greeted=False)
