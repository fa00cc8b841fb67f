"""Verbs that another broker carries out, over links with faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from peer_world import ANN, PeerBroker, members, peer_broker, peer_world, until

from linn.cluster.channel import PING_S, SILENCE_S, Channel
from linn.cluster.links import DIAL_S, FRAME_BYTES_MAX
from linn.core.cluster.peers import PeerPlace
from linn.core.errors.auth import Forbidden
from linn.core.errors.peers import PeerRefused, PeerUnknown, PeerUnreachable
from linn.core.errors.tree import BrokerStopping, LinnError, RequestUnknown, TopicUnknown
from linn.core.security.sasl.scram import make_verifier
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import frames_of

CREATE, SHOW, LIST = "topic.create", "topic.show", "topic.list"


def named(name: str) -> str:
    return json.dumps({"name": name})


def settled(name: str) -> str:
    return json.dumps({"name": name, "settings": {"kind": "queue"}})


def simulate(scenario: Callable[[SimEnv], Awaitable[None]], seed: int = 0) -> None:
    run_simulation(seed, scenario, virtual_s_max=600)


class Caller:
    """A verb that is asked of another broker in a task of its own."""

    def __init__(self, nursery: trio.Nursery, broker: PeerBroker, node: int, verb: str, arguments: str) -> None:
        self.answer: str | None = None
        self.error: LinnError | None = None
        nursery.start_soon(self._ask, broker, node, verb, arguments)

    async def _ask(self, broker: PeerBroker, node: int, verb: str, arguments: str) -> None:
        try:
            self.answer = await broker.links.perform(node, verb, arguments, ANN)
        except LinnError as error:
            self.error = error

    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None


# --- what a link does ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_a_verb_is_carried_out_by_another_broker(seed: int) -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env) as (one, two):
            await one.links.perform(2, CREATE, settled("orders"), ANN)
            assert "orders" in two.broker.topics
            assert "orders" not in one.broker.topics
            assert json.loads(await one.links.perform(2, SHOW, named("orders"), ANN))["name"] == "orders"
            await two.links.perform(1, CREATE, settled("bills"), ANN)
            assert "bills" in one.broker.topics
            assert (one.linked, two.linked) == (1, 1), "one link a direction"

    simulate(scenario, seed)


def test_a_verb_fails_with_the_error_of_the_other_broker() -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env) as (one, _):
            with pytest.raises(TopicUnknown, match="nothing"):
                await one.links.perform(2, SHOW, named("nothing"), ANN)
            with pytest.raises(RequestUnknown):
                await one.links.perform(2, "topic.creat", "{}", ANN)
            assert await one.links.perform(2, LIST, "{}", ANN) == "[]"

    simulate(scenario)


def test_the_other_broker_checks_the_rights_and_writes_the_user_to_its_audit_trail() -> None:
    tables = """
[roles.builder]
"topic:orders.*" = ["configure"]
[users.ann]
roles = ["builder"]
scram = { env = "ANN" }
"""

    async def scenario(env: SimEnv) -> None:
        known = members(2)
        async with peer_world(env, known=known) as (one, _):
            machine = SimEnv(9, name="n3", world=env.world)
            machine.process.variables["ANN"] = make_verifier("secret", b"s" * 16, 4096).text()
            known[1].places[3] = PeerPlace("s3", "127.0.0.1:6003")
            member = members(3)[3]
            async with peer_broker(machine, member, tables) as three:
                await one.links.perform(3, CREATE, settled("orders.eu"), ANN)
                with pytest.raises(Forbidden, match='user "ann" may not configure topic:bills'):
                    await one.links.perform(3, CREATE, settled("bills"), ANN)
                assert [topic["name"] for topic in json.loads(await one.links.perform(3, LIST, "{}", ANN))] == [
                    "orders.eu"
                ]
                with pytest.raises(Forbidden):
                    await one.links.perform(3, CREATE, settled("orders.us"), ANN._replace(name="bob"))
                partition = three.broker.topics["__audit"].partitions[0]
                batches = await partition.read_range(0, partition.high_watermark, 1 << 20)
                written = [json.loads(record.value or b"") for batch in batches for record in batch.records()]
                made = next(entry for entry in written if entry["action"] == CREATE)
                assert (made["user"], made["address"], made["client"]) == ("ann", ANN.connection, ANN.client)

    simulate(scenario)


def test_many_verbs_are_asked_at_once_over_one_link() -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env) as (one, two), trio.open_nursery() as nursery:
            callers = [Caller(nursery, one, 2, CREATE, settled(f"t{number}")) for number in range(300)]
            await until(lambda: all(caller.is_done() for caller in callers))
            assert [caller.error for caller in callers if caller.error] == []
            assert len(two.broker.topics) == 300
            assert two.linked == 1

    simulate(scenario)


def test_a_lane_that_waits_holds_up_no_other() -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env) as (one, two), trio.open_nursery() as nursery:
            async with two.broker.administration._lock:
                waiting = Caller(nursery, one, 2, CREATE, settled("orders"))
                await trio.sleep(2 * SILENCE_S)
                assert await one.links.perform(2, LIST, "{}", ANN) == "[]"
                assert not waiting.is_done(), "a verb may take longer than the longest silence"
            await until(waiting.is_done)
            assert waiting.error is None

    simulate(scenario)


def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env) as (one, two):
            async with two.broker.administration._lock:
                for number in range(5):
                    with trio.move_on_after(1):
                        await one.links.perform(2, CREATE, settled(f"t{number}"), ANN)
            assert await one.links.perform(2, LIST, "{}", ANN) is not None
            link = one.links._ways[2]._link
            assert link is not None
            await until(lambda: not link._requests._lanes)
            assert (link._requests._window.requests, link._requests._window._bytes) == (0, 0)

    simulate(scenario)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_nothing_was_done_where_there_was_no_link() -> None:
    async def scenario(env: SimEnv) -> None:
        known = members(3)
        async with peer_world(env, known={1: known[1], 2: known[2]}) as (one, two):
            with pytest.raises(PeerUnreachable, match="no link to node 3: can't connect"):
                await one.links.perform(3, LIST, "{}", ANN)
            assert trio.current_time() < DIAL_S + 1
            with pytest.raises(PeerUnreachable, match="no session in the metadata store"):
                await one.links.perform(4, LIST, "{}", ANN)
            env.world.cut("n1", "n2")
            with pytest.raises(PeerUnreachable, match="did not answer within 4 s"):
                await one.links.perform(2, CREATE, settled("orders"), ANN)
            env.world.heal("n1", "n2")
            await one.links.perform(2, CREATE, settled("orders"), ANN)
            assert list(two.broker.topics) == ["orders"]

    simulate(scenario)


@pytest.mark.parametrize("one_way", [None, ("n1", "n2"), ("n2", "n1")])
@pytest.mark.parametrize("seed", range(5))
def test_the_outcome_is_unknown_when_the_link_is_cut_before_the_answer(
    seed: int, one_way: tuple[str, str] | None
) -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env) as (one, two), trio.open_nursery() as nursery:
            await one.links.perform(2, LIST, "{}", ANN)
            if one_way is None:
                env.world.cut("n1", "n2")
            else:
                env.world.cut_one_way(*one_way)
            change = Caller(nursery, one, 2, CREATE, settled("orders"))
            look = Caller(nursery, one, 2, LIST, "{}")
            await until(lambda: change.is_done() and look.is_done(), SILENCE_S + 3)
            assert type(change.error) is PeerUnknown
            assert type(look.error) is PeerUnreachable, "looking again does no harm"
            env.world.heal("n1", "n2")
            await until(lambda: two.linked == 0, SILENCE_S + 3)
            shown = json.loads(await one.links.perform(2, LIST, "{}", ANN))
            assert [topic["name"] for topic in shown] == list(two.broker.topics)

    simulate(scenario, seed)


def test_a_link_that_is_slow_is_not_lost() -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env) as (one, two):
            await one.links.perform(2, LIST, "{}", ANN)
            env.world.slow("n1", "n2", delay_s=(0.5, 1.0), bytes_per_s=100_000)
            arguments = json.dumps({"name": "x" * 800_000})
            with pytest.raises(TopicUnknown):
                await one.links.perform(2, SHOW, arguments, ANN)
            assert trio.current_time() > 2 * SILENCE_S
            assert two.linked == 1

    simulate(scenario)


def test_a_verb_finds_a_broker_again_that_was_killed() -> None:
    async def scenario(env: SimEnv) -> None:
        known = members(2)
        async with peer_world(env, known={1: known[1]}) as (one,), trio.open_nursery() as nursery:
            machine = SimEnv(2, name="n2", world=env.world)
            for life in range(3):
                known[2].session = f"life {life}"
                known[2].places[1] = PeerPlace("s1", "127.0.0.1:6001")
                known[1].places[2] = PeerPlace(known[2].session, "127.0.0.1:6002")
                started = trio.Event()

                async def live(machine: SimEnv, started: trio.Event) -> None:
                    async def serve(machine: SimEnv) -> None:
                        async with peer_broker(machine, known[2]):
                            started.set()
                            await trio.sleep_forever()

                    await machine.run_until_death(serve)

                nursery.start_soon(live, machine, started)
                await started.wait()
                await one.links.perform(2, CREATE, settled(f"t{life}"), ANN)
                caller = Caller(nursery, one, 2, LIST, "{}")
                machine.kill()
                await until(caller.is_done)
                machine = machine.restart()
            assert isinstance(caller.error, PeerUnreachable)

    simulate(scenario)


def test_a_link_between_earlier_sessions_is_closed() -> None:
    async def scenario(env: SimEnv) -> None:
        known = members(2)
        async with peer_world(env, known=known) as (one, two):
            await one.links.perform(2, LIST, "{}", ANN)
            known[2].session = "s2b"
            await until(lambda: two.linked == 0, 3)
            with pytest.raises(PeerUnreachable, match="no link to node 2: node 2 has another session than node 1"):
                await one.links.perform(2, LIST, "{}", ANN)
            known[1].places[2] = known[1].places[2]._replace(session="s2b")
            await one.links.perform(2, LIST, "{}", ANN)
            known[1].session = "s1b"
            known[2].places[1] = known[2].places[1]._replace(session="s1b")
            await one.links.perform(2, LIST, "{}", ANN)
            assert two.linked == 1
            del known[2].places[1]
            await trio.sleep(2 * SILENCE_S)
            assert two.linked == 1, "a node without a session in the store may come back"

    simulate(scenario)


def test_a_broker_that_refuses_is_not_dialed_again_before_a_pause() -> None:
    async def scenario(env: SimEnv) -> None:
        known = members(2)
        known[2].secret = b"another secret of the same length"
        async with peer_world(env, known=known) as (one, two):
            for _ in range(100):
                with pytest.raises(PeerRefused, match="the proof is wrong"):
                    await one.links.perform(2, LIST, "{}", ANN)
            assert two.broker.connections.traffic["peers"].opened <= 2
            known[2].secret = known[1].secret
            await trio.sleep(3)
            await one.links.perform(2, LIST, "{}", ANN)

    simulate(scenario)


def test_a_broker_that_stops_answers_what_it_was_asked_and_takes_no_more() -> None:
    async def scenario(env: SimEnv) -> None:
        known = members(2)
        async with peer_world(env, known={1: known[1]}) as (one,), trio.open_nursery() as nursery:
            async with peer_broker(SimEnv(2, name="n2", world=env.world), known[2]) as two:
                await one.links.perform(2, LIST, "{}", ANN)
                async with two.broker.administration._lock:
                    caller = Caller(nursery, one, 2, CREATE, settled("orders"))
                    await trio.sleep(1)
                    nursery.start_soon(two.broker.drain)
                    await trio.sleep(0.5)
                    with pytest.raises((BrokerStopping, PeerUnreachable)):
                        await one.links.perform(2, CREATE, settled("bills"), ANN)
                await until(caller.is_done)
                assert type(caller.error) is BrokerStopping, "it was answered"
                await until(lambda: two.linked == 0)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_what_a_caller_is_told_is_true_whatever_happens_to_the_link(seed: int) -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env) as (one, two), trio.open_nursery() as nursery:
            callers: dict[str, Caller] = {}
            for step in range(40):
                for number in range(env.rng.integer(6)):
                    name = f"t{step}.{number}"
                    callers[name] = Caller(nursery, one, 2, CREATE, settled(name))
                match env.rng.integer(8):
                    case 0:
                        env.world.cut("n1", "n2")
                    case 1:
                        env.world.cut_one_way("n1", "n2")
                    case 2:
                        env.world.cut_one_way("n2", "n1")
                    case 3 | 4:
                        env.world.sever("n1", "n2")
                    case 5:
                        env.world.slow("n1", "n2", delay_s=(0.0, 0.5), bytes_per_s=20_000)
                await trio.sleep(env.rng.uniform(0.0, 1.5))
                env.world.heal("n1", "n2")
            await until(lambda: all(caller.is_done() for caller in callers.values()), 60)
            await until(lambda: two.linked <= 1)
            told: dict[str, int] = {}
            for name, caller in callers.items():
                what = "done" if caller.error is None else caller.error.code
                told[what] = told.get(what, 0) + 1
                if what == "done":
                    assert name in two.broker.topics
                elif what != "peer.unknown":
                    assert what == "peer.unreachable"
                    assert name not in two.broker.topics, "nothing was done, its caller was told"
            assert told["done"] > 5

    simulate(scenario, seed)


@asynccontextmanager
async def two_channels(env: SimEnv) -> AsyncIterator[tuple[Channel, Channel]]:
    """The sides of a link that runs, first the one that serves it; the other is on the machine "other"."""
    listener = await env.net.listen("10.0.0.1:5467")
    other = SimEnv(1, name="other", world=env.world)
    async with trio.open_nursery() as nursery:
        dialer = Channel(await other.net.connect("10.0.0.1:5467"), other.clock, is_dialer=True)
        served = Channel(await listener.accept(), env.clock, is_dialer=False)
        for channel in (dialer, served):
            channel.allow_frames(FRAME_BYTES_MAX)
            nursery.start_soon(channel.run, lambda _: None, lambda: None)
        await trio.sleep(10)
        assert served.silent_s() == dialer.silent_s() == 0
        yield served, dialer
        env.world.heal(env.name, "other")
        await trio.sleep(2 * PING_S)
        assert served.silent_s() == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("waiting", [0, 6])
def test_silence_is_told_also_while_nothing_is_read(waiting: int) -> None:
    """With much output waiting, a side that serves reads nothing: then the other one is there if it takes output."""

    async def scenario(env: SimEnv) -> None:
        async with two_channels(env) as (served, _):
            env.world.cut(env.name, "other")
            served.put(frames_of(m.Goodbye("x" * (1 << 20))) * waiting)
            await trio.sleep(3 * PING_S)
            assert PING_S <= served.silent_s() <= 3 * PING_S

    simulate(scenario)


def test_a_side_that_no_ping_reaches_is_silent_although_it_speaks() -> None:
    async def scenario(env: SimEnv) -> None:
        async with two_channels(env) as (served, dialer):
            env.world.cut_one_way(env.name, "other")
            await trio.sleep(5 * PING_S)
            assert 3 * PING_S <= served.silent_s() <= 5 * PING_S
            assert dialer.silent_s() >= 3 * PING_S

    simulate(scenario)
