"""The state machine of one driver process and the pipelines that it runs. It does no I/O: each event returns the
actions to take, and times are given in seconds of a monotonic clock.

Laws: there is at most one process. A driver that fails is started again after a delay that grows; after ten failures in
a row it stays down. The time limit of a start doubles with each try. A pipeline that fails is started again in the same
way, in the process in which the others go on; a fatal error ends it at once. A stop waits for the micro-batch in
progress for a bounded time, and then kills.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from linn.spark_plugin.spec import PipelineSpec


class State(StrEnum):
    """State of a driver, or of a pipeline, which alone can be elsewhere."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    BACKING_OFF = "backing off"
    FAILED = "failed"
    ELSEWHERE = "elsewhere"


class Reason(NamedTuple):
    """Reason of a state, in a line, and the remedy."""

    text: str
    remedy: str = ""


class StartDriver(NamedTuple):
    """Start a process with these pipelines, and tell `exited` when it has ended."""

    pipelines: tuple[PipelineSpec, ...]


class StartPipelines(NamedTuple):
    """Tell the process to start these failed pipelines again."""

    names: tuple[str, ...]


class StopPipelines(NamedTuple):
    """Tell the process to drain these pipelines, and to go on with the others."""

    names: tuple[str, ...]


class CloseInput(NamedTuple):
    """End the process's standard input, so that it drains everything and exits."""


class KillDriver(NamedTuple):
    """Kill the process with all its children."""


Action = StartDriver | StartPipelines | StopPipelines | CloseInput | KillDriver

START_LONGEST_S = 900.0
"""Upper limit of the time for a start after failed starts, unless the setting is longer."""
FINISHED = Reason("has read all that there was, and is finished")
NOT_ASKED = Reason("was stopped by an operator")
MEND = "mend the cause, then: linn spark start {name}"


@dataclass(slots=True)
class GroupPipeline:
    """A pipeline of the group."""

    spec: PipelineSpec
    backoff: Backoff
    wanted: bool = True
    """False: an operator has stopped it."""
    failure: Reason | None = None
    """A fatal error, or the error of the last try."""
    error: Reason | None = None
    """The error that ended it, until it runs again."""
    finished: bool = False
    """It has read everything up to the end of its topics, as configured."""
    in_driver: bool = False
    """Whether the pipeline belongs to the process."""
    started: bool = False
    """Whether its query runs in this process."""
    running_since_s: float = math.inf
    start_at_s: float = -math.inf
    """Time of the next start after an error."""
    start_by_s: float = math.inf
    """Deadline for the process to start it again."""
    stop_by_s: float = math.inf
    """Deadline for the process to stop it."""
    starts: int = 0
    """Number of starts."""

    @property
    def waits(self) -> bool:
        """Whether the pipeline waits for its next start, after an error."""
        return self.runs and not self.in_driver and self.start_at_s > -math.inf

    @property
    def runs(self) -> bool:
        """Whether the pipeline belongs into the next process."""
        return self.wanted and self.failure is None and not self.finished

    def begin_anew(self) -> None:
        """Reset the state, for a new start."""
        self.failure, self.error, self.finished, self.start_at_s = None, None, False, -math.inf
        self.backoff.reset()

    def leave(self) -> None:
        """Record that the pipeline is no longer in the process."""
        self.in_driver, self.started, self.running_since_s = False, False, math.inf
        self.start_by_s = self.stop_by_s = math.inf


class DriverGroup:
    """One driver and its pipelines."""

    def __init__(
        self,
        name: str,
        *,
        uniform: Callable[[float, float], float],
        start_timeout_s: float,
        drain_timeout_s: float,
    ) -> None:
        self.name = name
        self.pipelines: dict[str, GroupPipeline] = {}
        self.state = State.STOPPED
        self.reason: Reason | None = None
        """Reason of a backoff, a failure, or a restart."""
        self.backoff = Backoff(uniform)
        self._uniform = uniform
        self.deadline_s = math.inf
        """Time at which `tick` is due for the group itself."""
        self._start_timeout_s = start_timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._running_since_s = math.inf
        self._failing: Reason | None = None
        """Failure that ends this process; None: its end was asked for, or is unexplained."""
        self._is_fatal = False
        """Whether that failure is fatal: no restart mends it."""
        self._asked = False
        """Whether this process was told to end."""
        self._closed = False
        """Whether the group is closed, and starts nothing."""

    # --- requests ---

    @property
    def has_process(self) -> bool:
        """Whether there is a process, or one is about to start."""
        return self.state in (State.STARTING, State.RUNNING, State.DRAINING)

    @property
    def due_s(self) -> float:
        """Time at which `tick` is due."""
        found = [self.deadline_s]
        for pipeline in self.pipelines.values():
            found += [pipeline.start_by_s, pipeline.stop_by_s]
            if self._waits(pipeline):
                found.append(pipeline.start_at_s)
        return min(found)

    def _waits(self, pipeline: GroupPipeline) -> bool:
        """Whether a pipeline is to be started again in the process that runs."""
        return self.state in (State.STARTING, State.RUNNING) and pipeline.waits

    def configure(self, specs: Mapping[str, PipelineSpec], now_s: float) -> list[Action]:
        """Apply a configuration: new pipelines start, changed ones restart, removed ones stop."""
        changed = False
        for name in [name for name in self.pipelines if name not in specs]:
            changed |= self.pipelines.pop(name).in_driver
        for name, spec in specs.items():
            pipeline = self.pipelines.get(name)
            if pipeline is None:
                self.pipelines[name] = GroupPipeline(spec, Backoff(self._uniform))
                changed = True
            elif pipeline.spec != spec:
                pipeline.spec = spec
                pipeline.begin_anew()
                changed |= pipeline.wanted
        return self._begin_anew(now_s) if changed else []

    def start(self, names: Iterable[str], now_s: float) -> list[Action]:
        """Start pipelines, in any state. The others of a running driver restart with them."""
        missing = False
        for name in names:
            pipeline = self.pipelines[name]
            missing |= not (pipeline.in_driver and pipeline.runs and pipeline.stop_by_s == math.inf)
            pipeline.wanted = True
            pipeline.begin_anew()
        return self._begin_anew(now_s) if missing or not self.has_process else []

    def restart(self, names: Iterable[str], now_s: float) -> list[Action]:
        """Stop pipelines and start them again, together with the others of their driver."""
        for name in names:
            pipeline = self.pipelines[name]
            pipeline.wanted = True
            pipeline.begin_anew()
        return self._begin_anew(now_s)

    def stop(self, names: Iterable[str], now_s: float) -> list[Action]:
        """Stop pipelines in order; the others of their driver go on."""
        told = []
        for name in names:
            pipeline = self.pipelines[name]
            if pipeline.in_driver and pipeline.stop_by_s == math.inf:
                told.append(name)
            pipeline.wanted = False
        if not self.has_process:
            if not any(pipeline.runs for pipeline in self.pipelines.values()):
                self._rest()
            return []
        if self.state is State.DRAINING or not told:
            return []
        if not any(pipeline.in_driver and pipeline.runs for pipeline in self.pipelines.values()):
            return self._drain(now_s)
        for name in told:
            self.pipelines[name].stop_by_s = now_s + self._drain_timeout_s
        return [StopPipelines(tuple(told))]

    def close(self, now_s: float) -> list[Action]:
        """Stop everything in order, for good: the broker stops."""
        self._closed = True
        if self.has_process:
            return self._drain(now_s) if self.state is not State.DRAINING else []
        self._rest()
        return []

    def _begin_anew(self, now_s: float) -> list[Action]:
        """Run the wanted pipelines, in a new process if one runs already."""
        self.backoff.reset()
        self.reason, self._failing, self._is_fatal = None, None, False
        if self.state is State.DRAINING:
            self._asked = True
            return []
        return self._drain(now_s) if self.has_process else self._launch(now_s)

    def _drain(self, now_s: float) -> list[Action]:
        self.state, self.deadline_s, self._asked = State.DRAINING, now_s + self._drain_timeout_s, True
        return [CloseInput()]

    def _launch(self, now_s: float) -> list[Action]:
        """Start a process with the pipelines that are due; rest if there are no pipelines to run."""
        chosen = [pipeline for pipeline in self.pipelines.values() if pipeline.runs]
        if self._closed or not chosen:
            self._rest()
            return []
        first = min(chosen, key=lambda pipeline: pipeline.start_at_s)
        if first.start_at_s > now_s:
            self.state, self.deadline_s, self.reason = State.BACKING_OFF, first.start_at_s, first.error
            return []
        chosen = [pipeline for pipeline in chosen if pipeline.start_at_s <= now_s]
        for pipeline in chosen:
            self._place_in_driver(pipeline)
        self.state, self.deadline_s = State.STARTING, now_s + self._start_limit_s
        self._failing, self._is_fatal, self._asked = None, False, False
        self._running_since_s = math.inf
        return [StartDriver(tuple(pipeline.spec for pipeline in chosen))]

    @staticmethod
    def _place_in_driver(pipeline: GroupPipeline) -> None:
        """Record that a pipeline is started in the process."""
        pipeline.leave()
        pipeline.in_driver, pipeline.start_at_s = True, -math.inf
        pipeline.starts += 1

    def _rest(self) -> None:
        """Rest: there is nothing to run."""
        has_failed = any(pipeline.failure is not None and pipeline.wanted for pipeline in self.pipelines.values())
        self.state = State.FAILED if has_failed and not self._closed else State.STOPPED
        self.reason, self.deadline_s = None, math.inf

    # --- reports of the process ---

    def started(self, name: str, now_s: float) -> list[Action]:
        """Note that a pipeline's query runs."""
        pipeline = self.pipelines.get(name)
        if pipeline is not None and pipeline.in_driver and not pipeline.started:
            pipeline.started, pipeline.running_since_s = True, now_s
            pipeline.start_by_s, pipeline.error = math.inf, None
            self._give_the_next_one_time(now_s)
        self._check_all_running(now_s)
        return []

    def stopped(self, name: str, now_s: float) -> list[Action]:
        """Note that a pipeline has ended in order: it was told to, or has read everything."""
        pipeline = self.pipelines.get(name)
        if pipeline is not None and pipeline.in_driver:
            was_told = self._asked or pipeline.stop_by_s < math.inf
            pipeline.leave()
            pipeline.finished |= pipeline.wanted and not was_told
        return self._check_process(now_s)

    def terminated(self, name: str, error: str, now_s: float, *, fatal: bool) -> list[Action]:
        """Note that a pipeline's query has failed. Unless the error is `fatal`, it is started again after a delay."""
        pipeline = self.pipelines.get(name)
        if pipeline is None or not pipeline.in_driver:
            return []
        ran_s = max(0.0, now_s - pipeline.running_since_s)
        pipeline.leave()
        if fatal:
            pipeline.failure = Reason(error, MEND.format(name=name))
        elif not self._asked:
            delay_s = pipeline.backoff.failed(ran_s)
            pipeline.error, pipeline.start_at_s = Reason(error), now_s + delay_s
            if pipeline.backoff.is_exhausted:
                pipeline.failure = Reason(f"{error} ({FAILURES_MAX} times in a row)", MEND.format(name=name))
        return self._check_process(now_s)

    def failed(self, error: str, now_s: float, *, fatal: bool) -> list[Action]:
        """Note that the driver as a whole has failed, and is about to exit."""
        if self._failing is None and self.has_process:
            self._failing, self._is_fatal = Reason(error), fatal
            self.deadline_s = min(self.deadline_s, now_s + self._drain_timeout_s)
        return []

    def refused(self, reason: Reason) -> list[Action]:
        """Note that a process can't be started until an operator removes the reason."""
        self.state, self.reason, self.deadline_s = State.FAILED, reason, math.inf
        for pipeline in self.pipelines.values():
            pipeline.leave()
        return []

    def exited(self, code: int, now_s: float) -> list[Action]:
        """Note that the process and all its children are gone."""
        assert self.has_process, "it had one"
        left = [name for name, pipeline in self.pipelines.items() if pipeline.in_driver]
        for name in left:
            self.pipelines[name].error = None
            self.pipelines[name].leave()
        ran_s = now_s - self._running_since_s if self._running_since_s < math.inf else 0.0
        if self._failing is not None:
            return self._failed(self._failing, ran_s, now_s)
        if self._asked or not left:
            return self._launch(now_s)
        return self._failed(Reason(f"the driver {_ended(code)}"), ran_s, now_s)

    def _failed(self, reason: Reason, ran_s: float, now_s: float) -> list[Action]:
        if self._closed or not any(pipeline.runs for pipeline in self.pipelines.values()):
            self._rest()
            return []
        delay_s = self.backoff.failed(ran_s)
        if self._is_fatal or self.backoff.is_exhausted:
            times = "" if self._is_fatal else f" ({FAILURES_MAX} times in a row)"
            self.state, self.deadline_s = State.FAILED, math.inf
            remedy = reason.remedy or "look at linn spark logs"
            self.reason = Reason(reason.text + times, f"{remedy}; then: linn spark start NAME")
        else:
            self.state, self.deadline_s, self.reason = State.BACKING_OFF, now_s + delay_s, reason
        return []

    def _check_process(self, now_s: float) -> list[Action]:
        """End a process without pipelines, if it does not exit by itself."""
        if self.state is not State.DRAINING and not any(pipeline.in_driver for pipeline in self.pipelines.values()):
            return self._drain(now_s)
        self._check_all_running(now_s)
        return []

    def _check_all_running(self, now_s: float) -> None:
        waits = any(pipeline.in_driver and not pipeline.started for pipeline in self.pipelines.values())
        if self.state is State.STARTING and not waits:
            self.state, self.deadline_s, self._running_since_s = State.RUNNING, math.inf, now_s
            self.reason = None

    # --- time limits of starts ---

    @property
    def _start_limit_s(self) -> float:
        """Return the time limit of the next start."""
        longest_s = max(START_LONGEST_S, self._start_timeout_s)
        return min(longest_s, self._start_timeout_s * 2.0**self.backoff.failures)

    def _give_the_next_one_time(self, now_s: float) -> None:
        """Extend the deadlines of pipelines that don't run yet: a driver starts them one after the other."""
        until_s = now_s + self._start_limit_s
        if self.state is State.STARTING:
            self.deadline_s = max(self.deadline_s, until_s)
        for pipeline in self.pipelines.values():
            if pipeline.start_by_s < math.inf:
                pipeline.start_by_s = max(pipeline.start_by_s, until_s)

    def _late(self, names: list[str]) -> Reason:
        """Return the reason for killing a driver whose pipelines don't run in time."""
        who = f"pipeline {names[0]} was" if len(names) == 1 else f"{len(names)} pipelines were"
        text = f"the driver was killed after {self._start_limit_s:g} s (start_timeout): {who} still starting"
        return Reason(text, "if that is too short, raise start_timeout in [spark]")

    # --- time ---

    def tick(self, now_s: float) -> list[Action]:
        """Take the actions that are due."""
        if now_s < self.due_s:
            return []
        if self.state is State.BACKING_OFF:
            return self._launch(now_s)
        if not self.has_process:
            return []
        waiting = [
            pipeline for pipeline in self.pipelines.values() if self._waits(pipeline) and pipeline.start_at_s <= now_s
        ]
        if waiting:
            return self._start_in_driver(waiting, now_s)
        late = [pipeline.spec.name for pipeline in self.pipelines.values() if pipeline.start_by_s <= now_s]
        if late or (self.state is State.STARTING and now_s >= self.deadline_s):
            starting = [
                name for name, pipeline in self.pipelines.items() if pipeline.in_driver and not pipeline.started
            ]
            self._failing = self._failing or self._late(late or starting)
        if self.state is not State.DRAINING:
            self._asked = self._failing is None
        self.state, self.deadline_s = State.DRAINING, math.inf
        for pipeline in self.pipelines.values():
            pipeline.start_by_s = pipeline.stop_by_s = math.inf
        return [KillDriver()]

    def _start_in_driver(self, waiting: list[GroupPipeline], now_s: float) -> list[Action]:
        """Start pipelines again in the process that runs."""
        for pipeline in waiting:
            self._place_in_driver(pipeline)
            pipeline.start_by_s = now_s + self._start_limit_s
        return [StartPipelines(tuple(pipeline.spec.name for pipeline in waiting))]

    # --- state ---

    def state_of(self, name: str) -> tuple[State, Reason | None]:
        """Return the state of a pipeline, and its reason."""
        pipeline = self.pipelines[name]
        if pipeline.failure is not None:
            return State.FAILED, pipeline.failure
        if pipeline.in_driver:
            state = self._state_in_driver(pipeline)
            return state, None if state is State.RUNNING else self._failing or pipeline.error or self.reason
        if pipeline.finished:
            return State.STOPPED, FINISHED
        if not pipeline.wanted:
            return State.STOPPED, NOT_ASKED
        if pipeline.waits and self.state is not State.FAILED:
            return State.BACKING_OFF, pipeline.error
        if self.state is State.RUNNING:
            return State.STARTING, None
        return self.state, self.reason or self._failing

    def _state_in_driver(self, pipeline: GroupPipeline) -> State:
        if self.state is State.DRAINING or pipeline.stop_by_s < math.inf:
            return State.DRAINING
        return State.RUNNING if pipeline.started else State.STARTING


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


FIRST_S = 1.0
LONGEST_S = 60.0
STEADY_S = 60.0
"""Time after which a start counts as successful, and the count of failures begins again."""
FAILURES_MAX = 10
"""Failures in a row after which a driver stays down: about four minutes, and each try costs the start of a JVM."""
_JITTER = 0.2
"""Part of a delay that is random, so that drivers which failed together don't start together."""


class Backoff:
    """Backoff of one driver: its failures in a row, and the delay after each failure."""

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        """`uniform(low, high)`: a random number."""
        self._uniform = uniform
        self.failures = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit of failures in a row is reached."""
        return self.failures >= FAILURES_MAX

    def reset(self) -> None:
        """Forget the failures."""
        self.failures = 0

    def failed(self, ran_s: float) -> float:
        """Count a failure after the driver ran for `ran_s`; returns the delay before the next start, in seconds."""
        if ran_s >= STEADY_S:
            self.failures = 0
        self.failures += 1
        delay_s = min(LONGEST_S, FIRST_S * 2.0 ** (self.failures - 1))
        return delay_s * self._uniform(1 - _JITTER, 1)
