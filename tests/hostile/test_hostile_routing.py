"""Patterns and predicates that were made to backtrack or to nest, in bindings and in what is published."""

from __future__ import annotations

import json

import wire
from attack import WatchedBroker, attacked, request

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.wire import messages as m

CONFIG = """
[exchanges.patterns]
type = "topic"
[exchanges.predicates]
type = "content"
[exchanges.tables]
type = "headers"
[topics.t]
kind = "stream"
"""
PATTERN_WORDS_MAX, KEY_WORDS_MAX = 64, 128
PATTERNS = [
    *[".".join(["#"] * count) for count in (2, 31, PATTERN_WORDS_MAX)],
    *[".".join(["#", word] * (PATTERN_WORDS_MAX // 2)) for word in ("a", "*", "b")],
    *[".".join([*["#", "a"] * 31, last]) for last in ("b", "*", "#")],
    *[".".join(["a"] * count + ["#"] * (PATTERN_WORDS_MAX - count)) for count in range(1, PATTERN_WORDS_MAX)],
]
LONGEST_PATTERNS = [".".join(["#", "a"] * 31 + ["*", f"b{number}"]) for number in range(400)]
KEYS = {
    "one word again and again": ".".join(["a"] * KEY_WORDS_MAX),
    "nearly what the patterns want": ".".join(["a", "b"] * (KEY_WORDS_MAX // 2)),
    "empty words": "." * (KEY_WORDS_MAX - 1),
    "hashes": ".".join(["#"] * KEY_WORDS_MAX),
}
LONG = 1 << 15
PREDICATES = {
    "100,000 parentheses": "(" * 100_000,
    "nested 33 deep": "(" * 33 + "true" + ")" * 33,
    "parentheses up to the limit": "(" * 4_096,
    "not not not": "not " * 1_024 + "true",
    "an open quote": '"' * 4_096,
    "backslashes": 'key = "' + "\\" * 4_000,
    "a long word": "label." + "a-" * 2_000,
    "a long number": "size = " + "9" * 4_000,
    "dots": "a." * 2_048,
    "too long": "true or " * LONG + "true",
    "300 values": f"size in ({','.join(['1'] * 300)})",
    "300 tests": " or ".join(["true"] * 300),
}


def binding(exchange: str, key: str = "", **arguments: object) -> bytes:
    asked = {"exchange": exchange, "topic": "t", "key": key, "arguments": arguments}
    return request(m.Administer("exchange.bind", json.dumps(asked)))


def publish(exchange: str, routing_key: str = "", **labels: int) -> bytes:
    record = Record(value=b"v", routing_key=routing_key, labels=labels)
    return request(m.Publish(exchange, True), wire.CORRELATION, 1) + bytes(
        build_from_records([record], base_id=1).message
    )


def test_no_pattern_makes_a_long_routing_key_backtrack(broker: WatchedBroker) -> None:
    long = {f"a pattern of {words} words": ".".join(["#"] * words) for words in (PATTERN_WORDS_MAX + 1, 30_000)}
    with attacked(broker, cpu_s=0.5) as attack:
        attack.tries(
            {name: (binding("patterns", key), "failed exchange.binding_invalid") for name, key in long.items()}
        )
        attack.tries({pattern: (binding("patterns", pattern), "answered") for pattern in PATTERNS})
        attack.tries({name: (publish("patterns", key), "answered") for name, key in KEYS.items()})
        batch = build_from_records([Record(value=b"v", routing_key="a." * 2_047)], base_id=1)
        peer = attack.connect()
        answer = peer.ask(m.Publish("patterns", True), bytes(batch.message))
        assert isinstance(answer, m.Published)
        assert [refused.code for refused in answer.placements[0].refused] == ["limit.exceeded"]
        peer.is_served()


def test_a_batch_of_thousands_of_long_keys_is_routed_in_turns_until_its_time_is_up(broker: WatchedBroker) -> None:
    words = ["a"] * (KEY_WORDS_MAX - 1)
    keys = [".".join([*words, str(number)]) for number in range(6_000)]
    batch = bytes(build_from_records([Record(value=b"v", routing_key=key) for key in keys], base_id=1).message)
    with attacked(broker, cpu_s=6, memory_bytes=64 << 20, answer_s=10) as attack:
        attack.tries({pattern: (binding("patterns", pattern), "answered") for pattern in LONGEST_PATTERNS})
        attack.tries({"6,000 keys": (request(m.Publish("patterns", True), 7, 1) + batch, "failed limit.exceeded")})


def test_hundreds_of_the_longest_patterns_cost_a_publish_milliseconds(broker: WatchedBroker) -> None:
    words = ["a"] * (KEY_WORDS_MAX - 1)
    records = [Record(value=b"v", routing_key=".".join([*words, str(number)])) for number in range(50)]
    batch = bytes(build_from_records(records, base_id=1).message)
    with attacked(broker, cpu_s=1) as attack:
        attack.tries({pattern: (binding("patterns", pattern), "answered") for pattern in LONGEST_PATTERNS})
        attack.tries({"50 keys": (request(m.Publish("patterns", True), 7, 1) + batch, "answered")})


def test_no_predicate_nests_or_grows_beyond_its_limits(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=0.5) as attack:
        attack.tries(
            {name: (binding("predicates", when=text), "failed predicate.invalid") for name, text in PREDICATES.items()}
        )
        many = {f"l{number}": number for number in range(10_000)}
        attack.tries(
            {
                "a table of 10,000 labels": (binding("tables", labels=many), "failed exchange.binding_invalid"),
                "a predicate where there is none": (
                    binding("tables", when="(" * 9_999),
                    "failed exchange.binding_invalid",
                ),
                "a field that never ends": (
                    binding("tables", exists=["label." + "a." * LONG]),
                    "failed exchange.binding_invalid",
                ),
            }
        )


def test_the_largest_predicates_cost_a_message_little(broker: WatchedBroker) -> None:
    nested = "not (" * 15 + "label.a = 1" + ")" * 15
    texts = [
        " and ".join([f"not label.a{number} = {number}" for number in range(turn, turn + 120)]) for turn in range(20)
    ]
    labels = {f"a{number}": number + 1 for number in range(256)}
    with attacked(broker, cpu_s=0.5) as attack:
        attack.tries({text: (binding("predicates", when=text), "answered") for text in [nested, *texts]})
        peer = attack.connect()
        for _ in range(20):
            peer.send(publish("predicates", **labels))
            _, answer = peer.frame()
            assert isinstance(answer, m.Published), answer
        peer.is_served()
