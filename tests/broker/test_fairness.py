"""Fair service: of many clients that ask as fast as they are answered, nobody gets less than half the mean."""

from __future__ import annotations

import os
import resource
import selectors
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from askers import Asker, Wish, answered, wish
from raw_client import records

import linn.sync
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
BUSY_PRODUCERS = 9_500
"""A broker's `connections_max`, less room for others."""
NEW_CONNECTION_S_MAX = 2.0
"""A user would notice more."""
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
    with many_files():
        counts = served(tmp_path, crowd * (1_000 // len(crowd)))
    check_fair(counts)


@contextmanager
def many_files() -> Iterator[None]:
    """Open as many files as the machine lets this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def crowd_at_work(address: str, wish: Wish, count: int) -> Iterator[None]:
    """Let so many clients ask in a thread, once each of them has been answered twice on the average."""
    with ExitStack() as stack, selectors.DefaultSelector() as selector, ThreadPoolExecutor(1) as pool:
        askers = [Asker(address, wish) for _ in range(count)]
        for asker in askers:
            stack.enter_context(asker.socket)
            selector.register(asker.socket, selectors.EVENT_READ, asker)
        stopped, at_work = threading.Event(), threading.Event()

        def work() -> None:
            try:
                for asker in askers:
                    asker.begin()
                while not stopped.is_set():
                    for key, _ in selector.select(0.1):
                        key.data.go_on()
                    if sum(asker.answered for asker in askers) >= 2 * count:
                        at_work.set()
            finally:
                at_work.set()

        working = pool.submit(work)
        try:
            assert at_work.wait(WITHIN_S)
            yield
        finally:
            stopped.set()
        working.result()


def first_confirmed_s(url: str) -> float:
    """Measure how long a new client takes until its first publish is confirmed."""
    began_s = time.monotonic()
    with linn.sync.connect(url) as client, client.producer("t") as producer:
        producer.publish(b"x")
        return time.monotonic() - began_s


def test_a_new_connection_beside_thousands_of_busy_producers_is_served_within_two_seconds(tmp_path: Path) -> None:
    """In order of arrival alone it waits for three rounds of all: for hello, its topic and its publish (ADR 0020)."""
    with many_files(), BrokerProcess(tmp_path, TEXT) as broker:
        with crowd_at_work(broker.address, wish(m.Publish("t"), 1, ONE), BUSY_PRODUCERS):
            waited_s = [first_confirmed_s(broker.url) for _ in range(5)]
    assert statistics.median(waited_s) < NEW_CONNECTION_S_MAX, waited_s


def test_a_client_with_huge_requests_does_not_block_the_others(tmp_path: Path) -> None:
    """A turn has an end: in the time of 500 requests of one client, all others are served more than once."""
    greedy, modest = wish(m.Publish("t"), 500, ONE), wish(m.Publish("t"), 1, ONE)
    first, *others = served(tmp_path, [greedy, *[modest] * 19])
    check_fair(others)
    assert min(others) > 2 * first / 500
