"""Assignors: the built-in ones keep the promises of their port, and one that fails does no harm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest
from simulated_time import simulated

import linn
from linn.core.groups.assignor import CheckedAssignor, Owners, Sizes, Topics
from linn.plugins.assignors import RangeAssignor, RoundRobinAssignor, StickyAssignor
from linn.testing.assignors import AssignorConformance, AssignorHarness
from linn.testing.plugin_broker import URL, plugin_broker
from linn.testing.sim_env import SimEnv


class TestBuiltIn(AssignorConformance):
    @pytest.fixture(params=[StickyAssignor, RangeAssignor, RoundRobinAssignor])
    def harness(self, request: pytest.FixtureRequest) -> AssignorHarness:
        return AssignorHarness(make=request.param)


class Answering:
    def __init__(self, answer: Callable[[], Owners]) -> None:
        self._answer = answer

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        return self._answer()


MEMBERS = {"ann": ["a"], "bob": ["a", "b"]}
SIZES = {"a": 3, "b": 1, "c": 1}
RIGHT = {("a", 0): "ann", ("a", 1): "bob", ("a", 2): "ann", ("b", 0): "bob"}


def test_an_answer_that_keeps_the_promise_is_taken_as_it_is() -> None:
    checked = CheckedAssignor("odd", Answering(lambda: RIGHT), "plugin odd")
    assert checked.assign(MEMBERS, SIZES, {}) == RIGHT


WRONG: Mapping[str, Mapping[tuple[str, int], str]] = {
    "partition 2 of a has no owner": {place: owner for place, owner in RIGHT.items() if place != ("a", 2)},
    "partition 0 of c has an owner": RIGHT | {("c", 0): "ann"},
    'partition 0 of b went to "ann", which does not read it': RIGHT | {("b", 0): "ann"},
    'partition 0 of b went to "cyd", which does not read it': RIGHT | {("b", 0): "cyd"},
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_answer_is_logged_and_moves_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    checked = CheckedAssignor("odd", Answering(lambda: WRONG[text]), "plugin odd (odd 1.0)")
    previous = {("a", 0): "bob", ("a", 1): "gone", ("b", 0): "ann"}
    with caplog.at_level(logging.ERROR, "linn.group"):
        owners = checked.assign(MEMBERS, SIZES, previous)
    assert owners == {("a", 0): "bob", ("a", 1): "ann", ("a", 2): "bob", ("b", 0): "bob"}
    (line,) = caplog.messages
    assert text in line
    assert "plugin odd (odd 1.0)" in line


def test_an_assignor_that_raises_is_logged_and_moves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Owners:
        raise RuntimeError("I am broken")

    owners = CheckedAssignor("odd", Answering(fail), "plugin odd").assign(MEMBERS, SIZES, RIGHT)
    assert owners == RIGHT
    assert "RuntimeError: I am broken" in caplog.text


TOML = """
[broker]
default_assignor = "range"
[topics.a]
kind = "stream"
partitions = 3
[topics.b]
kind = "stream"
partitions = 1
[groups.dealt]
assignor = "round-robin"
"""


@pytest.mark.parametrize(("group", "shares"), [("dealt", [(0, 2), (1,)]), ("other", [(0, 1), (2,)])])
@simulated
async def test_a_group_is_divided_by_the_assignor_that_its_table_names(
    env: SimEnv, group: str, shares: list[tuple[int, ...]]
) -> None:
    async with plugin_broker(env, TOML) as broker, linn.connect(URL, env=env) as client:
        async with client.consumer("a", group=group, name="ann"), client.consumer("a", group=group, name="bob"):
            membership = broker.groups.groups[group].membership
            while not membership.is_settled:
                await env.clock.sleep(0.1)
            owned = [tuple(sorted(index for _, index in member.owned)) for member in membership.members.values()]
            assert owned == shares
