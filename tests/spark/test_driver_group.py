"""The state machine of a driver: what it does for each event, without a process and without time."""

from __future__ import annotations

import math

import pytest

from linn.spark_plugin.service.driver_group import (
    Action,
    CloseInput,
    DriverGroup,
    KillDriver,
    Reason,
    StartDriver,
    StartPipelines,
    State,
    StopPipelines,
)
from linn.spark_plugin.spec import PipelineSpec


def spec(name: str, **settings: object) -> PipelineSpec:
    return PipelineSpec(name=name, topics=(name,), format="console", **settings)  # type: ignore[arg-type]


def group(*names: str) -> DriverGroup:
    """A group whose pipelines are starting at 0 s; its delays are the longest that chance may give."""
    made = DriverGroup("default", uniform=lambda _, high: high, start_timeout_s=120, drain_timeout_s=30)
    actions = made.configure({name: spec(name) for name in names}, 0)
    assert [type(action) for action in actions] == ([StartDriver] if names else [])
    return made


def running(*names: str) -> DriverGroup:
    made = group(*names)
    for name in names:
        assert made.started(name, 10) == []
    assert made.state is State.RUNNING
    return made


def started_with(actions: list[Action]) -> list[str]:
    """The pipelines of the one process that is to be started."""
    (action,) = actions
    assert isinstance(action, StartDriver)
    return [each.name for each in action.pipelines]


def states(made: DriverGroup) -> dict[str, str]:
    return {name: made.state_of(name)[0].value for name in made.pipelines}


def test_a_driver_runs_once_all_of_its_pipelines_run() -> None:
    made = group("a", "b")
    made.started("a", 5)
    assert states(made) == {"a": "running", "b": "starting"}
    assert made.state is State.STARTING
    made.started("b", 6)
    assert made.state is State.RUNNING
    assert made.due_s == math.inf


def test_the_delay_doubles_up_to_a_minute_and_ten_failures_in_a_row_are_the_end() -> None:
    made, now, delays = group("a"), 0.0, []
    while made.state is not State.FAILED:
        assert made.exited(1, now) == []
        if made.state is State.BACKING_OFF:
            delays.append(made.deadline_s - now)
            now = made.deadline_s
            assert made.tick(now - 0.001) == []
            assert started_with(made.tick(now)) == ["a"]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    state, reason = made.state_of("a")
    assert state is State.FAILED
    assert reason == Reason(
        "the driver exited with code 1 (10 times in a row)", "look at linn spark logs; then: linn spark start NAME"
    )
    assert made.due_s == math.inf


def test_delays_are_random_within_a_fifth() -> None:
    made = DriverGroup("default", uniform=lambda low, _: low, start_timeout_s=120, drain_timeout_s=30)
    made.configure({"a": spec("a")}, 0)
    made.exited(1, 0)
    assert made.deadline_s == pytest.approx(0.8)


def test_a_minute_of_running_forgets_the_failures() -> None:
    made = group("a")
    made.exited(1, 0)
    made.tick(1)
    made.exited(1, 1)
    assert made.backoff.failures == 2
    made.tick(3)
    made.started("a", 10)
    made.exited(1, 69.9)
    assert made.backoff.failures == 3
    made.tick(200)
    made.started("a", 210)
    made.exited(1, 270)
    assert made.backoff.failures == 1
    assert made.deadline_s == 271


def late(seconds: int, who: str = "pipeline a was") -> Reason:
    text = f"the driver was killed after {seconds} s (start_timeout): {who} still starting"
    return Reason(text, "if that is too short, raise start_timeout in [spark]")


def test_a_driver_that_does_not_start_in_time_is_killed_and_started_again() -> None:
    made = group("a")
    assert made.tick(119) == []
    assert made.tick(120) == [KillDriver()]
    assert made.state_of("a") == (State.DRAINING, late(120))
    assert made.exited(-9, 121) == []
    assert made.state_of("a") == (State.BACKING_OFF, late(120))
    assert started_with(made.tick(122)) == ["a"]
    assert made.state_of("a") == (State.STARTING, late(120)), "the reason stays until it runs"
    made.started("a", 130)
    assert made.state_of("a") == (State.RUNNING, None)


@pytest.mark.parametrize(("setting", "longest"), [(120, 900), (1, 512), (3_600, 3_600)])
def test_each_try_has_twice_the_time_to_start_up_to_a_limit(setting: int, longest: int) -> None:
    made = DriverGroup("default", uniform=lambda _, high: high, start_timeout_s=setting, drain_timeout_s=30)
    made.configure({"a": spec("a")}, 0)
    now_s, limits = 0.0, []
    while made.state is not State.FAILED:
        limits.append(made.due_s - now_s)
        assert made.tick(made.due_s - 1e-3) == []
        now_s = made.due_s
        assert made.tick(now_s) == [KillDriver()]
        made.exited(-9, now_s)
        if made.state is State.BACKING_OFF:
            now_s = made.due_s
            assert started_with(made.tick(now_s)) == ["a"]
    assert limits == pytest.approx([min(longest, setting * 2**number) for number in range(10)])
    _, reason = made.state_of("a")
    assert reason is not None
    assert reason.text == f"{late(longest).text} (10 times in a row)"
    assert reason.remedy == "if that is too short, raise start_timeout in [spark]; then: linn spark start NAME"


def test_pipelines_that_a_driver_starts_one_after_the_other_have_the_time_of_a_start_each() -> None:
    made = group("a", "b", "c")
    for name, now_s in (("a", 100), ("b", 210)):
        made.started(name, now_s)
        assert made.tick(now_s + 119) == []
    assert made.tick(329.9) == []
    assert made.tick(330) == [KillDriver()]
    assert made.exited(-9, 330) == []
    assert made.state_of("a") == (State.BACKING_OFF, late(120, "pipeline c was"))
    assert started_with(made.tick(331)) == ["a", "b", "c"]
    made.tick(331 + 240)
    made.exited(-9, 331 + 240)
    assert made.state_of("a") == (State.BACKING_OFF, late(240, "3 pipelines were"))


def test_the_last_reason_is_shown_until_the_pipeline_runs() -> None:
    made = running("a", "b")
    made.terminated("a", "connection lost", 20, fatal=False)
    assert made.tick(21) == [StartPipelines(("a",))]
    assert made.state_of("a") == (State.STARTING, Reason("connection lost"))
    made.exited(-9, 22)
    made.tick(23)
    killed = Reason("the driver was killed by signal 9")
    assert [made.state_of(name) for name in "ab"] == [(State.STARTING, killed)] * 2
    made.started("b", 25)
    assert [made.state_of(name) for name in "ab"] == [(State.STARTING, killed), (State.RUNNING, None)]
    made.started("a", 26)
    assert made.state_of("a") == (State.RUNNING, None)
    made.restart(["a"], 100)
    made.exited(0, 101)
    assert made.state_of("a") == (State.STARTING, None)


def test_a_stop_drains_and_a_drain_that_takes_too_long_is_killed() -> None:
    made = running("a")
    assert made.stop(["a"], 20) == [CloseInput()]
    assert states(made) == {"a": "draining"}
    assert made.tick(49) == []
    assert made.tick(50) == [KillDriver()]
    assert made.tick(51) == []
    assert made.exited(-9, 51) == []
    assert states(made) == {"a": "stopped"}
    assert made.backoff.failures == 0


def test_one_of_several_is_stopped_alone() -> None:
    made = running("a", "b")
    assert made.stop(["a"], 20) == [StopPipelines(("a",))]
    assert states(made) == {"a": "draining", "b": "running"}
    assert made.stopped("a", 21) == []
    assert states(made) == {"a": "stopped", "b": "running"}
    assert made.due_s == math.inf


def test_one_that_can_not_be_stopped_alone_takes_the_driver_with_it_and_the_others_start_again() -> None:
    made = running("a", "b")
    made.stop(["a"], 20)
    assert made.tick(50) == [KillDriver()]
    assert started_with(made.exited(-9, 51)) == ["b"]
    assert made.backoff.failures == 0


def test_a_fatal_error_ends_its_pipeline_and_the_others_go_on() -> None:
    made = running("a", "b")
    assert made.terminated("a", "no such column", 20, fatal=True) == []
    assert states(made) == {"a": "failed", "b": "running"}
    assert made.state_of("a")[1] == Reason("no such column", "mend the cause, then: linn spark start a")
    assert made.exited(1, 30) == []
    assert started_with(made.tick(31)) == ["b"]


def test_a_fatal_error_of_the_only_pipeline_is_no_reason_to_restart() -> None:
    made = running("a")
    assert made.terminated("a", "no such column", 20, fatal=True) == [CloseInput()]
    assert made.exited(1, 21) == []
    assert (made.state, made.due_s) == (State.FAILED, math.inf)


def test_an_error_that_may_pass_restarts_its_pipeline_alone_after_a_delay() -> None:
    made = running("a", "b")
    assert made.terminated("a", "connection lost", 20, fatal=False) == []
    assert made.state_of("a") == (State.BACKING_OFF, Reason("connection lost"))
    assert made.state_of("b") == (State.RUNNING, None)
    assert (made.due_s, made.tick(20.9)) == (21, [])
    assert made.tick(21) == [StartPipelines(("a",))]
    assert states(made) == {"a": "starting", "b": "running"}
    made.started("a", 22)
    assert (states(made), made.due_s) == ({"a": "running", "b": "running"}, math.inf)


def test_a_pipeline_that_fails_ten_times_in_a_row_has_failed_and_the_others_never_stop() -> None:
    made, now, delays = running("a", "b"), 20.0, []
    while made.terminated("a", "no such folder", now, fatal=False) == [] and made.due_s < math.inf:
        delays.append(made.due_s - now)
        now = made.due_s
        assert made.tick(now) == [StartPipelines(("a",))]
        made.started("a", now)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    text = "no such folder (10 times in a row)"
    assert made.state_of("a") == (State.FAILED, Reason(text, "mend the cause, then: linn spark start a"))
    assert states(made)["b"] == "running"
    assert made.start(["a"], now) == [CloseInput()]
    assert started_with(made.exited(0, now)) == ["a", "b"]


def test_a_pipeline_that_has_run_for_a_minute_forgets_its_failures() -> None:
    made, now = running("a", "b"), 20.0
    for _ in range(20):
        made.terminated("a", "connection lost", now, fatal=False)
        assert made.tick(now + 1) == [StartPipelines(("a",))]
        made.started("a", now + 1)
        now += 62


def test_when_the_last_one_fails_the_process_ends_and_each_waits_for_itself() -> None:
    made = running("a", "b")
    made.terminated("a", "connection lost", 20, fatal=False)
    made.tick(21)
    made.terminated("a", "connection lost", 22, fatal=False)
    assert made.terminated("b", "disk full", 22, fatal=False) == [CloseInput()]
    assert made.exited(1, 22.5) == []
    assert made.state_of("a") == (State.BACKING_OFF, Reason("connection lost"))
    assert made.state_of("b") == (State.BACKING_OFF, Reason("disk full"))
    assert started_with(made.tick(23)) == ["b"]
    assert made.tick(24) == [StartPipelines(("a",))]


def test_one_that_waits_has_no_part_in_what_happens_to_the_driver_until_then() -> None:
    made = running("a", "b")
    made.terminated("a", "connection lost", 20, fatal=False)
    assert made.exited(-9, 20.5) == []
    assert made.state_of("b") == (State.BACKING_OFF, Reason("the driver was killed by signal 9"))
    assert started_with(made.tick(21.5)) == ["a", "b"]


def test_one_that_does_not_start_again_in_time_takes_the_driver_with_it() -> None:
    made = running("a", "b")
    made.terminated("a", "connection lost", 20, fatal=False)
    made.tick(21)
    assert made.tick(140.9) == []
    assert made.tick(141) == [KillDriver()]
    made.exited(-9, 141)
    assert made.state_of("b") == (State.BACKING_OFF, late(120))


def test_a_stop_of_one_that_waits_is_a_stop() -> None:
    made = running("a", "b")
    made.terminated("a", "connection lost", 20, fatal=False)
    assert made.stop(["a"], 20.5) == []
    assert (states(made), made.due_s) == ({"a": "stopped", "b": "running"}, math.inf)


def test_a_driver_that_fails_as_a_whole_backs_off_or_not_as_it_says() -> None:
    made = group("a")
    made.failed("no session", 5, fatal=False)
    made.exited(3, 6)
    assert made.state_of("a") == (State.BACKING_OFF, Reason("no session"))
    made.tick(7)
    made.failed("no PySpark", 8, fatal=True)
    made.exited(3, 9)
    state, reason = made.state_of("a")
    assert (state, reason and reason.text) == (State.FAILED, "no PySpark")
    assert made.due_s == math.inf


def test_one_that_says_that_it_failed_and_stays_is_killed() -> None:
    made = group("a")
    made.failed("no session", 5, fatal=False)
    assert made.tick(35) == [KillDriver()]
    made.exited(-9, 35)
    assert made.state_of("a") == (State.BACKING_OFF, Reason("no session"))


def test_what_has_read_all_that_there_was_is_finished_and_not_started_again() -> None:
    made = running("a", "b")
    assert made.stopped("a", 20) == []
    assert states(made) == {"a": "stopped", "b": "running"}
    made.exited(1, 30)
    assert started_with(made.tick(31)) == ["b"]
    assert made.start(["a"], 40) == [CloseInput()]
    assert started_with(made.exited(0, 41)) == ["a", "b"]


def test_a_start_ends_a_wait_and_counts_failures_anew() -> None:
    made = group("a")
    for _ in range(5):
        made.exited(1, 0)
        made.tick(made.deadline_s)
    made.exited(1, 0)
    assert made.state is State.BACKING_OFF
    assert started_with(made.start(["a"], 1)) == ["a"]
    assert made.backoff.failures == 0


def test_a_start_of_what_runs_does_nothing() -> None:
    assert running("a", "b").start(["a"], 20) == []


def test_a_start_during_a_drain_starts_afterwards() -> None:
    made = running("a")
    made.stop(["a"], 20)
    assert made.start(["a"], 21) == []
    assert started_with(made.exited(0, 25)) == ["a"]


def test_a_stop_while_it_backs_off_is_a_stop() -> None:
    made = group("a")
    made.exited(1, 0)
    assert made.stop(["a"], 0.5) == []
    assert states(made) == {"a": "stopped"}
    assert made.due_s == math.inf


def test_a_restart_drains_first() -> None:
    made = running("a")
    assert made.restart(["a"], 20) == [CloseInput()]
    assert started_with(made.exited(0, 21)) == ["a"]
    assert made.pipelines["a"].starts == 2


def test_changed_settings_restart_and_equal_ones_do_not() -> None:
    made = running("a", "b")
    assert made.configure({"a": spec("a"), "b": spec("b")}, 20) == []
    assert made.configure({"a": spec("a"), "b": spec("b", path="elsewhere")}, 20) == [CloseInput()]
    (action,) = made.exited(0, 21)
    assert isinstance(action, StartDriver)
    assert action.pipelines[1].path == "elsewhere"


def test_a_pipeline_that_is_no_longer_asked_for_is_stopped() -> None:
    made = running("a")
    assert made.configure({}, 20) == [CloseInput()]
    assert made.exited(0, 21) == []
    assert (made.state, made.pipelines) == (State.STOPPED, {})


def test_a_change_of_one_that_an_operator_stopped_does_not_start_it() -> None:
    made = running("a")
    made.stop(["a"], 20)
    made.exited(0, 21)
    assert made.configure({"a": spec("a", path="elsewhere")}, 22) == []
    assert states(made) == {"a": "stopped"}


@pytest.mark.parametrize("runs", [True, False])
def test_nothing_starts_after_the_close(runs: bool) -> None:
    made = running("a") if runs else group("a")
    assert made.close(20) == [CloseInput()]
    assert made.exited(1, 21) == []
    assert made.start(["a"], 22) == []
    assert made.state is State.STOPPED


def test_a_close_ends_a_wait() -> None:
    made = group("a")
    made.exited(1, 0)
    assert made.close(0.5) == []
    assert (made.state, made.due_s) == (State.STOPPED, math.inf)


def test_what_is_missing_is_a_failure_that_nothing_but_a_start_repeats() -> None:
    made = group("a")
    assert made.refused(Reason("no Java", "install it")) == []
    assert made.state_of("a") == (State.FAILED, Reason("no Java", "install it"))
    assert made.due_s == math.inf
    assert started_with(made.start(["a"], 10)) == ["a"]


@pytest.mark.parametrize("event", ["started", "stopped", "terminated"])
def test_what_is_said_of_a_pipeline_that_it_does_not_have_changes_nothing(event: str) -> None:
    made = running("a")
    match event:
        case "started":
            made.started("z", 20)
        case "stopped":
            made.stopped("z", 20)
        case _:
            made.terminated("z", "", 20, fatal=True)
    assert states(made) == {"a": "running"}
