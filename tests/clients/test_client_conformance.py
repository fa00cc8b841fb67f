"""Every client keeps the same promises: agents in each language, the same commands, one real broker.

docs/how-to/write-a-client.md says what an agent is. Clients that this machine can't build are skipped, with the reason.
"""

from __future__ import annotations

import itertools
import socket
import threading

import pytest
from agents import BUILDERS, UNIT_TESTS, AgentProcess, Commands, Refused, Said, check, run
from spoken import (
    NOTHING_MS,
    WAIT_MS,
    code_of,
    content_of,
    everything,
    everything_for_a_queue,
    nothing_comes,
    plain,
    settle,
    subscribe,
    take,
    text,
    values_of,
)

from linn.testing.process import BrokerProcess
from linn.wire import codec, messages

pytestmark = pytest.mark.timeout(1_200)  # A first build of the clients is a part of it.

LANGUAGES = [*BUILDERS]


# --- connecting ------------------------------------------------------------------------------------------------------


def test_the_broker_is_named_and_the_version_is_1(agent: AgentProcess, broker: BrokerProcess) -> None:
    for url in broker.urls:
        assert agent.ask("connect", url=url) == {"broker": "conformance", "version": 1}
        assert agent.ask("close") == {}


def test_an_agent_ends_when_its_input_does(connected: AgentProcess) -> None:
    assert connected.end() == 0


def test_an_address_without_a_broker_is_a_failure_to_connect(agent: AgentProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert code_of(agent, "connect", url=f"linn://127.0.0.1:{port}") == "connection.failed"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "linn://", "127.0.0.1:5466", "linn+unix://socket"])
def test_urls_of_other_schemes_are_refused(agent: AgentProcess, url: str) -> None:
    assert code_of(agent, "connect", url=url) == "listener.address_invalid"


def test_no_error_repeats_the_password_of_a_url(agent: AgentProcess) -> None:
    with pytest.raises(Refused) as refused:
        agent.ask("connect", url="linn://user:secret@127.0.0.1:1")
    assert refused.value.code == "listener.address_invalid"
    assert "user:" not in str(refused.value)
    assert "secret" not in str(refused.value)


VERSION_REFUSED = codec.encode(messages.Failed("protocol.version_unsupported", "no version in common"), 1)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (bytes(VERSION_REFUSED), "protocol.version_unsupported"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol.malformed"),
        (bytes(codec.encode(messages.Done(), 1)), "protocol.malformed"),
        (b"", "connection.lost"),
    ],
    ids=["another version", "another protocol", "another answer", "no answer"],
)
def test_hello_that_is_not_answered_with_welcome_fails(agent: AgentProcess, answer: bytes, code: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_MS / 1000)
        peer = threading.Thread(target=answer_once, args=(listener, answer))
        peer.start()
        assert code_of(agent, "connect", url=f"linn://127.0.0.1:{listener.getsockname()[1]}") == code
        peer.join()


def answer_once(listener: socket.socket, answer: bytes) -> None:
    """Read a hello, answer, and close the connection."""
    stream, _ = listener.accept()
    with stream:
        stream.settimeout(WAIT_MS / 1000)
        stream.recv(1 << 16)
        stream.sendall(answer)
        stream.shutdown(socket.SHUT_WR)
        while stream.recv(1 << 16):
            pass


# --- publishing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["leader", "all"])
def test_a_batch_is_placed_at_the_end_of_its_partition(connected: AgentProcess, topic: str, acks: str) -> None:
    first = connected.ask("publish", topic=topic, acks=acks, records=plain(b"a", b"b"))
    second = connected.ask("publish", topic=topic, acks=acks, records=plain(b"c"))
    assert first["placements"] == [{"partition": 0, "base_offset": 0, "copies": 2}]
    assert second["placements"] == [{"partition": 0, "base_offset": 2, "copies": 1}]


def test_without_acks_a_batch_is_stored_all_the_same(connected: AgentProcess, topic: str) -> None:
    subscription = subscribe(connected, topic)
    assert connected.ask("publish", topic=topic, acks="none", records=plain(b"a"))["placements"] == []
    assert values_of(take(connected, subscription, 1)) == [b"a"]


def test_an_exchange_sends_a_batch_where_its_routing_keys_say(connected: AgentProcess, language: str) -> None:
    subscription = subscribe(connected, "late")
    records = [
        {"value": text(f"{language} {key}".encode()), "routing_key": key} for key in ("ua.late", "ua.early", "aa.late")
    ]
    answer = connected.ask("publish", exchange="events", records=records)
    assert [placement["copies"] for placement in answer["placements"]] == [2]
    taken = take(connected, subscription, 2)
    assert values_of(taken) == [f"{language} ua.late".encode(), f"{language} aa.late".encode()]
    for record in taken:
        assert settle(connected, subscription, "ack", record) == []


def test_mandatory_records_that_no_topic_takes_are_an_error_and_the_others_are_stored(
    connected: AgentProcess, language: str
) -> None:
    subscription = subscribe(connected, "late")
    records = [{"value": text(f"{language} {key}".encode()), "routing_key": key} for key in ("a.late", "a.soon")]
    assert code_of(connected, "publish", exchange="events", mandatory=True, records=records) == "exchange.unroutable"
    (record,) = take(connected, subscription, 1)
    assert values_of([record]) == [f"{language} a.late".encode()]
    assert settle(connected, subscription, "ack", record) == []
    answer = connected.ask("publish", exchange="events", mandatory=True, records=records[:1])
    assert answer["placements"][0]["copies"] == 1
    (record,) = take(connected, subscription, 1)
    assert settle(connected, subscription, "ack", record) == []


@pytest.mark.parametrize(
    ("target", "code"),
    [({"exchange": "nowhere"}, "exchange.unknown"), ({"topic": "nowhere"}, "topic.unknown")],
)
def test_a_publish_to_nowhere_fails_with_the_broker_s_code(connected: AgentProcess, target: Said, code: str) -> None:
    assert code_of(connected, "publish", **target, records=plain(b"a")) == code


def test_a_message_over_the_limit_is_refused_and_the_connection_goes_on(connected: AgentProcess, topic: str) -> None:
    assert code_of(connected, "publish", topic=topic, records=plain(b"x" * (1 << 20) + b"x")) == "message.too_large"
    assert connected.ask("publish", topic=topic, records=plain(b"a"))["placements"][0]["base_offset"] == 0


def test_a_message_that_can_t_be_carried_is_refused(connected: AgentProcess, topic: str) -> None:
    for record in (
        {"routing_key": "k" * 4_097},
        {"labels": {"n": "x" * 4_097}},
        {"labels": {str(n): n for n in range(257)}},
    ):
        assert code_of(connected, "publish", topic=topic, records=[{"value": "", **record}]) == "message.invalid"


# --- queues ----------------------------------------------------------------------------------------------------------


def test_published_messages_are_delivered_unchanged(connected: AgentProcess, topic: str, language: str) -> None:
    records = everything_for_a_queue(language)
    connected.ask("publish", topic=topic, records=records)
    answer = connected.ask("subscribe", topic=topic, group="", credit=100, start=-2)
    assert answer["kind"] == "shared"
    taken = take(connected, answer["subscription"], len(records))
    assert [content_of(record) for record in taken] == [content_of(record) for record in records]
    assert [record["offset"] for record in taken] == [*range(len(records))]
    assert {(record["partition"], record["attempt"]) for record in taken} == {(0, 1)}
    assert 0 not in {record["delivery_id"] for record in taken}


def test_acked_messages_are_not_redelivered_and_nacked_ones_are(connected: AgentProcess, topic: str) -> None:
    connected.ask("publish", topic=topic, records=plain(b"a", b"b", b"c"))
    subscription = subscribe(connected, topic)
    first, second, third = take(connected, subscription, 3)
    assert settle(connected, subscription, "ack", first) == []
    assert settle(connected, subscription, "nack", second) == []
    assert settle(connected, subscription, "ack", third) == []
    (again,) = take(connected, subscription, 1)
    assert (values_of([again]), again["offset"], again["attempt"]) == ([b"b"], 1, 2)
    assert settle(connected, subscription, "ack", again) == []
    assert nothing_comes(connected, subscription)


def test_a_range_of_records_is_settled_at_once(connected: AgentProcess, topic: str) -> None:
    connected.ask("publish", topic=topic, records=plain(*[b"%d" % n for n in range(10)]))
    subscription = subscribe(connected, topic)
    taken = take(connected, subscription, 10)
    assert len({record["delivery_id"] for record in taken}) == 1
    answer = connected.ask(
        "settle", subscription=subscription, verdict="nack", partition=0, delivery_id=taken[0]["delivery_id"],
        first=taken[4]["offset"], end=taken[7]["offset"], ms=0,
    )  # fmt: skip
    assert answer == {"refused": []}
    assert values_of(take(connected, subscription, 3)) == [b"4", b"5", b"6"]


def test_a_nack_with_a_delay_waits_for_so_long(connected: AgentProcess, topic: str) -> None:
    connected.ask("publish", topic=topic, records=plain(b"a"))
    subscription = subscribe(connected, topic)
    (record,) = take(connected, subscription, 1)
    assert settle(connected, subscription, "nack", record, ms=4 * NOTHING_MS) == []
    assert nothing_comes(connected, subscription)
    assert take(connected, subscription, 1)[0]["attempt"] == 2


def test_a_rejected_record_becomes_a_dead_letter(connected: AgentProcess, language: str) -> None:
    connected.ask("publish", topic="brief", records=plain(language.encode()))
    subscription, dead = subscribe(connected, "brief"), subscribe(connected, "dead")
    (record,) = take(connected, subscription, 1)
    reason = "no currency: \N{EURO SIGN}\n" + "x" * 5_000
    assert settle(connected, subscription, "reject", record, reason=reason) == []
    (letter,) = take(connected, dead, 1)
    assert (values_of([letter]), letter["id"]) == ([language.encode()], record["id"])
    cause = letter["labels"]["linn.dead.error"]
    assert cause.startswith("no currency: \N{EURO SIGN} xxx")
    assert 250 < len(cause.encode()) <= 255
    assert settle(connected, dead, "ack", letter) == []


def test_settling_twice_is_refused_and_changes_nothing(connected: AgentProcess, topic: str) -> None:
    connected.ask("publish", topic=topic, records=plain(b"a"))
    subscription = subscribe(connected, topic)
    (record,) = take(connected, subscription, 1)
    assert settle(connected, subscription, "ack", record) == []
    assert settle(connected, subscription, "nack", record) == ["delivery.not_current"]
    assert nothing_comes(connected, subscription)


def test_a_lease_ends_unless_it_is_extended(connected: AgentProcess, language: str) -> None:
    connected.ask("publish", topic="hasty", records=plain(b"a"))
    subscription = subscribe(connected, "hasty")
    (record,) = take(connected, subscription, 1)
    (again,) = take(connected, subscription, 1)
    assert (again["offset"], again["attempt"]) == (record["offset"], 2)
    assert settle(connected, subscription, "ack", record) == ["delivery.not_current"]
    assert settle(connected, subscription, "extend", again, ms=60_000) == []
    assert connected.ask("next", subscription=subscription, records_max=1, timeout_ms=500)["records"] == []
    assert settle(connected, subscription, "ack", again) == []


def test_a_consumer_whose_leases_all_expire_gets_more(connected: AgentProcess, language: str) -> None:
    connected.ask("publish", topic="hasty", records=plain(b"a", b"b", b"c"))
    subscription = subscribe(connected, "hasty", credit=2)
    held = take(connected, subscription, 2)
    again = take(connected, subscription, 2)
    assert [(record["offset"], record["attempt"]) for record in again] == [(record["offset"], 2) for record in held]
    for record in again:
        assert settle(connected, subscription, "ack", record) == []
    (last,) = take(connected, subscription, 1)
    assert last["attempt"] == 1
    assert settle(connected, subscription, "ack", last) == []


def test_no_more_is_delivered_than_the_credit(
    connected: AgentProcess, command: Commands, broker: BrokerProcess, language: str, topic: str
) -> None:
    connected.ask("publish", topic=topic, records=plain(*[b"%d" % n for n in range(10)]))
    subscription = subscribe(connected, topic, credit=2)
    held = take(connected, subscription, 2)
    assert nothing_comes(connected, subscription)
    with AgentProcess(language, command(language)) as other:
        other.ask("connect", url=broker.url)
        rest = take(other, subscribe(other, topic), 8)
    assert {*values_of(held), *values_of(rest)} == {b"%d" % n for n in range(10)}
    for record in held:
        settle(connected, subscription, "ack", record)
    for _ in range(2):  # One lease at a time of what the other client was lost with: as much as there was credit.
        (record,) = take(connected, subscription, 1)
        settle(connected, subscription, "ack", record)


def test_a_clients_leases_are_returned_when_it_leaves(
    connected: AgentProcess, broker: BrokerProcess, topic: str
) -> None:
    connected.ask("publish", topic=topic, records=plain(b"a", b"b"))
    first, _ = take(connected, subscription := subscribe(connected, topic), 2)
    assert settle(connected, subscription, "ack", first) == []
    connected.ask("close")
    connected.ask("connect", url=broker.url)
    assert values_of(take(connected, subscribe(connected, topic), 1)) == [b"b"]


def test_the_unsettled_records_of_a_queue_can_be_fetched_alone(connected: AgentProcess, topic: str) -> None:
    connected.ask("publish", topic=topic, records=plain(b"a", b"b", b"c", b"d"))
    subscription = subscribe(connected, topic)
    _, second, third, _ = take(connected, subscription, 4)
    for verdict, record in (("ack", second), ("reject", third)):
        assert settle(connected, subscription, verdict, record) == []
    left: list[object] = []
    while len(left) != 2:  # A rejected record is settled soon afterwards; each look is a round trip.
        fetched = connected.ask("fetch", topic=topic, partition=0, offset=0, unsettled=True)
        left = [(record["offset"], record["value"]) for record in fetched["records"]]
    assert left == [(0, text(b"a")), (3, text(b"d"))]
    assert fetched["next_offset"] == fetched["high_watermark"] == 4
    assert len(connected.ask("fetch", topic=topic, partition=0, offset=0)["records"]) == 4
    assert code_of(connected, "fetch", topic="log", partition=0, offset=0, unsettled=True) == "delivery.wrong_kind"


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_reader_begins_at_its_requested_start(connected: AgentProcess, language: str) -> None:
    answer = connected.ask("publish", topic="log", records=plain(b"a", b"b", b"c"))
    base = answer["placements"][0]["base_offset"]
    answer = connected.ask("subscribe", topic="log", group="", credit=10, start=base + 1)
    assert answer["kind"] == "reader"
    taken = take(connected, answer["subscription"], 2)
    assert [(record["offset"], record["attempt"], record["delivery_id"]) for record in taken] == [
        (base + 1, 0, 0),
        (base + 2, 0, 0),
    ]
    latest = subscribe(connected, "log", start=-1)
    assert nothing_comes(connected, latest)
    connected.ask("publish", topic="log", records=plain(language.encode()))
    assert values_of(take(connected, latest, 1)) == [language.encode()]


def test_a_group_continues_after_its_commits(connected: AgentProcess, broker: BrokerProcess, language: str) -> None:
    base = connected.ask("publish", topic="log", records=plain(b"a", b"b", b"c"))["placements"][0]["base_offset"]
    answer = connected.ask("subscribe", topic="log", group=f"go-on-{language}", credit=10, start=base)
    assert answer["kind"] == "group"
    first, _, _ = take(connected, answer["subscription"], 3)
    assert settle(connected, answer["subscription"], "ack", first) == []
    connected.ask("close")
    connected.ask("connect", url=broker.url)
    again = subscribe(connected, "log", group=f"go-on-{language}", start=-1)
    assert [record["offset"] for record in take(connected, again, 2)] == [base + 1, base + 2]


def test_consumers_of_a_shared_subscription_settle_one_by_one(connected: AgentProcess, language: str) -> None:
    base = connected.ask("publish", topic="log", records=plain(b"a", b"b", b"c"))["placements"][0]["base_offset"]
    shared = f"shared-{language}"
    answer = connected.ask("subscribe", topic="log", shared=shared, name="w1", credit=10, start=base)
    assert answer["kind"] == "shared"
    first, second, _ = take(connected, answer["subscription"], 3)
    assert settle(connected, answer["subscription"], "ack", first) == []
    assert settle(connected, answer["subscription"], "nack", second) == []
    (again,) = take(connected, answer["subscription"], 1)
    assert (again["offset"], again["attempt"]) == (base + 1, 2)
    other = connected.ask("subscribe", topic="log", shared=shared, name="w1", credit=10)["subscription"]
    for offset in (base + 1, base + 2):  # Taken over: the first one had an attempt before, and is given out alone.
        (record,) = take(connected, other, 1)
        assert record["offset"] == offset
        assert settle(connected, other, "ack", record) == []
    fenced = {"subscription": answer["subscription"], "records_max": 1, "timeout_ms": WAIT_MS}
    assert code_of(connected, "next", **fenced) == "delivery.fenced"


def test_a_nack_sets_a_group_s_reading_back(connected: AgentProcess, language: str) -> None:
    base = connected.ask("publish", topic="log", records=plain(b"a", b"b", b"c"))["placements"][0]["base_offset"]
    subscription = subscribe(connected, "log", group=f"back-{language}", start=base)
    _, second, _ = take(connected, subscription, 3)
    assert settle(connected, subscription, "nack", second) == []
    assert [record["offset"] for record in take(connected, subscription, 2)] == [base + 1, base + 2]
    assert settle(connected, subscription, "reject", second) == ["delivery.wrong_kind"]


def test_a_group_divides_the_partitions_among_its_members(
    connected: AgentProcess, command: Commands, broker: BrokerProcess, language: str
) -> None:
    group = f"divide-{language}"
    with AgentProcess(language, command(language)) as other:
        other.ask("connect", url=broker.url)
        one, two = (
            subscribe(connected, "spread", group=group, start=-1),
            subscribe(other, "spread", group=group, start=-1),
        )
        values = [f"{language} {n}".encode() for n in range(32)]
        for value in values:
            connected.ask("publish", topic="spread", records=[{"value": text(value), "key": text(value)}])
        ours, theirs = drain(connected, one), drain(other, two)
    assert {*values_of(ours), *values_of(theirs)} >= {*values}
    partitions = [{record["partition"] for record in records} for records in (ours, theirs)]
    assert [len(owned) for owned in partitions] == [2, 2]
    assert partitions[0].isdisjoint(partitions[1])


def drain(agent: AgentProcess, subscription: int) -> list[Said]:
    """Receive records until none comes for a while."""
    found: list[Said] = []
    while records := agent.ask("next", subscription=subscription, records_max=100, timeout_ms=500)["records"]:
        found += records
    return found


def test_a_fetch_begins_at_its_offset_and_reports_the_bounds(connected: AgentProcess, topic: str) -> None:
    connected.ask("publish", topic=topic, records=plain(b"a", b"b", b"c"))
    connected.ask("publish", topic=topic, records=plain(b"d"))
    answer = connected.ask("fetch", topic=topic, partition=0, offset=1, bytes_max=1 << 20)
    assert values_of(answer["records"]) == [b"b", b"c", b"d"]
    assert [record["offset"] for record in answer["records"]] == [1, 2, 3]
    assert (answer["start_offset"], answer["high_watermark"]) == (0, 4)
    assert len(connected.ask("fetch", topic=topic, partition=0, offset=0, bytes_max=1)["records"]) == 3
    assert connected.ask("fetch", topic=topic, partition=0, offset=4, bytes_max=1)["records"] == []


def labelled(*late: bool) -> list[Said]:
    return [{"value": text(b"%d" % at), "labels": {"late": is_late}} for at, is_late in enumerate(late)]


def test_a_filter_leaves_out_records_and_keeps_the_offsets_of_the_others(
    connected: AgentProcess, broker: BrokerProcess, language: str
) -> None:
    where, group = "label.late = true", f"late-{language}"
    records = labelled(False, True, False, True, True, False)
    base = connected.ask("publish", topic="log", records=records)["placements"][0]["base_offset"]
    connected.ask("publish", topic="log", records=labelled(False, False))
    wanted = [base + 1, base + 3, base + 4]
    fetched = connected.ask("fetch", topic="log", partition=0, offset=base, bytes_max=1 << 20, where=where)
    assert [record["offset"] for record in fetched["records"]] == wanted
    assert fetched["next_offset"] == fetched["high_watermark"] == base + 8
    reader = subscribe(connected, "log", start=base, where=where)
    assert [record["offset"] for record in take(connected, reader, 3)] == wanted
    member = subscribe(connected, "log", group=group, start=base, where=where)
    first, second, third = take(connected, member, 3)
    assert [record["offset"] for record in (first, second, third)] == wanted
    assert settle(connected, member, "nack", second) == []
    assert [record["offset"] for record in take(connected, member, 2)] == wanted[1:]
    assert settle(connected, member, "ack", second) == []
    connected.ask("close")
    connected.ask("connect", url=broker.url)
    again = subscribe(connected, "log", group=group, start=-1, where=where)
    assert [record["offset"] for record in take(connected, again, 1)] == wanted[2:]
    assert nothing_comes(connected, reader := subscribe(connected, "log", start=-1, where=where))
    connected.ask("publish", topic="log", records=labelled(False, True))
    assert [record["offset"] for record in take(connected, reader, 1)] == [base + 9]
    assert code_of(connected, "subscribe", topic="log", where="label.late = ") == "predicate.invalid"


def test_a_delayed_record_comes_later(connected: AgentProcess, topic: str) -> None:
    connected.ask("publish", topic=topic, records=[plain(b"later")[0] | {"delay_ms": 500}])
    connected.ask("publish", topic=topic, records=plain(b"now"))
    records = take(connected, subscribe(connected, topic), 2)
    assert [(record["value"], record["delay_ms"]) for record in records] == [(text(b"now"), 0), (text(b"later"), 0)]


def test_a_stream_keeps_what_a_queue_does_not_serve_yet(connected: AgentProcess, topic: str, language: str) -> None:
    record = plain(b"a")[0] | {"priority": 9}
    assert code_of(connected, "publish", topic=topic, records=[record]) == "message.unsupported"
    records = everything(language)
    base = connected.ask("publish", topic="log", records=records)["placements"][0]["base_offset"]
    answer = connected.ask("fetch", topic="log", partition=0, offset=base, bytes_max=1 << 20)
    assert [content_of(record) for record in answer["records"][: len(records)]] == [*map(content_of, records)]


def test_a_refused_record_fails_and_the_others_of_its_batch_are_stored(connected: AgentProcess, topic: str) -> None:
    records = [*plain(b"a"), plain(b"bad")[0] | {"priority": 5}, *plain(b"b")]
    assert code_of(connected, "publish", topic=topic, records=records) == "message.unsupported"
    answer = connected.ask("fetch", topic=topic, partition=0, offset=0, bytes_max=1 << 20)
    assert values_of(answer["records"]) == [b"a", b"b"]


def test_a_consumer_of_a_queue_has_no_start(connected: AgentProcess, topic: str) -> None:
    for start in (-1, 0, 7):
        assert code_of(connected, "subscribe", topic=topic, group="", credit=1, start=start) == "delivery.wrong_kind"


def test_invalid_reads_fail_with_the_broker_s_code(connected: AgentProcess, topic: str) -> None:
    connected.ask("publish", topic=topic, records=plain(b"a"))
    assert code_of(connected, "fetch", topic=topic, partition=0, offset=2, bytes_max=1) == "log.offset_out_of_range"
    assert code_of(connected, "fetch", topic=topic, partition=7, offset=0, bytes_max=1) == "topic.partition_unknown"
    assert code_of(connected, "subscribe", topic=topic, group="g", credit=1) == "delivery.wrong_kind"
    assert connected.ask("fetch", topic=topic, partition=0, offset=0, bytes_max=1)["high_watermark"] == 1


# --- among each other ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("writer", "reader"), [*itertools.permutations(LANGUAGES, 2)])
@pytest.mark.parametrize("zstd", [False, True], ids=["plain", "zstd"])
def test_messages_of_one_language_are_read_by_every_other(
    writer: str, reader: str, zstd: bool, command: Commands, broker: BrokerProcess, topic: str
) -> None:
    records = everything_for_a_queue(writer)
    with AgentProcess(writer, command(writer)) as source, AgentProcess(reader, command(reader)) as sink:
        source.ask("connect", url=broker.url)
        sink.ask("connect", url=broker.url)
        subscription = subscribe(sink, topic)
        try:
            source.ask("publish", topic=topic, records=records, zstd=zstd)
        except Refused as refused:
            if not zstd or refused.code != "message.unsupported":
                raise
            pytest.skip(f"{writer} does not compress here: {refused}")
        try:
            taken = take(sink, subscription, len(records))
        except Refused as refused:
            if not zstd or refused.code != "message.unsupported":
                raise
            pytest.skip(f"{reader} does not decompress here: {refused}")
        assert [content_of(record) for record in taken] == [content_of(record) for record in records]
        for record in taken:
            assert settle(sink, subscription, "ack", record) == []


# --- the clients' own tests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", [*UNIT_TESTS])
def test_a_client_s_own_tests_pass(language: str, command: Commands) -> None:
    command(language)
    folder, tests = UNIT_TESTS[language]
    check(run(tests, folder))
