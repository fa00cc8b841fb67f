"""Consumers that take everything, settle nothing, never read, or name deliveries and offsets that are not theirs."""

from __future__ import annotations

import json
from typing import Any

import wire
from attack import Peer, WatchedBroker, attacked, request

from linn.core.batch.batch import RecordBatch
from linn.core.queue.redelivery import SUSPECTS_MAX
from linn.wire import messages as m

CONFIG = """
[broker]
connection_bytes_max = "256KiB"
[topics.q]
storage = "dram"
[topics.leased]
lease = "1h"
partitions = 2
[topics.other]
[topics.again]
[topics.buried]
max_deliveries = 5
dead_letter = "dead"
[topics.dead]
kind = "stream"
[topics.explained]
dead_letter = "unexplained"
[topics.unexplained]
kind = "stream"
[topics.s]
kind = "stream"
partitions = 2
[topics.large]
kind = "stream"
[topics.offsets]
kind = "stream"
[topics.committed]
kind = "stream"
[topics.silent]
kind = "stream"
[topics.wide-0]
kind = "stream"
storage = "dram"
partitions = 4096
[topics.wide-1]
kind = "stream"
storage = "dram"
partitions = 4096
[topics.wide-2]
kind = "stream"
storage = "dram"
partitions = 1808
"""
UINT32_MAX, INT64_MAX, UINT64_MAX = 2**32 - 1, 2**63 - 1, 2**64 - 1
WIDE = {"wide-0": 4096, "wide-1": 4096, "wide-2": 1808}
ODD_OFFSETS = (-1, -2, -(2**63), INT64_MAX, INT64_MAX - 1)


def publish(peer: Peer, topic: str, count: int = 1, *, size: int = 10, batches: int = 1, partition: int = -1) -> int:
    """Publish batches of equal records; the offset of the last batch."""
    batch = wire.plain([bytes(size)] * count)
    answer = peer.ask(m.Publish(topic, partition=partition), *[batch] * batches)
    assert isinstance(answer, m.Published), answer
    return answer.placements[-1].base_offset


def delivered(peer: Peer, records: int) -> list[tuple[m.Deliver, RecordBatch]]:
    """The next deliveries, until there were so many records."""
    found: list[tuple[m.Deliver, RecordBatch]] = []
    while sum(batch.count for _, batch in found) < records:
        _, message, batches = peer.event()
        assert not isinstance(message, m.Failed | m.Ended), message
        if isinstance(message, m.Deliver):
            found += [(message, RecordBatch(batch)) for batch in batches]
    return found


def refused(peer: Peer, subscription: int, *entries: m.Settlement) -> dict[int, str]:
    """The codes of the settlements that are refused, by their place."""
    answer = peer.ask(m.Settle(subscription, list(entries)))
    assert isinstance(answer, m.Settled), answer
    return {refusal.entry: refusal.code for refusal in answer.refused}


def fails(peer: Peer, message: m.Message) -> str:
    """The code with which a request fails."""
    answer = peer.ask(message)
    assert isinstance(answer, m.Failed), answer
    return answer.code


def reset(peer: Peer, **place: object) -> Any:
    """The result of a reset of a group's offsets, or the code of its error."""
    answer = peer.ask(m.Administer("group.reset", json.dumps({"topic": "committed", "group": "g", **place})))
    if isinstance(answer, m.Failed):
        return answer.code
    assert isinstance(answer, m.Administered)
    return json.loads(answer.result)


def let_pass(peer: Peer, ms: int) -> None:
    """Wait for records that nobody publishes: the time is the broker's, which serves others meanwhile."""
    answer = peer.ask(m.Fetch("silent", 0, 0, wait_max_ms=ms))
    assert isinstance(answer, m.Fetched), answer


# --- 21: takes everything --------------------------------------------------------------------------------------------


def test_records_of_a_consumer_that_settles_nothing_are_all_returned(broker: WatchedBroker) -> None:
    records = 20_000
    with attacked(broker, cpu_s=0.3) as attack:
        greedy = attack.connect()
        publish(greedy, "q", 1_000, size=100, batches=records // 1_000)
        subscription = greedy.subscribe("q", credit=UINT32_MAX)
        for _ in range(100):
            greedy.send(request(m.Credit(subscription, UINT32_MAX), 0))
        taken = delivered(greedy, records)
        assert {message.attempt for message, _ in taken} == {1}
        greedy.is_served()
        greedy.close()
        other = attack.connect()
        mine = other.subscribe("q", credit=records)
        given_back: list[tuple[m.Deliver, RecordBatch]] = []
        while sum(batch.count for _, batch in given_back) < records:  # Few at a time: one may have killed the other.
            found = delivered(other, 1)
            assert sum(batch.count for _, batch in found) <= SUSPECTS_MAX
            assert refused(other, mine, m.Settlement(0, found[0][0].delivery_id, -1, -1)) == {}
            given_back += found
        assert {message.attempt for message, _ in given_back} == {2}
        offsets = [offset for _, batch in given_back for offset in range(batch.base_offset, batch.end_offset)]
        assert offsets == list(range(records))
        assert other.administer("topic.show", name="q")["queue"]["unsettled"] == 0
        other.is_served()


# --- 22: never reads -------------------------------------------------------------------------------------------------


def send_without_reading(peer: Peer, requests: list[bytes]) -> bool:
    """Send until all is sent, or nothing more is taken for a while: then False."""
    peer.socket.settimeout(0.3)
    rest = memoryview(b"".join(requests))
    try:
        while rest:
            rest = rest[peer.socket.send(rest) :]
    except TimeoutError:
        return False
    finally:
        peer.socket.settimeout(30)
    return True


def read_all(peer: Peer) -> int:
    """Read up to the end of a connection on which this side says no more; how many bytes."""
    peer.says_no_more()
    total = 0
    while chunk := peer.socket.recv(1 << 20):
        total += len(chunk)
    peer.is_closed()
    return total


def test_a_client_that_reads_no_replies_is_not_read_from_and_fills_no_memory(broker: WatchedBroker) -> None:
    batch = wire.plain([bytes(10)])
    kinds = {
        "publishes": [request(m.Publish("s", partition=0), wire.CORRELATION, 1) + batch] * 5_000,
        "fetches": [request(m.Fetch("s", 1, 0, bytes_max=UINT32_MAX))] * 100_000,
        "descriptions": [request(m.Describe([]))] * 100_000,
        "subscriptions": [request(m.Subscribe("s", credit=UINT32_MAX, partitions=[1]), 0)] * 20,
    }
    with attacked(broker, cpu_s=2, memory_bytes=32 << 20, answer_s=20) as attack:
        peers = {kind: attack.connect() for kind in kinds}
        publish(peers["publishes"], "s", 10, size=10_000, batches=10, partition=1)
        all_sent = {kind: send_without_reading(peers[kind], requests) for kind, requests in kinds.items()}
        assert not all_sent["fetches"]
        assert not all_sent["descriptions"]
        for kind in ("publishes", "subscriptions"):
            assert read_all(peers[kind]) > 0
        for kind in ("fetches", "descriptions"):
            peers[kind].leaves()


# --- 23: fetches everything at once ----------------------------------------------------------------------------------


def test_fetches_of_the_largest_size_on_ten_thousand_partitions_hold_little(broker: WatchedBroker) -> None:
    places = [(topic, partition) for topic, count in WIDE.items() for partition in range(count)]
    with attacked(broker, cpu_s=3, memory_bytes=128 << 20, answer_s=20) as attack:
        pacer, *peers = [attack.connect() for _ in range(12)]
        for number, (topic, partition) in enumerate(places):
            fetch = m.Fetch(topic, partition, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX)
            peers[number % len(peers)].send(request(fetch))
            if number % 250 == 0:
                let_pass(pacer, 100)  # It is about what waits, and not about who sends most in a second.
        for peer in peers:
            peer.is_served()
        for topic in WIDE:
            publish(peers[0], topic, 10, size=1_000, partition=7)
        peers[0].is_served()
        for peer in peers:
            peer.close()
            let_pass(pacer, 50)
        pacer.is_served()


def test_a_fetch_of_four_gigabytes_is_answered_with_sixteen_megabytes(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=0.3, memory_bytes=48 << 20) as attack:
        peer = attack.connect()
        for _ in range(10):
            publish(peer, "large", 8, size=1 << 19)
        for _ in range(3):
            peer.send(request(m.Fetch("large", 0, 0, bytes_max=UINT32_MAX)))
            _, answer, batches = peer.event()
            assert isinstance(answer, m.Fetched), answer
            assert 8 << 20 < sum(map(len, batches)) <= 16 << 20
        peer.is_served()


# --- 24: deliveries of others ----------------------------------------------------------------------------------------

NOT_CURRENT = "delivery.not_current"


def test_a_delivery_id_that_is_forged_reused_or_another_consumers_settles_nothing(broker: WatchedBroker) -> None:
    verdicts = (m.Verdict.ACK, m.Verdict.NACK, m.Verdict.REJECT, m.Verdict.RELEASE, m.Verdict.EXTEND)
    with attacked(broker) as attack:
        victim, thief = attack.connect(), attack.connect()
        publish(victim, "leased", 10, partition=0)
        mine, his = victim.subscribe("leased", credit=10), thief.subscribe("leased", credit=10)
        elsewhere = thief.subscribe("other", credit=10)
        [(delivery, batch)] = delivered(victim, 10)
        id, first, end = delivery.delivery_id, batch.base_offset, batch.end_offset
        for verdict in verdicts:
            forged = [
                m.Settlement(0, other, first, end, verdict, 1_000)
                for other in (id, 0, id - 1, id + 1, id + (1 << 32), UINT64_MAX)
            ]
            assert set(refused(thief, his, *forged).values()) == {NOT_CURRENT}
            assert len(refused(thief, his, *forged)) == len(forged)
            assert refused(thief, elsewhere, *forged[:1]) == {0: NOT_CURRENT}
            assert fails(thief, m.Settle(99, forged[:1])) == "delivery.subscription_unknown"
            assert refused(victim, mine, m.Settlement(1, id, first, end, verdict, 1_000)) == {0: NOT_CURRENT}
            for partition in (-1, 2, 2**31 - 1, -(2**31)):
                forged = [m.Settlement(partition, id, first, end, verdict, 1_000)]
                assert refused(victim, mine, *forged) == {0: "topic.partition_unknown"}
        odd_ranges = [
            (first - 1, end),
            (first, end + 1),
            (end, first),
            (first, first),
            (-1, INT64_MAX),
            (INT64_MAX, -1),
        ]
        for verdict in verdicts[:4]:
            odd = [m.Settlement(0, id, begin, stop, verdict) for begin, stop in odd_ranges]
            assert list(refused(victim, mine, *odd).values()) == [NOT_CURRENT] * len(odd)
        assert refused(victim, mine, m.Settlement(0, id, first, end, 5)) == {0: "delivery.wrong_kind"}
        shown = victim.administer("subscription.show", topic="leased")
        assert (shown["leased"], shown["unsettled"]) == (10, 10), "nothing of all this has settled anything"
        assert refused(victim, mine, m.Settlement(0, id, first, end)) == {}
        again = [m.Settlement(0, id, first, end, verdict, 1_000) for verdict in verdicts]
        assert list(refused(victim, mine, *again).values()) == [NOT_CURRENT] * 5
        for peer in (victim, thief):
            peer.is_served()


# --- 26: offsets -----------------------------------------------------------------------------------------------------


def test_offsets_and_partitions_at_the_ends_of_their_range_are_refused_or_moved_to_the_log(
    broker: WatchedBroker,
) -> None:
    with attacked(broker) as attack:
        peer = attack.connect()
        start, end = 0, publish(peer, "offsets", 10) + 10
        fetches = {f"fetch from {odd}": request(m.Fetch("offsets", 0, odd, 1, 1000, 60_000)) for odd in ODD_OFFSETS}
        attack.tries({name: (data, "failed log.offset_out_of_range") for name, data in fetches.items()})
        for odd in (-1, 1, 2**31 - 1, -(2**31)):
            for message in (m.Fetch("offsets", odd, 0), m.FindOffset("offsets", odd, 0)):
                attack.tries({f"{message}": (request(message), "failed topic.partition_unknown")})
        found = {odd: peer.ask(m.FindOffset("offsets", 0, odd)) for odd in ODD_OFFSETS}
        assert found[INT64_MAX] == found[INT64_MAX - 1] == m.FoundOffset(end)
        assert found[-1] == found[-2] == found[-(2**63)] == m.FoundOffset(start)
        for odd in (end + 1, INT64_MAX, INT64_MAX - 1):
            for options in ({"start": odd}, {"starts": [odd]}, {"group": "odd", "start": odd}):
                assert fails(peer, m.Subscribe("offsets", **options)) == "log.offset_out_of_range"
        begins = {-1: None, -2: start, -3: start, -(2**63): start, end: None}
        for number, (odd, place) in enumerate(begins.items()):
            assert begin(peer, start=odd) == place
            assert begin(peer, starts=[odd]) == place
            assert begin(peer, group=f"g{number}", start=odd) == place
        for odd in (-1, 2, 2**31 - 1, -(2**31)):
            assert fails(peer, m.Subscribe("offsets", partitions=[0, odd])) == "topic.partition_unknown"
        peer.is_served()


def begin(peer: Peer, **options: Any) -> int | None:
    """The offset that a subscription of "offsets" gives first; None: it waits at the end."""
    subscription = peer.subscribe("offsets", **options)
    peer.send(request(m.Pull(subscription, 1)))
    correlation, answer, batches = peer.event()
    while correlation == 0:
        correlation, answer, batches = peer.event()
    assert isinstance(answer, m.Deliver), answer
    assert peer.ask(m.Unsubscribe(subscription)) == m.Done()
    return RecordBatch(batches[0]).base_offset if batches else None


def test_a_group_commits_and_is_reset_to_offsets_of_the_log_only(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=0.3) as attack:
        peer = attack.connect()
        end = publish(peer, "committed", 10) + 10
        member = peer.subscribe("committed", group="g")
        odd = [(0, number) for number in ODD_OFFSETS] + [(number, 0) for number in ODD_OFFSETS]
        acks = [m.Settlement(0, 1, first, stop) for first, stop in odd if not 0 <= stop <= end]
        nacks = [m.Settlement(0, 1, first, stop, m.Verdict.NACK) for first, stop in odd if not 0 <= first <= end]
        assert set(refused(peer, member, *acks, *nacks).values()) == {"log.offset_out_of_range"}
        assert len(refused(peer, member, *acks, *nacks)) == len(acks) + len(nacks)
        for partition in (-1, 1, 2**31 - 1, -(2**31)):
            elsewhere = [m.Settlement(partition, 1, 0, 1), m.Settlement(partition, 1, 0, 1, m.Verdict.NACK)]
            assert refused(peer, member, *elsewhere) == {0: "topic.partition_unknown", 1: "group.fenced"}
        for verdict in (m.Verdict.REJECT, m.Verdict.EXTEND, m.Verdict.RELEASE, 5):
            assert refused(peer, member, m.Settlement(0, 1, 0, 1, verdict)) == {0: "delivery.wrong_kind"}
        assert refused(peer, member, m.Settlement(0, 1, 0, 5)) == {}
        peer.ask(m.Unsubscribe(member))
        moved = {number: 0 for number in ODD_OFFSETS if number < 0} | {
            number: end for number in ODD_OFFSETS if number > 0
        }
        for number, place in {**moved, 10**30: end, -(10**30): 0}.items():
            for asked in ({"offset": number}, {"timestamp_ms": number}):
                answer = reset(peer, **asked)
                if number > end and "offset" in asked:
                    assert answer == "log.offset_out_of_range", asked
                else:
                    assert answer[0]["offset"] == place, (asked, answer)
        for number in (-1, 1, 10**30):
            assert reset(peer, offset=0, partitions=[number]) == "topic.partition_unknown"
        for odd_offset in (1.5, "0", True, None, [], {}):
            assert reset(peer, offset=odd_offset) == "config.invalid"
        peer.is_served()


# --- 25: shared subscriptions ----------------------------------------------------------------------------------------


def test_shared_subscriptions_are_limited_and_named_as_topics_are(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=3, memory_bytes=96 << 20) as attack:
        peer = attack.connect()
        for name in ("a/b", "..", "__s", "x" * 250, "\n", "\0"):
            assert fails(peer, m.Subscribe("s", shared=name)) == "config.invalid", name
        assert fails(peer, m.Subscribe("leased", shared="work")) == "delivery.wrong_kind"
        assert fails(peer, m.Subscribe("leased", member="x" * 256)) == "limit.exceeded"
        assert fails(peer, m.Subscribe("s", "g", shared="work")) == "delivery.wrong_kind"
        for topic, most in (("s", 64), ("wide-0", 4)):
            for number in range(most):
                subscription = peer.subscribe(topic, shared=f"work-{number}", start=m.START_LATEST)
                assert peer.ask(m.Unsubscribe(subscription)) == m.Done()
            for _ in range(20):
                assert fails(peer, m.Subscribe(topic, shared="one-more")) == "limit.exceeded"
            for number in range(most):
                peer.administer("subscription.delete", topic=topic, subscription=f"work-{number}")
        peer.is_served()


def test_a_name_that_is_taken_over_without_end_costs_no_more_than_its_requests(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=1) as attack:
        peer = attack.connect()
        publish(peer, "s", 10, partition=0)
        peer.administer("subscription.create", topic="s", subscription="work")
        for _ in range(300):
            peer.send(request(m.Subscribe("s", shared="work", member="same", credit=10), 0))
        last = peer.subscribe("s", shared="work", member="same", credit=10)
        shown = peer.administer("subscription.show", topic="s", subscription="work")
        assert shown["consumers"] == 1, "each has fenced the one before"
        assert peer.ask(m.Unsubscribe(last)) == m.Done()
        peer.administer("subscription.delete", topic="s", subscription="work")
        peer.is_served()


# --- 31: nacks -------------------------------------------------------------------------------------------------------


def test_endless_nacks_cost_no_more_than_their_requests(broker: WatchedBroker) -> None:
    turns = 500
    with attacked(broker, cpu_s=1) as attack:
        peer = attack.connect()
        publish(peer, "again", 3)
        subscription = peer.subscribe("again", credit=1)
        attempts: dict[int, int] = {}
        for _ in range(turns):
            [(delivery, batch)] = delivered(peer, 1)
            attempts[batch.base_offset] = delivery.attempt
            nack = m.Settlement(0, delivery.delivery_id, batch.base_offset, batch.end_offset, m.Verdict.NACK)
            peer.send(request(m.Settle(subscription, [nack]), 0), request(m.Credit(subscription, 1), 0))
        assert sum(attempts.values()) >= turns
        peer.is_served()
        peer.close()
        other = attack.connect()
        other.subscribe("again", credit=3)
        assert {batch.count for _, batch in delivered(other, 3)} == {1, 2}, "another consumer gets them at once"
        other.is_served()


def test_nacked_records_without_a_consumer_cause_no_work(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=1, memory_bytes=16 << 20) as attack:
        peer = attack.connect()
        publish(peer, "leased", 10_000, partition=1)
        subscription = peer.subscribe("leased", credit=10_000)
        for delivery, batch in delivered(peer, 10_000):
            nacks = [
                m.Settlement(1, delivery.delivery_id, offset, offset + 1, m.Verdict.NACK, 1 + offset % 1_000)
                for offset in range(batch.base_offset, batch.end_offset)
            ]
            for at in range(0, len(nacks), m.SETTLE_ENTRIES_MAX):
                assert refused(peer, subscription, *nacks[at : at + m.SETTLE_ENTRIES_MAX]) == {}
        # Until every delay has passed: what is ready and nobody wants must cost nothing.
        let_pass(peer, 1_200)
        shown = peer.administer("subscription.show", topic="leased")
        assert shown["delayed"] == 0
        peer.is_served()


def test_reasons_without_end_are_cut_and_kept_up_to_a_limit(broker: WatchedBroker) -> None:
    many = 10_000
    with attacked(broker, cpu_s=4, memory_bytes=48 << 20) as attack:
        peer = attack.connect()
        publish(peer, "explained", many)
        subscription = peer.subscribe("explained", credit=many)
        leased = [
            m.Settlement(0, delivery.delivery_id, offset, offset + 1, m.Verdict.NACK, 3_600_000)
            for delivery, batch in delivered(peer, many)
            for offset in range(batch.base_offset, batch.end_offset)
        ]
        longest = "\x1b[31m\N{PILE OF POO}\r\n" * 12_000
        first = m.Settlement(0, leased[0].delivery_id, 0, 1, m.Verdict.REJECT, 0, 1)
        assert peer.ask(m.Settle(subscription, [first], [longest])) == m.Settled([])
        for at in range(1, many, 1_000):
            some = leased[at : at + 1_000]
            for place, entry in enumerate(some, 1):
                entry.reason = place
            assert peer.ask(m.Settle(subscription, some, [f"{at + n} " * 40 for n in range(len(some))])) == m.Settled(
                []
            )
        too_many = m.Settle(subscription, [], [""] * (m.SETTLE_ENTRIES_MAX + 1))
        peer.send(request(too_many))
        peer.is_failed("limit.exceeded")
        odd = m.Settlement(0, leased[-1].delivery_id, 0, 1, m.Verdict.REJECT, 0, 65_535)
        assert [refusal.code for refusal in peer.ask(m.Settle(subscription, [odd], ["x"])).refused] == [
            "delivery.not_current"
        ]
        attack.until(
            lambda: peer.administer("topic.show", name="unexplained")["partitions"][0]["end"] == 1, "it is dead"
        )
        peer.is_served()


def test_nacks_end_where_deliveries_are_counted(broker: WatchedBroker) -> None:
    with attacked(broker) as attack:
        peer = attack.connect()
        publish(peer, "buried", 20)
        subscription = peer.subscribe("buried", credit=20)
        left = 5 * 20
        while left:
            for delivery, batch in delivered(peer, 1):
                left -= batch.count
                nack = m.Settlement(0, delivery.delivery_id, batch.base_offset, batch.end_offset, m.Verdict.NACK)
                peer.send(request(m.Settle(subscription, [nack]), 0), request(m.Credit(subscription, batch.count), 0))
        attack.until(
            lambda: peer.administer("topic.show", name="dead")["partitions"][0]["end"] == 20,
            "what nobody takes is buried",
        )
        assert peer.administer("subscription.show", topic="buried")["unsettled"] == 0
        peer.is_served()
