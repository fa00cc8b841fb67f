"""When a worker that has ended is started again."""

from __future__ import annotations

import signal

import pytest

from linn.cli.exit_code import ExitCode
from linn.cli.workers.restarts import ENDS_MAX, FINAL, PAUSE_S_MAX, PAUSE_S_MIN, STEADY_S, Restarts

KILLED = -signal.SIGKILL


def pauses(restarts: Restarts, count: int, life_s: float, now_s: float = 0.0) -> list[float | None]:
    found = []
    for _ in range(count):
        restarts.ready(now_s)
        now_s += life_s
        found.append(restarts.ended(now_s, KILLED))
    return found


def test_pauses_grow_up_to_a_limit_and_then_there_is_no_further_start() -> None:
    found = pauses(Restarts(), ENDS_MAX, life_s=1.0)
    assert found[:3] == [PAUSE_S_MIN, 2 * PAUSE_S_MIN, 4 * PAUSE_S_MIN]
    assert found[-2:] == [PAUSE_S_MAX, None]


def test_a_worker_that_was_ready_for_long_begins_anew() -> None:
    restarts = Restarts()
    assert pauses(restarts, ENDS_MAX - 1, life_s=1.0)[-1] == PAUSE_S_MAX
    assert pauses(restarts, ENDS_MAX, life_s=STEADY_S) == [PAUSE_S_MIN] * ENDS_MAX


def test_time_before_it_was_ready_does_not_count() -> None:
    restarts = Restarts()
    restarts.ready(0.0)
    assert restarts.ended(1.0, KILLED) == PAUSE_S_MIN
    assert restarts.ended(1.0 + STEADY_S, KILLED) == 2 * PAUSE_S_MIN


def test_a_worker_that_was_never_ready_is_not_started_again() -> None:
    assert Restarts().ended(1.0, ExitCode.LISTENER) is None


@pytest.mark.parametrize("code", FINAL)
def test_what_does_not_get_better_by_itself_is_not_tried_again(code: ExitCode) -> None:
    restarts = Restarts()
    restarts.ready(0.0)
    assert restarts.ended(1.0, code) is None


def test_an_end_that_nobody_asked_for_is_followed_by_a_start() -> None:
    restarts = Restarts()
    restarts.ready(0.0)
    assert restarts.ended(1.0, ExitCode.OK) == PAUSE_S_MIN
