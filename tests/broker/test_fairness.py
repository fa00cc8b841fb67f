"""Fair service: of many clients that ask as fast as they are answered, nobody gets less than half the mean."""

from __future__ import annotations

import os
import resource
import selectors
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from askers import Asker, Wish, answered, wish
from raw_client import records

from linn.testing.process import BrokerProcess
from linn.wire import messages as m

TEXT = '[topics.t]\nkind = "stream"\nretention_bytes = "64MiB"\n[topics.s]\nkind = "stream"\n'
ONE = [records(["x" * 100])]
MANY = [records(["x" * 100] * 100)]
FETCH = wish(m.Fetch("s", 0, 0, bytes_max=4096), 4)
CROWDS = {
    "one publish each": [wish(m.Publish("t"), 1, ONE)],
    "publishes in a row": [wish(m.Publish("t"), 4, ONE)],
    "batches": [wish(m.Publish("t"), 4, MANY)],
    "publishes and fetches": [wish(m.Publish("t"), 4, ONE), FETCH],
}


ROUNDS = 40
"""Rounds that are counted. A session takes up to eight requests in a row from a client that repeats quickly enough:
within ten rounds the unluckiest may get less than half for that alone, within forty it gets two thirds and more.
"""
WARM_UP_ROUNDS = 5
WITHIN_S = 300.0
"""A measurement fails by its counts; this one only keeps it from hanging."""


class Measurement:
    """Askers at work, counted in rounds, which a machine with other work makes longer and not fewer.

    A round is over when they have been given, on the average, as much as they ask for at once.
    """

    def __init__(self, askers: Sequence[Asker], wishes: Sequence[Wish]) -> None:
        self._askers = list(zip(askers, wishes, strict=True))
        self._until_s = time.monotonic() + WITHIN_S

    def _rounds(self) -> float:
        return statistics.fmean(asker.answered / wish.under_way for asker, wish in self._askers)

    def go_on(self, selector: selectors.BaseSelector, rounds: int) -> list[int]:
        """The number of answers that each client gets meanwhile."""
        before, until = [asker.answered for asker, _ in self._askers], self._rounds() + rounds
        while self._rounds() < until:
            assert time.monotonic() < self._until_s, f"{self._rounds():.1f} rounds in {WITHIN_S:g} s"
            for key, _ in selector.select(1):
                key.data.go_on()
        return [asker.answered - count for (asker, _), count in zip(self._askers, before, strict=True)]


@contextmanager
def in_no_hurry() -> Iterator[None]:
    """Let this process interrupt nobody (SCHED_BATCH).

    Or it would ask again on behalf of the first whom the broker answers, before the broker comes to the next.
    """
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, param)


def served(folder: Path, wishes: Sequence[Wish]) -> list[int]:
    """The number of answers that each client gets from a broker of its own."""
    with BrokerProcess(folder, TEXT) as broker:
        answered(broker.address, [wish(m.Publish("s"), 1, MANY)], 0, 0.1)
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            askers = [Asker(broker.address, wish) for wish in wishes]
            stack.enter_context(in_no_hurry())
            for asker in askers:
                stack.enter_context(asker.socket)
                selector.register(asker.socket, selectors.EVENT_READ, asker)
                asker.begin()
            measurement = Measurement(askers, wishes)
            measurement.go_on(selector, WARM_UP_ROUNDS)
            return measurement.go_on(selector, ROUNDS)


def check_fair(counts: Sequence[int]) -> None:
    """Check that each client gets at least half of the mean, whatever they request."""
    assert 2 * min(counts) >= statistics.mean(counts)


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_none_of_a_hundred_gets_less_than_half_the_mean(tmp_path: Path, crowd: list[Wish]) -> None:
    check_fair(served(tmp_path, crowd * (100 // len(crowd))))


@pytest.mark.soak
@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_none_of_a_thousand_gets_less_than_half_the_mean(tmp_path: Path, crowd: list[Wish]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        counts = served(tmp_path, crowd * (1_000 // len(crowd)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    check_fair(counts)


def test_a_client_with_huge_requests_does_not_block_the_others(tmp_path: Path) -> None:
    """A turn has an end: in the time of 500 requests of one client, all others are served more than once."""
    greedy, modest = wish(m.Publish("t"), 500, ONE), wish(m.Publish("t"), 1, ONE)
    first, *others = served(tmp_path, [greedy, *[modest] * 19])
    check_fair(others)
    assert min(others) > 2 * first / 500
