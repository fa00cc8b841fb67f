"""The clocks of brokers, as their links compare them."""

from __future__ import annotations

import pytest
import trio
from peer_world import ANN, peer_world, until
from simulated_time import simulated

from linn.core.cluster.peer_clocks import FRESH_S, PeerClocks
from linn.testing.sim_env import SimEnv

LATENCY_S = 0.5
"""More than any message of these simulations is on its way."""


@pytest.mark.parametrize("ahead_s", [0, 700, -3600])
@simulated
async def test_both_sides_of_a_link_know_how_far_the_other_clock_is_ahead(env: SimEnv, ahead_s: int) -> None:
    async with peer_world(env) as (one, two):
        two.env.clock.jump(ahead_s * 1000)
        await one.links.perform(2, "topic.list", "{}", ANN)
        await until(lambda: 2 in one.member.clocks and 1 in two.member.clocks)
        assert one.member.clocks[2] == pytest.approx(ahead_s, abs=LATENCY_S)
        assert two.member.clocks[1] == pytest.approx(-ahead_s, abs=LATENCY_S)


@simulated
async def test_a_clock_that_is_set_is_noticed_with_the_next_ping(env: SimEnv) -> None:
    async with peer_world(env) as (one, two):
        await one.links.perform(2, "topic.list", "{}", ANN)
        await until(lambda: 2 in one.member.clocks)
        assert one.member.clocks[2] == pytest.approx(0, abs=LATENCY_S)
        two.env.clock.jump(60_000)
        await until(lambda: one.member.clocks[2] > 30, seconds=3)
        two.env.clock.jump(-60_000)
        await until(lambda: one.member.clocks[2] < 1, seconds=3)


@simulated
async def test_a_broker_that_is_not_linked_any_more_has_no_clock(env: SimEnv) -> None:
    clocks = PeerClocks(env.clock)
    clocks.note(2, 5.0)
    await trio.sleep(FRESH_S / 2)
    clocks.note(1, -1.0)
    assert clocks.ahead_s() == {1: -1.0, 2: 5.0}
    await trio.sleep(FRESH_S / 2 + 1)
    assert clocks.ahead_s() == {1: -1.0}
