"""Hostile brokers in the lanes of consumers: each costs its own link, and its clients are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
from raw_peer import ANN, RawPeer, against, dialing, let_in, refused

from linn.cluster.links import Links
from linn.core.broker.broker import Broker
from linn.core.errors.peers import PeerUnreachable
from linn.core.errors.tree import LinnError
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

OPEN = m.OpenLane("10.0.0.9:1", "tests", "ann", "scram")
SUBSCRIBED = m.Subscribed(1, m.ConsumerKind.SHARED, 1000, 1)
DELIVER = m.Deliver(1, 0, 1, 1)

# --- against the broker that leads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requests",
    [
        [m.Pull(1, 1)],
        [m.Administer("topic.list"), m.Subscribe("t")],
        [m.Administer("topic.list"), m.Settle(1, [])],
        [m.Subscribe("t"), m.Subscribe("t")],
        [m.Subscribe("t"), m.Administer("topic.list")],
        [m.Subscribe("t"), m.Publish("t")],
        [m.Subscribe("t"), m.Pong()],
        [m.Pong()],
        [m.Subscribe("t"), DELIVER],
    ],
    ids=lambda requests: "-".join(type(request).__name__ for request in requests),
)
def test_a_broker_that_mixes_consumers_with_something_else_is_closed(requests: Sequence[m.Message]) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        await peer.greet()
        await peer.say(OPEN, lane=1)
        *first, last = requests
        for request in first:
            await peer.say(request, lane=1, correlation=1)
            await peer.next()
        await peer.say(last, lane=1, correlation=2)
        assert await refused(peer) == "protocol.malformed"

    against(scenario)


def test_a_consumer_that_is_unknown_at_the_leader_is_refused_and_ends_nothing() -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        await peer.greet()
        await peer.say(OPEN, lane=1)
        codes = []
        for number, request in enumerate([m.Subscribe("t"), m.Pull(1, 1), m.Settle(1, []), m.Heartbeat(1, 1)], 1):
            await peer.say(request, lane=1, correlation=number)
            event = await peer.next()
            assert isinstance(event.message, m.Failed)
            codes.append(event.message.code)
        assert codes == ["topic.unknown", *["delivery.subscription_unknown"] * 3]
        await peer.stream.aclose()

    against(scenario)


# --- against the broker of the client --------------------------------------------------------------------------------


class Ended:
    """A `Door` that waits for the end."""

    def __init__(self) -> None:
        self.pushes: list[m.Message] = []
        self.outcomes: list[Any] = []
        self.error: LinnError | None = None

    def pushed(self, event: Any) -> None:
        self.pushes.append(event.message)

    def ended(self, error: LinnError) -> None:
        assert self.error is None, "told once"
        self.error = error


def consuming(door: Ended) -> Callable[[Links], Awaitable[None]]:
    async def consume(links: Links) -> None:
        leg = links.leg(2, ANN, door)
        leg.ask(m.Subscribe("t"), door.outcomes.append)
        leg.ask(m.Pull(1, 1, 60_000), door.outcomes.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leg.run)
        assert door.error is not None
        raise door.error

    return consume


@pytest.mark.parametrize(
    ("message", "correlation"),
    [
        (m.Deliver(7, 0, 1, 1), 0),
        (m.Ended(7, "topic.unknown", ""), 0),
        (m.Published([]), 0),
        (m.Failed("topic.full", "of nothing"), 0),
        (m.Administered("{}"), 2),
        (m.Deliver(7, 0, 1, 1), 2),
        (m.CloseLane(), 0),
    ],
)
def test_a_broker_that_pushes_or_answers_nonsense_ends_the_consumers_at_its_link(
    message: m.Message, correlation: int
) -> None:
    door = Ended()

    async def nonsense(peer: RawPeer) -> None:
        await let_in(peer)
        for _ in range(3):
            await peer.next()
        await peer.say(SUBSCRIBED, lane=1, correlation=1)
        await peer.say(DELIVER, lane=1)
        await peer.say(message, lane=1, correlation=correlation)
        await peer.say(DELIVER, lane=1)

    dialing(nonsense, PeerUnreachable, "the consumer at the other broker is gone: ", consuming(door))
    assert door.pushes == [DELIVER], "nothing after the nonsense"
    subscribed, pulled = door.outcomes
    assert subscribed.message == SUBSCRIBED
    assert isinstance(pulled, LinnError)


def test_a_broker_that_answers_a_subscribe_with_another_number_ends_the_link() -> None:
    door = Ended()

    async def nonsense(peer: RawPeer) -> None:
        await let_in(peer)
        for _ in range(3):
            await peer.next()
        await peer.say(m.Subscribed(2, m.ConsumerKind.SHARED, 1000, 1), lane=1, correlation=1)

    dialing(nonsense, PeerUnreachable, "the consumer at the other broker is gone: ", consuming(door))
    assert all(isinstance(outcome, LinnError) for outcome in door.outcomes)
    assert len(door.outcomes) == 2
