"""Plugins that raise, or hold up the loop: who uses them is told, the log names them, and everybody else goes on."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack import Peer, WatchedBroker, attacked, error_of
from hostile_plugin import BLOCK, BLOCK_MS, FORMAT, LATER, RAISE, RAISE_MS

from linn.core.batch.builder import build_from_records, wrap_body
from linn.core.batch.record import Record
from linn.wire import messages as m

CONFIG = """
[plugins]
load = ["hostile_plugin"]
[broker]
loop_held_max = "40ms"
[exchanges.e]
type = "hostile"
[topics.plain]
kind = "stream"
[topics.routed]
kind = "stream"
bindings = [{ exchange = "e" }]
[topics.intercepted]
interceptors = ["hostile"]
[topics.placed]
partitioner = "hostile"
partitions = 2
[topics.stored]
kind = "stream"
storage = "hostile"
[topics.settled]
delivery = "hostile"
"""
PAUSE_ROUNDS = 30
"""The pause between two plugins that block, so that the bystander's rate shows the cost of each."""


@pytest.fixture(scope="module")
def broker() -> Iterator[WatchedBroker]:
    """`linn serve` with the plugin."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("PYTHONPATH", os.fspath(Path(__file__).parent))
        with WatchedBroker(Path(folder), CONFIG) as watched:
            yield watched


def publish(peer: Peer, target: str, word: bytes, *, to_exchange: bool = False) -> str:
    """Publish a record whose value and routing key are `word`; the code of the error, or nothing."""
    batch = build_from_records([Record(value=word, routing_key=word.decode())], base_id=1)
    return code_of(peer.ask(m.Publish(target, to_exchange), batch.message))


def publish_body(peer: Peer, body: bytes) -> str:
    """Publish a record in the plugin's format; the code of the error, or nothing."""
    batch = wrap_body(FORMAT, body, 1, base_id=1, first_timestamp_ms=1, max_timestamp_ms=1)
    return code_of(peer.ask(m.Publish("plain"), batch.message))


def code_of(answer: m.Message) -> str:
    error = error_of(answer)
    return error.code if error else ""


def nack(peer: Peer, delay_ms: int) -> str:
    """Take the record of "settled" and nack it; the code of the error, or nothing."""
    subscribed = peer.ask(m.Subscribe("settled", credit=1))
    assert isinstance(subscribed, m.Subscribed), subscribed
    _, delivery = peer.frame()
    assert isinstance(delivery, m.Deliver), delivery
    settlement = m.Settlement(0, delivery.delivery_id, 0, 1, m.Verdict.NACK, delay_ms)
    code = code_of(peer.ask(m.Settle(subscribed.subscription, [settlement])))
    peer.ask(m.Unsubscribe(subscribed.subscription))
    return code


def create(peer: Peer, word: bytes) -> str:
    return code_of(peer.ask(m.Administer("topic.create", json.dumps({"name": word.decode()}))))


def test_a_plugin_that_raises_fails_its_caller_and_is_named_in_the_log(broker: WatchedBroker) -> None:
    with attacked(broker, bugs=("I am broken",)) as attack:
        peer = attack.connect()
        for word, fails in ((b"good", False), (RAISE, True), (b"good", False)):
            codes = {
                "exchange": publish(peer, "e", word, to_exchange=True),
                "interceptor": publish(peer, "intercepted", word),
                "partitioner": publish(peer, "placed", word),
                "format": publish_body(peer, word),
                "format, reading": publish_body(peer, LATER + word) or code_of(peer.ask(m.Fetch("plain", 0, 0))),
                "engine": publish(peer, "stored", word),
                "engine, reading": code_of(peer.ask(m.Fetch("stored", 0, 0, bytes_max=RAISE_MS if fails else 1_000))),
                "observer": create(peer, word),
            }
            assert codes == {
                "exchange": fails * "topic.invalid",
                "interceptor": fails * "interceptor.failed",
                "partitioner": fails * "topic.invalid",
                "format": fails * "batch.malformed",
                "format, reading": "",
                "engine": fails * "linn.internal",
                "engine, reading": fails * "linn.internal",
                "observer": "",
            }
        assert publish(peer, "settled", b"good") == ""
        assert nack(peer, RAISE_MS) == "linn.internal"
        assert nack(peer, 1) == "", "the one that failed has settled nothing"
        peer.is_served()
    log = broker.log_text()
    assert log.count('plugin \\"hostile_plugin\\"') + log.count('plugin "hostile_plugin"') >= 3


def test_a_plugin_that_blocks_is_named_in_the_log_and_costs_others_its_own_time_alone(broker: WatchedBroker) -> None:
    with attacked(broker) as attack:
        peer = attack.connect()
        publish(peer, "settled", b"good")
        blocking = {
            "match": lambda: publish(peer, "e", BLOCK, to_exchange=True),
            "intercept": lambda: publish(peer, "intercepted", BLOCK),
            "place": lambda: publish(peer, "placed", BLOCK),
            "check": lambda: publish_body(peer, BLOCK),
            "append": lambda: publish(peer, "stored", BLOCK),
            "read": lambda: code_of(peer.ask(m.Fetch("stored", 0, 0, bytes_max=BLOCK_MS))),
            "nack": lambda: nack(peer, BLOCK_MS),
            "topic_created": lambda: create(peer, BLOCK),
        }
        before = held(peer)
        for do in blocking.values():
            assert do() == ""
            attack.lets_pass(PAUSE_ROUNDS)
        assert held(peer) >= before + len(blocking)
        peer.is_served()
    assert "holds up the loop" in broker.log_text()


def held(peer: Peer) -> int:
    """The number of times that the plugin blocked the loop, by the broker's count."""
    (held_total,) = peer.administer("metrics.show", names=["linn_loop_held_total"])
    return sum(count for labels, count in held_total["samples"] if "hostile_plugin" in labels[0])
