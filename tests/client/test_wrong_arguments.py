"""Arguments of a wrong type or out of range, for everything that is public: each is refused by an error of linn's."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import anyio
import numpy as np
import pytest
from both_loops import on_both_loops

import linn
from linn.client.produce.properties import checked_pair
from linn.core.batch.routes import decode_routes, encode_routes
from linn.core.errors.tree import AddressInvalid, LinnError, MessageInvalid


class Colour(enum.IntEnum):
    NONE = 0
    RED = 3


class Text(str):
    __slots__ = ()


class Fraction(float):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (np.float64(1.5), 1.5),
        (Fraction(0.5), 0.5),
        (Colour.RED, 3),
        (Text("x"), "x"),
        (np.str_("x"), "x"),
        (True, True),
        (-(1 << 63), -(1 << 63)),
    ],
)
def test_a_label_of_a_subclass_is_read_as_the_plain_value(value: Any, read: object) -> None:
    ((_, ((_, found),)),) = decode_routes(encode_routes([checked_pair("", {"a": value})]), 1)
    assert (found, type(found)) == (read, type(read))


@pytest.mark.parametrize(
    "value",
    [np.int64(1), np.float32(1), np.bool_(True), np.array([1]), Decimal(1), b"x", None, [], {}, 1j, datetime.max],
    ids=lambda value: type(value).__name__,
)
def test_a_label_of_another_type_is_refused_with_its_name_and_type(value: Any) -> None:
    found = type(value).__name__
    with pytest.raises(MessageInvalid, match=rf"label 'a' must be text, int, float or bool, not {found}"):
        checked_pair("", {"a": value})


@pytest.mark.parametrize(
    ("routing_key", "labels", "text"),
    [
        (1, {}, "routing key must be text, not int"),
        ("", [1], "labels must be a mapping from text to values, not list"),
        ("", {1: 1}, "a label's name must be text, not int"),
        ("", {None: 1, "a": 2}, "a label's name must be text, not NoneType"),
        ("", {"a": 1 << 63}, "label 'a' does not fit into 64 bits"),
        ("", {"a": 10**5000}, "label 'a' does not fit into 64 bits"),
        ("", {"\ud800": 1}, "a label's name is not valid Unicode"),
        ("", {"a": "\ud800"}, "label 'a' is not valid Unicode"),
        ("\ud800", {}, "routing key is not valid Unicode"),
    ],
)
def test_a_wrong_routing_key_or_label_is_named(routing_key: Any, labels: Any, text: str) -> None:
    with pytest.raises(MessageInvalid, match=text):
        checked_pair(routing_key, labels)


NOTHING = object()
WRONG_NUMBERS = (-1, 10**30, 10**5000, 1.5, math.nan, math.inf, "x", None, [1], b"1", np.int64(1), True)
WRONG_SPANS = (-1, math.nan, "x", [1], 10**5000, b"1", -math.inf)
WRONG_TEXTS = (5, b"x", None, ["x"], "\ud800", math.nan)
WRONG_BYTES = ("x", 5, 1.5, ["x"], {})
NUMBERS_OF_A_MESSAGE = ("priority", "delay_ms", "ttl_ms")
EXTREME_TIMES = (datetime.min, datetime.max)

Case = tuple[str, Callable[..., Any], tuple[object, ...]]


def connection_cases() -> list[tuple[str, object]]:
    """Wrong options of `connect`."""
    found: list[tuple[str, object]] = [("name", wrong) for wrong in WRONG_TEXTS]
    found += [("retries_max", wrong) for wrong in WRONG_NUMBERS if wrong is not None]
    for option in ("connect_timeout_s", "request_timeout_s", "backoff_s", "backoff_max_s", "metadata_age_max_s"):
        found += [(option, wrong) for wrong in (*WRONG_SPANS, None)]
    return found


@on_both_loops
async def test_wrong_options_of_connect_are_refused_before_anything_is_done(broker: str) -> None:
    for option, wrong in connection_cases():
        with pytest.raises(MessageInvalid, match=option):
            async with linn.connect("linn://127.0.0.1:1", **{option: wrong}):  # type: ignore[arg-type]
                pass
        with pytest.raises(MessageInvalid, match=option):
            linn.sync.connect("linn://127.0.0.1:1", **{option: wrong})  # type: ignore[arg-type]
    for url in (5, None, b"linn://127.0.0.1", "\ud800", ["linn://127.0.0.1"], math.nan):
        with pytest.raises(AddressInvalid):
            linn.sync.connect(url)  # type: ignore[arg-type]


def client_cases(client: Any, topic: str) -> list[Case]:
    """(what, call, wrong values) for the methods of a client, async or blocking, that take one argument wrong."""
    admin, fetch = client.admin, client.fetch
    lengths = ("in_flight_max", "batch_bytes_max", "buffer_bytes_max")
    return [
        *((f"producer {each}", _with(client.producer, topic, _name=each), (0, *WRONG_NUMBERS)) for each in lengths),
        ("producer linger_ms", _with(client.producer, topic, _name="linger_ms"), (*WRONG_SPANS, None)),
        ("producer acks", _with(client.producer, topic, _name="acks"), (5, "some", None, ["all"])),
        ("producer codec", _with(client.producer, topic, _name="codec"), (5, "gzip", ["zstd"])),
        ("producer topic", client.producer, WRONG_TEXTS),
        ("producer exchange", lambda wrong: client.producer(exchange=wrong), WRONG_TEXTS),
        ("consumer topic", client.consumer, (5, b"x", [5], [], ["x", "x"], ["x", "y"], "\ud800", math.nan)),
        ("consumer group", lambda wrong: client.consumer(topic, wrong), (5, b"x", ["x"], "\ud800", math.nan)),
        (
            "consumer prefetch",
            _with(client.consumer, topic, _name="prefetch"),
            (0, 2**40, *(wrong for wrong in WRONG_NUMBERS if wrong is not None)),
        ),
        ("consumer renewal_max_s", _with(client.consumer, topic, _name="renewal_max_s"), (*WRONG_SPANS, None)),
        ("consumer mode", _with(client.consumer, topic, _name="mode"), (5, "poll", None, ["push"])),
        (
            "consumer start",
            _with(client.consumer, topic, _name="start"),
            (*WRONG_NUMBERS, True, "first", {}, *EXTREME_TIMES[:1]),
        ),
        ("fetch topic", lambda wrong: fetch(wrong, 0, 0), WRONG_TEXTS),
        ("fetch partition", lambda wrong: fetch(topic, wrong, 0), (2**31, *WRONG_NUMBERS)),
        ("fetch offset", lambda wrong: fetch(topic, 0, wrong), (2**63, *WRONG_NUMBERS)),
        ("fetch bytes_min", lambda wrong: fetch(topic, 0, 0, bytes_min=wrong), WRONG_NUMBERS),
        ("fetch bytes_max", lambda wrong: fetch(topic, 0, 0, bytes_max=wrong), WRONG_NUMBERS),
        ("fetch wait_s", lambda wrong: fetch(topic, 0, 0, wait_s=wrong), (*WRONG_SPANS, math.inf, 2**32, None)),
        ("find_offset topic", lambda wrong: client.find_offset(wrong, 0, 0), WRONG_TEXTS),
        ("find_offset partition", lambda wrong: client.find_offset(topic, wrong, 0), (2**31, *WRONG_NUMBERS)),
        ("find_offset place", lambda wrong: client.find_offset(topic, 0, wrong), (2**63, *WRONG_NUMBERS[1:])),
        ("describe", client.describe, WRONG_TEXTS),
        ("perform verb", admin.perform, WRONG_TEXTS),
        ("perform argument", lambda wrong: admin.perform("topic.show", name=wrong), (object(), b"x", *WRONG_TEXTS)),
        ("topic name", admin.topic, WRONG_TEXTS),
        ("setting", lambda wrong: admin.create_topic("x", partitions=wrong), (0, *WRONG_NUMBERS)),
        ("exchange", admin.exchange, WRONG_TEXTS),
        ("binding key", lambda wrong: admin.bind("events", topic, wrong), WRONG_TEXTS),
        ("binding argument", lambda wrong: admin.bind("events", topic, "k", x=wrong), (5, 10**30, object(), math.nan)),
        ("reset to", lambda wrong: admin.reset_group(topic, "g", wrong), (*WRONG_NUMBERS, {}, *EXTREME_TIMES)),
    ]


def _with(call: Callable[..., Any], topic: str, *, _name: str) -> Callable[..., Any]:
    return lambda wrong: call(topic, **{_name: wrong})


def message_cases(producer: Any) -> list[Case]:
    """The same for a producer's methods."""
    found: list[Case] = []
    for name in ("publish", "publish_nowait"):
        call = getattr(producer, name)
        found += [
            (f"{name} value", call, WRONG_BYTES),
            (f"{name} key", _message(call, "key"), WRONG_BYTES),
            (f"{name} routing_key", _message(call, "routing_key"), (5, b"x", ["x"], "\ud800")),
            (f"{name} labels", _message(call, "labels"), (5, "x", [1], {"a": None}, {1: 1}, {"a": {}})),
            (f"{name} headers", _message(call, "headers"), (5, "x", [1], {"a": 5}, {1: b"x"}, {"\ud800": b"x"})),
            (f"{name} id", _message(call, "id"), (5, "x", b"x" * 16)),
            (f"{name} timestamp_ms", _message(call, "timestamp_ms"), WRONG_NUMBERS[:7]),
            *((f"{name} {each}", _message(call, each), WRONG_NUMBERS[:7]) for each in NUMBERS_OF_A_MESSAGE),
        ]
    many = producer.publish_many
    found += [
        ("publish_many values", many, (5, "x", b"x", {}, [5], ["x"], [b"x", [1]], None)),
        ("publish_many keys", lambda wrong: many([b"x"], keys=wrong), (5, "x", [5], ["x"], [b"x", b"y"])),
        ("publish_many routing_keys", lambda wrong: many([b"x"], routing_keys=wrong), (5, [5], [["x"]], ["\ud800"])),
        ("publish_many labels", lambda wrong: many([b"x"], labels=wrong), (5, [5], [{"a": None}], {"a": b""})),
        ("publish_many headers", lambda wrong: many([b"x"], headers=wrong), (5, [5], [{"a": 5}], "x")),
        *((f"many {each}", _many(many, each), WRONG_NUMBERS) for each in NUMBERS_OF_A_MESSAGE),
    ]
    return found


def _message(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda wrong: call(b"x", **{name: wrong})


def _many(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda wrong: call([b"x"], **{name: wrong})


def settling_cases(message: Any) -> list[Case]:
    """The same for what a consumer hands over."""
    wrong_ms = (2**32, *WRONG_NUMBERS)
    found: list[Case] = []
    for each in (message, message.batch):
        found += [
            ("nack", each.nack, wrong_ms),
            ("extend", each.extend, wrong_ms),
            ("process delay_ms", lambda wrong, each=each: each.process("nack", wrong), wrong_ms),
            ("process on_error", each.process, (5, "drop", None, ["nack"])),
        ]
    return found


def complaint(what: str, wrong: object, error: BaseException | None) -> str | None:
    """A line about a broken promise; None if a LinnError of one line was raised."""
    try:
        shown = repr(wrong)[:40]
    except ValueError:
        shown = "a huge int"
    if error is None:
        return f"{what}={shown}: taken"
    if not isinstance(error, LinnError) or "\n" in str(error) or error.code == "linn.internal":
        return f"{what}={shown}: {type(error).__name__}: {error}"[:300]
    return None


async def complaints(cases: list[Case]) -> list[str]:
    """The broken promises of async calls."""
    found = []
    for what, call, every in cases:
        for wrong in every:
            error: BaseException | None = None
            try:
                made = call(wrong)
                if hasattr(made, "__await__"):
                    await made
            except Exception as raised:
                error = raised
            found.append(complaint(what, wrong, error))
    return [each for each in found if each is not None]


def blocking_complaints(cases: list[Case]) -> list[str]:
    """The broken promises of blocking calls."""
    return anyio.run(complaints, cases)


@on_both_loops
async def test_the_async_client_refuses_wrong_arguments_and_continues(client: linn.client.Client, name: str) -> None:
    await client.admin.create_topic(name)
    await client.admin.create_topic(f"{name}-stream", kind="stream")
    assert await complaints(client_cases(client, f"{name}-stream")) == []
    async with client.producer(name) as producer:
        assert await complaints(message_cases(producer)) == []
        await producer.publish(b"good", priority=Colour.NONE, labels={"a": Colour.RED}, timestamp_ms=Colour.RED)
    async with client.consumer(name, mode="pull") as consumer:
        pulls: list[Case] = [
            ("pull records_max", consumer.pull, (2**32, *WRONG_NUMBERS)),
            ("pull wait_s", lambda wrong: consumer.pull(1, wrong), (*WRONG_SPANS, math.inf, 2**32, None)),
        ]
        assert await complaints(pulls) == []
        message = await anext(consumer)
        assert (message.value, message.priority, message.labels["a"]) == (b"good", 0, 3)
        assert await complaints(settling_cases(message)) == []
        await message.ack()


def test_the_blocking_client_refuses_wrong_arguments_and_continues(client: linn.sync.Client, name: str) -> None:
    client.admin.create_topic(name)
    client.admin.create_topic(f"{name}-stream", kind="stream")
    assert blocking_complaints(client_cases(client, f"{name}-stream")) == []
    with client.producer(name) as producer:
        cases = message_cases(producer)
        cases += [
            ("publish timeout_s", lambda wrong: producer.publish(b"x", timeout_s=wrong), WRONG_SPANS),
            ("publish_many timeout_s", lambda wrong: producer.publish_many([b"x"], timeout_s=wrong), WRONG_SPANS),
            ("flush timeout_s", lambda wrong: producer.flush(timeout_s=wrong), WRONG_SPANS),
        ]
        assert blocking_complaints(cases) == []
        producer.publish(b"good")
    with client.consumer(name, mode="pull") as consumer:
        cases = [
            ("pull records_max", consumer.pull, (2**32, *WRONG_NUMBERS)),
            ("pull wait_s", lambda wrong: consumer.pull(1, wrong), (*WRONG_SPANS, math.inf, 2**32, None)),
            ("get timeout_s", lambda wrong: consumer.get(timeout_s=wrong), WRONG_SPANS),
            ("next_batch timeout_s", lambda wrong: consumer.next_batch(timeout_s=wrong), WRONG_SPANS),
        ]
        assert blocking_complaints(cases) == []
        message = next(consumer)
        assert message.value == b"good"
        assert blocking_complaints(settling_cases(message)) == []
        settled = message.ack()
        assert blocking_complaints([("wait", settled.wait, WRONG_SPANS)]) == []
        settled.wait()
