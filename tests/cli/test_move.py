"""`linn move`: what waits in a queue is somewhere else afterwards, and nowhere less than once."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

import linn.sync
from linn.cli.commands.move import PULLED_MAX
from linn.testing.process import BrokerProcess

MANY = 20_000
_numbers = count()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[linn.sync.Client]:
    with linn.sync.connect(broker.url) as client:
        yield client


@pytest.fixture
def topics(client: linn.sync.Client) -> tuple[str, str]:
    """A queue with two partitions, and another with one."""
    source, target = f"source-{next(_numbers)}", f"target-{next(_numbers)}"
    client.admin.create_topic(source, kind="queue", partitions=2, lease="30s", max_deliveries=5)
    client.admin.create_topic(target, kind="queue")
    return source, target


def fill(client: linn.sync.Client, topic: str, messages: int, size: int = 0) -> None:
    with client.producer(topic) as producer:
        producer.publish_many(
            [(b"%d" % number).ljust(size) for number in range(messages)],
            keys=[b"%d" % number for number in range(messages)],
            labels=[{"n": number} for number in range(messages)],
        )


def values(client: linn.sync.Client, topic: str) -> list[int]:
    """Take all that waits."""
    found: list[int] = []
    with client.consumer(topic, mode="pull") as consumer:
        while batches := consumer.pull(10_000, wait_s=1):
            for batch in batches:
                found += [int(value or b"") for value in batch.values]
                batch.ack().wait()
    return found


def test_a_copy_is_the_message_but_for_its_place(quick, client, topics) -> None:
    source, target = topics
    with client.producer(source) as producer:
        producer.publish(
            b"\xff", key=b"k", routing_key="a.b", labels={"n": 1.5}, headers=[("h", None), ("h", b"1")], timestamp_ms=77
        )
        producer.publish(None)

    def everything(topic: str) -> list[dict[str, object]]:
        shown = [json.loads(line) for line in quick("browse", topic, "--format", "json").stdout.splitlines()]
        return [{key: said[key] for key in said if key not in ("topic", "partition", "offset")} for said in shown]

    before = everything(source)
    done = quick("move", source, target)
    assert (done.stdout, done.stderr) == (f"moved 2 messages from {source} to {target}\n", "")
    by_id = {said["id"]: said for said in before}
    assert {said["id"]: said for said in everything(target)} == by_id
    assert everything(source) == []
    assert len(by_id) == 2


def test_skipped_records_keep_their_place_and_attempts(quick, client, topics) -> None:
    """Every other message is skipped, more than are held at a time: the move ends, and asks about none twice."""
    source, target = topics
    fill(client, source, 5 * PULLED_MAX)
    client.admin.alter_topic(source, max_deliveries=1)
    done = quick("move", source, target, "--where", "label.n < 1000 or label.n > 1500", "--json")
    moved = [number for number in range(5 * PULLED_MAX) if not 1000 <= number <= 1500]
    said = {"source": source, "moved": len(moved), "to": {target: len(moved)}, "stay": 0, "dry_run": False}
    assert json.loads(done.stdout) == said
    with client.consumer(source, mode="pull") as consumer:  # A push that is on its way has had its attempt.
        message = next(iter(consumer.pull(1, wait_s=10)[0]))
        assert message.attempt == 1
        message.nack().wait()
    assert sorted(values(client, target)) == moved
    left = sorted(values(client, source))
    assert len(left) == 500, "the nack was the last attempt of one"
    assert set(left) < set(range(1000, 1501))


def test_a_dry_run_counts_and_moves_nothing(quick, client, topics) -> None:
    source, target = topics
    fill(client, source, 700)
    done = quick("move", source, target, "--where", "label.n >= 100", "--dry-run")
    assert done.stdout == f"would move 600 messages from {source} to {target}\n"
    assert quick("move", source, target, "--count", "7", "--dry-run", "--json").stdout.count('"moved": 7,') == 1
    assert values(client, target) == []
    assert sorted(values(client, source)) == list(range(700))


def test_a_target_that_knows_ids_takes_no_copies_that_it_might_drop(quick, client, topics) -> None:
    source, target = topics
    client.admin.alter_topic(target, dedup="5m")
    fill(client, source, 20)
    refused = quick("move", source, target)
    assert refused.returncode
    assert f"linn topics alter {target} dedup=off" in refused.stderr
    assert len(values(client, source)) == 20


@pytest.mark.parametrize("way", ["bound", "linked", "the rest"])
def test_an_exchange_before_a_topic_that_knows_ids_takes_none_either(quick, client, topics, way) -> None:
    source, target = topics
    first, last = f"first-of-{source}", f"last-of-{source}"
    client.admin.create_exchange(last, type="fanout")
    client.admin.create_exchange(first, type="direct", alternate=last if way == "the rest" else None)
    if way == "linked":
        client.admin.bind_exchange(first, last, key="a")
    client.admin.bind(first if way == "bound" else last, target)
    fill(client, source, 20)
    client.admin.alter_topic(target, dedup="5m")
    refused = quick("move", source, "--exchange", first)
    assert refused.returncode == 3
    assert f"linn topics alter {target} dedup=off" in refused.stderr
    assert len(values(client, source)) == 20


def test_at_most_the_requested_number_is_moved(quick, client, topics) -> None:
    source, target = topics
    fill(client, source, 20)
    assert quick("move", source, target, "--count", "7").stdout.startswith("moved 7 messages ")
    assert len(values(client, target)) == 7
    assert len(values(client, source)) == 13


def test_leases_of_other_consumers_stay(quick, client, topics) -> None:
    source, target = topics
    fill(client, source, 10)
    with client.consumer(source, mode="pull") as consumer:
        batches = consumer.pull(3)
        held = [int(value or b"") for batch in batches for value in batch.values]
        done = quick("move", source, target)
        assert done.stdout.endswith(f"; {len(held)} that others hold or that are delayed stay\n")
        assert sorted(values(client, target) + held) == list(range(10))
        for batch in batches:
            batch.ack().wait()
    assert values(client, source) == []


def test_unroutable_records_stay_and_are_reported(quick, client, topics, line_of) -> None:
    source, target = topics
    exchange = f"exchange-of-{source}"
    client.admin.create_exchange(exchange, type="topic")
    client.admin.bind(exchange, target, key="a")
    with client.producer(source) as producer:
        for number in range(20):
            producer.publish(b"%d" % number, routing_key="a" if number % 2 else "b")
    done = quick("move", source, "--exchange", exchange)
    assert done.returncode == 1
    assert f"10 messages stay: no binding of exchange {exchange} leads to a topic" in line_of(done.stderr)
    assert done.stdout == f"moved 10 messages from {source} to {exchange}\n"
    assert sorted(values(client, target)) == list(range(1, 20, 2))
    assert sorted(values(client, source)) == list(range(0, 20, 2))


def test_a_cycle_of_exchanges_is_followed_once(quick, client, topics) -> None:
    source, _ = topics
    exchange = f"exchange-of-{source}"
    client.admin.create_exchange(exchange, type="fanout")
    client.admin.bind(exchange, source)
    fill(client, source, 1_200)
    assert quick("move", source, "--exchange", exchange).stdout.startswith("moved 1,200 messages ")
    assert sorted(values(client, source)) == list(range(1_200))


def test_a_topic_that_is_both_keeps_its_stream(quick, client, topics) -> None:
    _, target = topics
    client.admin.create_topic("both-kinds", kind="both")
    fill(client, "both-kinds", 10)
    assert quick("move", "both-kinds", target).stdout.startswith("moved 10 messages ")
    assert values(client, "both-kinds") == []
    assert sorted(values(client, target)) == list(range(10))
    assert sum(part["end"] - part["start"] for part in client.admin.topic("both-kinds")["partitions"]) == 10


def test_wrong_topics_are_refused_before_anything_is_taken(quick, client, topics, line_of) -> None:
    source, target = topics
    fill(client, source, 3)
    client.admin.create_topic("a-stream", kind="stream")
    client.admin.create_topic("once", kind="queue", delivery="at-most-once")
    fill(client, "once", 3)
    assert f'there is no topic "{target}x" [topic.unknown]' in line_of(quick("move", source, f"{target}x").stderr)
    assert "[exchange.unknown]" in line_of(quick("move", source, "--exchange", "nowhere").stderr)
    assert "[delivery.wrong_kind]" in line_of(quick("move", "once", target).stderr)
    for wrong in ((source, source), (source,), (source, target, "--exchange", "x"), ("a-stream", target)):
        done = quick("move", *wrong)
        assert (done.returncode, done.stdout) == (2, "")
    assert "linn publish TARGET --input json" in " ".join(done.stderr.replace("│", "").split())
    assert len(values(client, source)) == len(values(client, "once")) == 3


def test_a_target_that_is_full_midway_leaves_the_rest_at_the_source(quick, client, topics, line_of) -> None:
    source, target = topics
    client.admin.alter_topic(target, overflow="reject", bytes_max="1MiB")
    fill(client, source, 4 * PULLED_MAX, size=1_000)
    done = quick("move", source, target)
    assert done.returncode == 1
    said = line_of(done.stderr)
    assert "messages moved" in said
    assert "[topic.full]" in said
    client.admin.alter_topic(target, bytes_max="unlimited")
    there, here = Counter(values(client, target)), Counter(values(client, source))
    assert 0 < there.total() < 4 * PULLED_MAX
    assert set(there | here) == set(range(4 * PULLED_MAX))
    assert (there + here).total() <= 5 * PULLED_MAX, "at most what was under way is in both"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_midway_loses_nothing(broker: BrokerProcess, client, topics, number: signal.Signals) -> None:
    source, target = topics
    fill(client, source, MANY)
    command = [sys.executable, "-m", "linn", "move", source, target]
    with subprocess.Popen(
        command, env=os.environ | {"LINN_URL": broker.url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as moving:
        while moving.poll() is None and not client.admin.topic(target)["queue"]["unsettled"]:
            pass  # Each look is a round trip, in which the command goes on.
        moving.send_signal(number)
        _, said = moving.communicate(timeout=300)
    there, here = Counter(values(client, target)), Counter(values(client, source))
    assert set(there | here) == set(range(MANY))
    assert (there + here).total() <= MANY + PULLED_MAX, "at most what was under way is in both"
    if moving.returncode == 130:
        assert said.startswith("linn: interrupted: ")
