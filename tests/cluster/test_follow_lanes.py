"""Copies of a topic's logs over links between whole brokers: what a follower has, and what its leader knows of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest
import trio
from followed_topic import LOGS, TOPIC, FollowingTopic, LedTopic, messages_in, part_of
from peer_world import ANN, PeerBroker, peer_world, until

from linn.cluster import channel, served_follower, server
from linn.cluster.channel import SILENCE_S
from linn.cluster.served_follower import NEWS_BYTES_MAX
from linn.cluster.window import Limits
from linn.core.cluster.following import NEWS_BATCHES_MAX
from linn.core.errors.peers import PeerUnreachable
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import FrameTooLarge, LinnError, ProtocolError, RequestUnknown, TopicUnknown
from linn.core.log.replication.events import Cut, LogTable, Restart
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire.connection import BATCHES_MAX

Scenario = Callable[[SimEnv, PeerBroker, PeerBroker, LedTopic], Awaitable[None]]


def led(scenario: Scenario, seed: int = 0) -> None:
    """Run a scenario with two brokers, the second of which leads the topic."""

    async def main(env: SimEnv) -> None:
        async with peer_world(env) as (one, two):
            topic = LedTopic(two.env)
            two.broker.gateway.followed_logs = topic
            await scenario(env, one, two, topic)

    run_simulation(seed, main, virtual_s_max=600)


async def assert_equal(leading: LedTopic, following: FollowingTopic) -> None:
    for number in LOGS:
        assert await messages_in(following.partitions[number]) == await messages_in(leading.partitions[number])


@pytest.mark.parametrize("seed", range(5))
def test_a_follower_has_the_records_of_its_leader_and_the_leader_commits_them(seed: int) -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        topic.append(0, [b"before"])
        following = FollowingTopic(one.env)
        lane = await one.links.open_follow_lane(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(following.run, lane)
            for step in range(30):
                for _ in range(env.rng.integer(4)):
                    topic.append(LOGS[env.rng.integer(2)], [b"%d" % step] * env.rng.integer(20))
                await trio.sleep(env.rng.uniform(0, 0.1))
            ends = {number: partition.log.bounds()[1] for number, partition in topic.partitions.items()}
            await until(lambda: topic.leader.watermarks() == ends)
            await until(lambda: following.watermarks == ends)
            nursery.cancel_scope.cancel()
        await assert_equal(topic, following)
        assert topic.followed_by == [(1, "s1")], "the node and the session of the proof"
        await until(lambda: not topic.seats)

    led(scenario, seed)


@pytest.mark.parametrize("seed", range(8))
def test_a_follower_goes_on_after_lost_links(seed: int) -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        following = FollowingTopic(one.env)

        async def follow() -> None:
            while True:
                following.replica.follow_again()
                following.replica.take_commands()
                with suppress(PeerUnreachable):
                    lane = await one.links.open_follow_lane(2)
                    await following.run(lane)
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for step in range(30):
                topic.append(LOGS[env.rng.integer(2)], [b"%d" % step] * env.rng.integer(9))
                match env.rng.integer(10):
                    case 0:
                        env.world.sever("n1", "n2")
                    case 1:
                        env.world.cut("n1", "n2")
                    case 2:
                        env.world.cut_one_way("n2", "n1")
                await trio.sleep(env.rng.uniform(0, 0.5))
                env.world.heal("n1", "n2")
            ends = {number: partition.log.bounds()[1] for number, partition in topic.partitions.items()}
            await until(lambda: following.watermarks == ends, 4 * SILENCE_S)
            nursery.cancel_scope.cancel()
        await assert_equal(topic, following)
        await until(lambda: not topic.seats, 4 * SILENCE_S)

    led(scenario, seed)


def test_a_follower_that_has_more_or_other_records_is_told_where_to_cut() -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        topic.append(0, [b"x"] * 5)
        lane = await one.links.open_follow_lane(2)
        tables = {0: LogTable(0, 9, ((1, 0),)), 77: LogTable(0, 0, ())}
        assert await lane.follow(TOPIC, 1, tables) == {0: Cut(5), 4096: Cut(0)}
        assert await lane.follow(TOPIC, 1, {0: LogTable(90, 95, ((7, 90),))}) == {0: Restart(0), 4096: Cut(0)}
        assert len(topic.seats) == 1, "a lane follows once"
        lane.close()
        await until(lambda: not topic.seats)

    led(scenario)


def test_a_broker_that_does_not_lead_names_the_one_that_does() -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        lane = await one.links.open_follow_lane(2)
        with pytest.raises(NotLeader, match="not 7") as caught:
            await lane.follow(TOPIC, 7, {})
        assert (caught.value.leader, caught.value.epoch) == (2, 1)
        await lane.follow(TOPIC, 1, {})
        await lane.replicate([], 1)
        told = list[NotLeader]()

        async def replicate() -> None:
            with pytest.raises(NotLeader) as caught:
                await lane.replicate([], 1)
            told.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replicate)
            await trio.sleep(1)
            topic.elect(part_of(3, "s3", 4))
        assert (told[0].leader, told[0].epoch) == (1, 4), "a wait ends with the role"

    led(scenario)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (LogTable(5, 4, ()), "a log from offset 5 to 4"),
        (LogTable(-1, 4, ()), "a log from offset -1 to 4"),
        (LogTable(0, 4, ((2, 0), (1, 2))), "epoch 1 from offset 2 on, after epoch 2"),
        (LogTable(0, 4, ((1, 3), (2, 2))), "epoch 2 from offset 2 on"),
        (LogTable(0, 4, ((-3, 0),)), "epoch -3"),
        (LogTable(0, 4, ((1, 5),)), "in a log up to 4"),
        (LogTable(0, 2_000, tuple((epoch, epoch) for epoch in range(1_001))), "a log of 1,001 epochs"),
    ],
)
def test_tables_that_no_log_has_are_refused(table: LogTable, text: str) -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        lane = await one.links.open_follow_lane(2)
        with pytest.raises(ProtocolError, match=text):
            await lane.follow(TOPIC, 1, {0: table})
        with pytest.raises(PeerUnreachable, match="before follow"):
            await lane.replicate([], 1)

    led(scenario)


def test_only_the_newest_epochs_of_very_many_are_told() -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        topic.append(0, [b"x"] * 5)
        lane = await one.links.open_follow_lane(2)
        rows = tuple((epoch, epoch) for epoch in range(1_000))
        logs = {number: LogTable(0, 1_000, rows) for number in range(100)}
        assert await lane.follow(TOPIC, 1, logs) == {0: Restart(0), 4096: Cut(0)}
        with pytest.raises(FrameTooLarge, match="70,000 logs of one topic"):
            await lane.follow(TOPIC, 1, dict.fromkeys(range(70_000), LogTable(0, 0, ())))
        assert await lane.follow(TOPIC, 1, {}) == {0: Cut(0), 4096: Cut(0)}, "the lane goes on"

    led(scenario)


def test_another_topic_and_another_broker_are_not_followed() -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        lane = await one.links.open_follow_lane(2)
        other = type(TOPIC)(int=5)
        with pytest.raises(TopicUnknown, match=str(other)):
            await lane.follow(other, 1, {})
        backwards = await two.links.open_follow_lane(1)
        with pytest.raises(RequestUnknown):
            await backwards.follow(TOPIC, 1, {})

    led(scenario)


@pytest.mark.parametrize(
    "ends", [[(0, 6)], [(0, 5), (0, 4)], [(0, -1)], [(7, 0)]], ids=["beyond", "backwards", "negative", "unknown"]
)
def test_an_acknowledgement_that_can_not_be_ends_the_link(ends: list[tuple[int, int]]) -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        topic.append(0, [b"x"] * 5)
        lane = await one.links.open_follow_lane(2)
        await lane.follow(TOPIC, 1, {0: LogTable(0, 5, ((1, 0),))})
        with pytest.raises(PeerUnreachable):
            await lane.replicate(ends, 1)
        await until(lambda: not topic.seats)
        await until(lambda: two.broker.connections.traffic["peers"].failed == {"protocol.malformed": 1})
        await one.links.perform(2, "topic.list", "{}", ANN)

    led(scenario)


def test_an_acknowledgement_counts_though_there_are_no_news() -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        lane = await one.links.open_follow_lane(2)
        following = FollowingTopic(one.env)
        await following.follow(lane)
        topic.append(0, [b"x"] * 5)
        assert [len(each.batches) for each in await following.replicate(lane)] == [5, 0]
        assert topic.leader.watermarks()[0] == 0
        assert [(each.watermark, each.batches) for each in await following.replicate(lane)] == [(5, [])]
        with trio.move_on_after(5):
            await following.replicate(lane)
        assert topic.leader.watermarks() == {0: 5, 4096: 0}

    led(scenario)


# --- lanes and windows -----------------------------------------------------------------------------------------------


def test_answers_have_as_many_bytes_and_batches_as_a_message_may_have() -> None:
    assert NEWS_BATCHES_MAX == BATCHES_MAX

    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        topic.append(0, [b"x" * 200_000] * 40 + [b"x"] * 3_000)
        lane = await one.links.open_follow_lane(2)
        following = FollowingTopic(one.env)
        await following.follow(lane)
        assert [len(each.batches) for each in await following.replicate(lane, 1)] == [1], "a single one may be larger"
        news = await following.replicate(lane, 2**32 - 1)
        assert sum(batch.size for batch in news[0].batches) <= NEWS_BYTES_MAX
        while following.partitions[0].log.bounds() != topic.partitions[0].log.bounds():
            news = await following.replicate(lane, 2**32 - 1)
            assert len(news[0].batches) <= NEWS_BATCHES_MAX
        await assert_equal(topic, following)

    led(scenario)


def test_a_closed_lane_ends_its_request_and_the_seat() -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        lane, other = await one.links.open_follow_lane(2), await one.links.open_follow_lane(2)
        await other.follow(TOPIC, 1, {})
        await lane.follow(TOPIC, 1, {})
        await lane.replicate([], 1)
        assert len(topic.seats) == 2

        async def replicate() -> None:
            with pytest.raises(PeerUnreachable, match="the lane is closed"):
                await lane.replicate([], 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replicate)
            await trio.sleep(1)
            lane.close()
            lane.close()
        await until(lambda: len(topic.seats) == 1)
        with trio.move_on_after(1):
            await other.replicate([], 1)
            await other.replicate([], 1)
        with pytest.raises(PeerUnreachable, match="the lane is closed"):
            await other.follow(TOPIC, 1, {})
        await until(lambda: not topic.seats)
        link = one.links._ways[2]._link
        assert link is not None
        await until(lambda: not link._requests._lanes)
        assert link._requests._window.requests == 0

    led(scenario)


def test_followers_that_wait_take_no_room_from_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "Limits", partial(Limits, requests_max=8))

    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        async def follow() -> None:
            lane = await one.links.open_follow_lane(2)
            await lane.follow(TOPIC, 1, {})
            await lane.replicate([], 1)
            await lane.replicate([], 1)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(follow)
            await until(lambda: sum([seat.taken for seat in topic.seats]) == 20)
            await trio.sleep(1)
            with trio.fail_after(5):
                assert await one.links.perform(2, "topic.list", "{}", ANN) == "[]"
            nursery.cancel_scope.cancel()

    led(scenario)


def test_a_leader_that_stops_takes_acknowledgements_for_a_moment_and_ends_the_link() -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        following = FollowingTopic(one.env)
        lane = await one.links.open_follow_lane(2)
        await following.follow(lane)
        await following.replicate(lane)
        ended = list[float]()

        async def follow() -> None:
            with suppress(PeerUnreachable):
                while True:
                    await following.replicate(lane)
            ended.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.sleep(1)
            topic.append(0, [b"the last publish"])
            began_s = trio.current_time()
            nursery.start_soon(two.broker.drain)
            await until(lambda: topic.leader.watermarks()[0] == 1, 0.4)
            await until(lambda: bool(ended))
        assert ended[0] < began_s + 1.5, "a follower that waits holds up no stop"

    led(scenario)


def test_the_room_of_a_link_is_for_one_answer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "OUTGOING_BYTES_MAX", 100_000)

    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        lanes = [await one.links.open_follow_lane(2) for _ in range(20)]
        got = [0] * len(lanes)

        async def follow(number: int) -> None:
            while got[number] < 4:
                got[number] += sum([len(news.batches) for news in await lanes[number].replicate([], 70_000)])

        for lane in lanes:
            await lane.follow(TOPIC, 1, {})
            await lane.replicate([], 1)
        seats = list(topic.seats)
        env.world.slow("n1", "n2", delay_s=(0.01, 0.02), bytes_per_s=100_000)
        async with trio.open_nursery() as nursery:
            for number in range(len(lanes)):
                nursery.start_soon(follow, number)
            await trio.sleep(1)
            before = sum([seat.taken for seat in seats])
            topic.append(0, [b"x" * 60_000] * 4)
            await trio.sleep(0.5)
            assert 2 <= sum([seat.taken for seat in seats]) - before <= 4
            assert await one.links.perform(2, "topic.list", "{}", ANN) == "[]", "others wait for no follower"
            assert sum(got) < 40
        assert got == [4] * len(lanes), "each had its turns"

    led(scenario)


def test_a_bug_in_a_seat_fails_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(env: SimEnv, one: PeerBroker, two: PeerBroker, topic: LedTopic) -> None:
        lane = await one.links.open_follow_lane(2)
        await lane.follow(TOPIC, 1, {})
        topic.append(0, [b"x"] * 3)
        monkeypatch.setattr(served_follower, "NEWS_BATCHES_MAX", 2)
        with pytest.raises(LinnError, match="the broker failed to carry out a request"):
            await lane.replicate([], 1 << 20)
        assert await one.links.perform(2, "topic.list", "{}", ANN) == "[]"

    led(scenario)
