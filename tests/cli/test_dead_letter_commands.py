"""`linn dead-letters`: what died, where and why; and its way back."""

import json
from collections.abc import Iterator
from itertools import count

import pytest

import linn.sync
from linn.testing.process import BrokerProcess

_numbers = count()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[linn.sync.Client]:
    with linn.sync.connect(broker.url) as client:
        yield client


class Place:
    """Two queues whose dead letters go to a third topic."""

    def __init__(self, client: linn.sync.Client) -> None:
        number = next(_numbers)
        self.client = client
        self.graves, self.one, self.two = f"graves-{number}", f"one-{number}", f"two-{number}"
        client.admin.create_topic(self.graves)
        for topic in (self.one, self.two):
            client.admin.create_topic(topic, dead_letter=self.graves, max_deliveries=2)

    def bury(self, topic: str, *values: bytes) -> None:
        """Publish messages to a topic and reject them; they are dead letters when this returns."""
        before = self.waiting(self.graves)
        with self.client.producer(topic) as producer:
            producer.publish_many(
                list(values), routing_keys="a.b", labels={"n": len(values)}, headers=[{"h": b"v"}] * len(values)
            )
        with self.client.consumer(topic) as consumer:
            for _ in values:
                next(consumer).reject("no \x1b[31mcurrency").wait()
        while self.waiting(self.graves) < before + len(values):
            pass  # Each look is a round trip, in which the broker goes on.

    def waiting(self, topic: str) -> int:
        return int(self.client.admin.topic(topic)["queue"]["unsettled"])

    def records(self, topic: str) -> list[tuple[bytes | None, str, dict[str, object], object, int]]:
        with self.client.consumer(topic, mode="pull") as consumer:
            found = [message for batch in consumer.pull(100, wait_s=1) for message in batch]
            return [(m.value, m.routing_key, dict(m.labels), m.headers, m.attempt) for m in found]


@pytest.fixture
def place(client: linn.sync.Client) -> Place:
    return Place(client)


def test_topics_that_take_dead_letters_are_listed_with_what_waits(quick, place: Place) -> None:
    place.bury(place.one, b"a", b"b")
    sources = [place.one, place.two]
    wanted = {"topic": place.graves, "waiting": 2, "sources": sources}
    for command in (("dead-letters", "list"), ("dead-letters",)):
        assert wanted in json.loads(quick(*command, "--json").stdout)
        (row,) = [line for line in quick(*command).stdout.splitlines() if place.graves in line]
        assert [word.strip(" ,") for word in row.split("│")[1:4]] == [place.graves, "2", ", ".join(sources)]


def test_dead_letters_of_one_topic_show_their_origin_and_reason(quick, place: Place) -> None:
    place.bury(place.one, b"a" * 100)
    place.bury(place.two, b"b", b"[bold]")
    with place.client.producer(place.graves) as producer:
        producer.publish(b"published by hand")
    ((taker),) = json.loads(quick("dead-letters", "list", place.graves, "--json").stdout)
    assert (taker["topic"], taker["waiting"], len(taker["messages"])) == (place.graves, 4, 4)
    first, *_, last = taker["messages"]
    assert (first["from_topic"], first["from_partition"], first["from_offset"]) == (place.one, 0, 0)
    assert (first["reason"], first["attempts"], first["value"]) == ("rejected", 1, "a" * 100)
    assert first["error"] == "no  [31mcurrency"
    assert (last["from_topic"], last["value"]) == (None, "published by hand")
    shown = quick("dead-letters", "list", place.graves).stdout
    for text in (f"{place.one} 0/0", "rejected: no  [31mcurrency", "a" * 37 + "...", "[bold]", "no dead letter"):
        assert text in shown
    where = f'label.linn.dead.topic = "{place.two}"'
    few = json.loads(quick("dead-letters", "list", place.graves, "--where", where, "--json").stdout)
    assert [message["value"] for message in few[0]["messages"]] == ["b", "[bold]"]
    cut = quick("dead-letters", "list", place.graves, "--count", "1", "--json")
    assert len(json.loads(cut.stdout)[0]["messages"]) == 1
    assert "more than 1" in cut.stderr
    assert place.waiting(place.graves) == 4, "nothing was taken"


def test_replay_sends_each_back_as_it_was(quick, place: Place) -> None:
    place.bury(place.one, b"a", b"b")
    place.bury(place.two, b"c")
    dry = quick("dead-letters", "replay", place.graves, "--dry-run")
    assert dry.stdout == f"would move 3 messages from {place.graves} 2 to {place.one}, 1 to {place.two}\n"
    done = quick("dead-letters", "replay", place.graves, "--json")
    assert json.loads(done.stdout)["to"] == {place.one: 2, place.two: 1}
    assert place.records(place.one) == [(value, "a.b", {"n": 2}, (("h", b"v"),), 1) for value in (b"a", b"b")]
    assert place.records(place.two) == [(b"c", "a.b", {"n": 1}, (("h", b"v"),), 1)]
    assert place.waiting(place.graves) == 0


def test_dead_letters_without_a_destination_stay_until_they_get_one(quick, client, place: Place) -> None:
    place.bury(place.one, b"a", b"b")
    place.bury(place.two, b"c")
    with client.producer(place.graves) as producer:
        producer.publish(b"by hand")
    client.admin.delete_topic(place.one)
    done = quick("dead-letters", "replay", place.graves)
    assert done.stdout == (
        f"moved 1 message from {place.graves} to {place.two}; 3 messages stay: "
        f"there is no topic {place.one}, 1 name none; --to TOPIC moves them\n"
    )
    assert place.waiting(place.graves) == 3
    client.admin.create_topic("home")
    assert quick("dead-letters", "replay", place.graves, "--to", "home", "--count", "2").returncode == 0
    assert [record[2] for record in place.records("home")] == [{"n": 2}, {"n": 2}]
    done = quick("dead-letters", "replay", place.graves, "--to", "home", "--where", "label.n > 0")
    assert done.stdout.startswith("moved 0 messages ")
    assert place.waiting(place.graves) == 1


def test_a_copy_of_a_dead_letter_tells_its_story_in_headers_which_no_replay_follows(
    quick, linn, client, place: Place
) -> None:
    place.bury(place.one, b"a")
    elsewhere = f"elsewhere-{place.graves}"
    client.admin.create_topic(elsewhere)
    shown = quick("browse", place.graves, "--format", "json").stdout
    assert linn("publish", elsewhere, "--input", "json", stdin=shown).returncode == 0
    assert quick("move", place.graves, elsewhere).returncode == 0
    stayed = quick("dead-letters", "replay", elsewhere)
    assert "2 messages stay: 2 name none" in stayed.stdout
    where = f'header.linn.dead.topic = "{place.one}" and header.linn.dead.offset = "0"'
    assert quick("dead-letters", "replay", elsewhere, "--to", place.one, "--where", where).returncode == 0
    for value, _, labels, headers, _ in place.records(place.one):
        assert (value, labels) == (b"a", {"n": 1})
        assert {"h": b"v", "linn.dead.reason": b"rejected", "linn.dead.attempts": b"1"}.items() <= dict(headers).items()


def test_wrong_topics_are_refused_before_anything_is_taken(quick, place: Place, line_of) -> None:
    place.bury(place.one, b"a")
    assert "[topic.unknown]" in line_of(quick("dead-letters", "replay", place.graves, "--to", "nowhere").stderr)
    assert "[topic.unknown]" in line_of(quick("dead-letters", "replay", "nowhere").stderr)
    assert quick("dead-letters", "replay", place.graves, "--to", place.graves).returncode == 2
    assert quick("dead-letters", "list", "--where", "label.n > 0").returncode == 2
    assert quick("dead-letters", "--json", "replay", place.graves).returncode == 2
    assert place.waiting(place.graves) == 1


def test_filters_select_by_reason_source_and_time(quick, place: Place) -> None:
    place.bury(place.one, b"a", b"b")
    place.bury(place.two, b"c")

    def listed(*filters: str) -> list[str]:
        (taker,) = json.loads(quick("dead-letters", "list", place.graves, *filters, "--json").stdout)
        return [message["value"] for message in taker["messages"]]

    assert listed("--from", place.two) == ["c"]
    assert listed("--reason", "rejected") == ["a", "b", "c"]
    assert listed("--reason", "expired") == []
    assert listed("--since", "1h", "--where", "label.n = 2") == ["a", "b"]
    assert listed("--until", "1h") == []
    done = quick("dead-letters", "replay", place.graves, "--from", place.one, "--since", "1h", "--count", "1", "--json")
    assert json.loads(done.stdout)["to"] == {place.one: 1}
    assert listed() == ["b", "c"]
    for wrong in (("--since", "7"), ("--until", "soon"), ("--reason", "bored")):
        assert quick("dead-letters", "list", place.graves, *wrong).returncode == 2
    assert quick("dead-letters", "list", "--reason", "rejected").returncode == 2


def test_one_is_described_with_its_deaths(quick, place: Place, line_of) -> None:
    place.bury(place.one, b"a")
    place.bury(place.one, b"b")
    shown = json.loads(quick("dead-letters", "show", place.graves, "0/1", "--json").stdout)
    assert (shown["value"], shown["from_offset"], shown["labels"], shown["headers"]) == ("b", 1, {"n": 1}, [["h", "v"]])
    ((death),) = shown["history"]
    assert (death["topic"], death["reason"], death["times"]) == (place.one, "rejected", 1)
    text = quick("dead-letters", "describe", place.graves, "0/1").stdout
    assert "a.b" in text
    assert place.one in text
    assert "[log.offset_out_of_range]" in line_of(quick("dead-letters", "describe", place.graves, "0/9").stderr)
    for nowhere in ("7", "x/y", "0/-1"):
        assert quick("dead-letters", "describe", place.graves, nowhere).returncode == 2
    assert place.waiting(place.graves) == 2, "nothing was taken"


def test_topics_behind_an_exchange_are_listed_with_their_sources(quick, client, place: Place) -> None:
    exchange, source = f"{place.graves}-all", f"{place.one}-more"
    client.admin.create_exchange(exchange, type="fanout")
    for topic in (place.one, place.two):
        client.admin.bind(exchange, topic)
    client.admin.create_topic(source, dead_letter_exchange=exchange)
    listed = json.loads(quick("dead-letters", "--json").stdout)
    assert {each["topic"]: each["sources"] for each in listed if source in each["sources"]} == {
        place.one: [source],
        place.two: [source],
    }
