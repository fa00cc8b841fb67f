"""Verbs whose arguments are large, many or slow to carry out."""

from __future__ import annotations

import json

import pytest
import wire
from attack import Peer, WatchedBroker, attacked, request

from linn.core.admin.verb import ARGUMENTS_BYTES_MAX, VALUES_MAX
from linn.core.config.topic_settings import PARTITIONS_MAX
from linn.protocols.capnp.administering import DESCRIBED_MAX
from linn.wire import messages as m

CONFIG = """
[exchanges.direct]
type = "direct"
[topics.s]
kind = "stream"
"""
TOO_LARGE, TOO_MANY = "failed limit.exceeded", "failed config.invalid"
SLOW_PARTITIONS = 400
WIDE_TOPICS = 25


def asked(verb: str, arguments: str) -> bytes:
    return request(m.Administer(verb, arguments), wire.CORRELATION)


def bindings(count: int, exchange: str, start: int = 0) -> dict[str, object]:
    return {"bindings": [{"exchange": exchange, "key": f"{number:x}"} for number in range(start, start + count)]}


def array_of(value: str, count: int) -> str:
    return '{"name":"x","settings":[' + f"{value}," * count + "0]}"


def test_arguments_are_refused_for_their_size_before_they_are_decoded(broker: WatchedBroker) -> None:
    cases = {}
    for value in ("0", "[]", '{"":0}', "1e9", '"a":0'):
        most = (ARGUMENTS_BYTES_MAX - 100) // (len(value) + 1)
        cases[f"15 MiB of {value}"] = (asked("topic.create", array_of(value, 15 * most)), TOO_LARGE)
        cases[f"a mebibyte of {value}"] = (asked("topic.create", array_of(value, most)), TOO_MANY)
    cases["a key of 15 MiB"] = (asked("exchange.bind", f'{{"key":"{"x" * (15 << 20)}"}}'), TOO_LARGE)
    with attacked(broker, cpu_s=0.5, memory_bytes=72 << 20) as attack:
        attack.tries(cases)


def test_the_first_error_ends_the_search(broker: WatchedBroker) -> None:
    count = VALUES_MAX - 16
    settings = {
        "unknown keys": ({f"{number:x}": 0 for number in range(count)}, "failed config.unknown_key"),
        "unknown interceptors": ({"interceptors": [f"{number:x}" for number in range(count)]}, "failed plugin.unknown"),
        "unknown exchanges": (bindings(count // 3, "nowhere"), "failed config.invalid"),
    }
    cases = {
        name: (asked("topic.create", json.dumps({"name": "x", "settings": those})), outcome)
        for name, (those, outcome) in settings.items()
    }
    cases["unknown arguments"] = (
        asked("topic.list", json.dumps({f"{number:x}": 0 for number in range(count)})),
        "failed config.unknown_key",
    )
    with attacked(broker, cpu_s=0.4, memory_bytes=12 << 20) as attack:
        attack.tries(cases)


def test_lists_of_names_and_of_partitions_end(broker: WatchedBroker) -> None:
    names = [f"linn_{number:x}" for number in range(10_000)]
    reset = {"group": "bystanders", "to": "latest", "partitions": [0] * (PARTITIONS_MAX + 1)}
    with attacked(broker) as attack:
        attack.tries(
            {
                "65,536 topics": (request(m.Describe(["x"] * (1 << 16)), wire.CORRELATION), TOO_LARGE),
                "the most topics": (request(m.Describe(names[:DESCRIBED_MAX]), wire.CORRELATION), "answered"),
                "10,000 names of metrics": (asked("metrics.show", json.dumps({"names": names})), TOO_LARGE),
                "more partitions than a topic has": (asked("group.reset", json.dumps(reset)), "failed limit.exceeded"),
            }
        )


def test_ten_thousand_bindings_are_made_changed_and_added_to_in_linear_time(broker: WatchedBroker) -> None:
    count = VALUES_MAX // 3 - 16
    first, second = bindings(count, "direct"), bindings(count, "direct", count)
    with attacked(broker, cpu_s=2.0, memory_bytes=32 << 20) as attack:
        peer = attack.connect()
        for verb, arguments in (
            ("topic.create", {"name": "many", "settings": first}),
            ("topic.alter", {"name": "many", "settings": {"partitions": 2}}),
            ("topic.alter", {"name": "many", "settings": second}),
            ("exchange.bind", {"exchange": "direct", "topic": "many", "key": "more"}),
            ("exchange.unbind", {"exchange": "direct", "topic": "many", "key": "more"}),
            ("topic.delete", {"name": "many"}),
        ):
            peer.send(asked(verb, json.dumps(arguments)))
            peer.is_answered()


@pytest.mark.parametrize("size", [60_000, ARGUMENTS_BYTES_MAX - 100])
def test_changes_behind_a_slow_one_wait_as_text_and_reads_do_not_wait(broker: WatchedBroker, size: int) -> None:
    slow = json.dumps({"name": f"slow-{size}", "settings": {"partitions": SLOW_PARTITIONS}})
    item = '{"":0},'
    waiting = '{"name":"x","settings":[' + item * (min(size, 2 * VALUES_MAX) // len(item)) + "0]}"
    with attacked(broker, cpu_s=6.0, memory_bytes=24 << 20, answer_s=20.0) as attack:
        maker, waiter, looker = attack.connect(), attack.connect(), attack.connect()
        maker.send(asked("topic.create", slow))
        for _ in range(10):
            waiter.send(asked("topic.create", waiting + " " * (size - len(waiting))))
        looker.socket.settimeout(2.0)
        for verb in ("broker.show", "topic.list", "exchange.list", "subscription.list", "metrics.show"):
            looker.send(asked(verb, "{}"))
            looker.is_answered()
        maker.is_answered()
        for _ in range(10):
            correlation, failed = waiter.frame()
            assert correlation == wire.CORRELATION
            assert isinstance(failed, m.Failed)
            assert failed.code == "config.invalid"
        waiter.is_served()
        maker.send(asked("topic.delete", json.dumps({"name": f"slow-{size}"})))
        maker.is_answered()


def test_many_partitions_are_described_and_listed_in_turns(broker: WatchedBroker) -> None:
    maker = Peer(broker.address, greeted=True)
    wide = {"kind": "stream", "storage": "dram", "partitions": PARTITIONS_MAX}
    for number in range(WIDE_TOPICS):
        maker.administer("topic.create", name=f"wide-{number}", settings=wide)
    with attacked(broker, cpu_s=3.0, memory_bytes=48 << 20) as attack:
        peer = attack.connect()
        for _ in range(3):
            peer.send(request(m.Describe(), 7), request(m.Ping(), 8))
            assert peer.frame() == (8, m.Pong()), "who asks for less does not wait for a long answer"
            correlation, described = peer.frame()
            assert correlation == 7
            assert isinstance(described, m.Description)
            assert sum(len(topic.partitions) for topic in described.topics) > WIDE_TOPICS * PARTITIONS_MAX
            peer.send(asked("topic.list", "{}"))
            peer.is_answered()
        peer.is_served()
    for number in range(WIDE_TOPICS):
        maker.administer("topic.delete", name=f"wide-{number}")
    maker.close()
