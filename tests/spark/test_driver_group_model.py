"""Whatever happens to a driver, in whatever order: the laws of its state machine hold."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from linn.spark_plugin.service.driver_group import (
    FAILURES_MAX,
    FIRST_S,
    LONGEST_S,
    START_LONGEST_S,
    Action,
    CloseInput,
    DriverGroup,
    KillDriver,
    Reason,
    StartDriver,
    StartPipelines,
    State,
)
from linn.spark_plugin.spec import PipelineSpec

NAMES = ("a", "b", "c")
STEPS = 300
START_S, DRAIN_S = 120.0, 30.0


class World:
    """A driver's process as the actions have it, and a check of each against the laws."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.process = False
        self.told_to_end_s = math.inf
        self.heard_s = math.inf
        """The last time when the process was told to start something, or said that it has."""
        self.closed = False
        self.inside: set[str] = set()
        """The pipelines that the process was told to run."""
        self.not_before_s: dict[str, float] = {}
        """The time up to which a pipeline that has failed may not be started again."""
        self.group = DriverGroup(
            "default", uniform=self.chance.uniform, start_timeout_s=START_S, drain_timeout_s=DRAIN_S
        )
        self.do(self.group.configure({name: self.spec(name) for name in NAMES}, self.now_s))

    def spec(self, name: str) -> PipelineSpec:
        path = self.chance.choice(("x", "y"))
        return PipelineSpec(name=name, topics=(name,), format="json", path=path)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartDriver):
                assert not self.process, "there is one already"
                assert not self.closed, "the broker stops"
                assert action.pipelines != (), "there is nothing to run"
                self.process, self.heard_s, self.told_to_end_s = True, self.now_s, math.inf
                self.inside = set()
                self.enter([each.name for each in action.pipelines])
            else:
                assert self.process, "there is none"
                if isinstance(action, CloseInput):
                    self.told_to_end_s = min(self.told_to_end_s, self.now_s)
                elif isinstance(action, KillDriver):
                    self.end(-9)
                elif isinstance(action, StartPipelines):
                    assert self.told_to_end_s == math.inf, "it was told to end"
                    self.heard_s = self.now_s
                    self.enter(action.names)

    def enter(self, names: Iterable[str]) -> None:
        for name in names:
            assert name not in self.inside, "it runs already"
            assert self.now_s >= self.not_before_s.get(name, 0.0), "it has just failed"
            self.inside.add(name)

    def end(self, code: int) -> None:
        self.process = False
        self.do(self.group.exited(code, self.now_s))

    def step(self) -> None:
        group, chance, now_s = self.group, self.chance, self.now_s
        name = chance.choice(NAMES)
        known = [name] if name in group.pipelines else []
        happens = chance.randrange(13)
        if happens in (0, 1, 3):
            self.not_before_s.clear()
        if happens == 0:
            wanted = [each for each in NAMES if chance.random() < 0.8]
            self.do(group.configure({each: self.spec(each) for each in wanted}, now_s))
        elif happens in (1, 2, 3):
            self.do((group.start, group.stop, group.restart)[happens - 1](known, now_s) if known else [])
        elif happens == 4:
            self.inside.discard(name)
            self.do(group.stopped(name, now_s) if self.process else [])
        elif happens == 5 and self.process:
            others = [each for each in group.pipelines.values() if each.in_driver and each.spec.name != name]
            fails = name in self.inside and self.told_to_end_s == math.inf
            self.inside.discard(name)
            told = group.terminated(name, "broke", now_s, fatal=chance.random() < 0.3)
            assert not (told and others), "the others go on"
            if fails and group.pipelines[name].runs:
                self.not_before_s[name] = group.pipelines[name].start_at_s
                assert FIRST_S * 0.8 <= self.not_before_s[name] - now_s <= LONGEST_S
            self.do(told)
        elif happens == 6 and chance.random() < 0.2:
            self.do(group.failed("broke", now_s, fatal=chance.random() < 0.3) if self.process else [])
        elif happens == 7 and self.process:
            self.end(chance.choice((0, 1, 3, -9)))
        elif happens == 8 and self.process and group.state is State.STARTING and chance.random() < 0.2:
            self.process = False
            self.do(group.refused(Reason("nothing is installed")))
        elif happens in (9, 10):
            self.heard_s = now_s
            self.do(group.started(name, now_s) if self.process else [])
        else:
            self.now_s += chance.choice((0.5, 5.0, 40.0, 200.0)) if chance.random() < 0.5 else 0.1
            self.now_s = min(self.now_s, max(now_s, group.due_s))
            self.do(group.tick(self.now_s))

    def check(self) -> None:
        group = self.group
        assert group.has_process == self.process
        assert group.backoff.failures <= FAILURES_MAX
        if group.state is State.BACKING_OFF:
            assert self.now_s <= group.deadline_s <= self.now_s + LONGEST_S
        if self.process:
            told = self.told_to_end_s < math.inf
            late_s = self.told_to_end_s + DRAIN_S if told else self.heard_s + START_LONGEST_S
            assert group.state is State.RUNNING or group.due_s <= late_s, "nobody would ever kill it"
        else:
            assert not any(each.in_driver for each in group.pipelines.values())
        for name in group.pipelines:
            state, reason = group.state_of(name)
            assert state is not State.FAILED or reason is not None, "a failure has a reason"


@pytest.mark.parametrize("seed", range(150))
def test_its_laws_hold_in_any_order_of_events(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
        world.check()
    world.closed = True
    world.do(world.group.close(world.now_s))
    while world.process:
        assert world.group.due_s < math.inf, "it has to be killed at some time"
        world.now_s = world.group.due_s
        world.do(world.group.tick(world.now_s))
    assert world.group.state in (State.STOPPED, State.FAILED)
    for name in NAMES:
        world.do(world.group.start([name], world.now_s) if name in world.group.pipelines else [])
