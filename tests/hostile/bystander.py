"""A bystander: another client, in a process of its own, that works on while somebody attacks the broker.

In rounds, 50 a second, it publishes numbered records to a queue and to a stream, waits for their confirmation, consumes
exactly them and acks them. Whatever is lost, repeated, out of order or refused ends it, and it says why. Between rounds
nothing is under way. A round that is late is not caught up on: its turn is gone, and the rate shows it.

Run as a program: it takes a broker's URL, reads one number of rounds per line, and answers with a line of JSON when it
has done so many more.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from typing import NamedTuple

import trio

import linn
from linn.client import Consumer, Producer

QUEUE, STREAM, GROUP = "bystander-queue", "bystander-stream", "bystanders"
TOPICS = f'[topics.{QUEUE}]\nkind = "queue"\n[topics.{STREAM}]\nkind = "stream"\n'
PERIOD_S = 0.02
RECORDS = 5
"""Records per topic and round."""
ROUND_S_MAX = 10.0


class Report(NamedTuple):
    """The progress of a bystander."""

    rounds: int
    at_s: float
    """The time when its last round ended, by the clock that all processes share."""
    longest_s: float
    """The longest round since the previous report."""
    records: int
    """Confirmed, consumed and acked, of both topics."""
    error: str = ""


class Lane:
    """A topic through which the bystander passes messages: each published one comes back, once and in order."""

    def __init__(self, producer: Producer, consumer: Consumer) -> None:
        self._producer = producer
        self._consumer = consumer
        self.numbers = 0

    async def round(self) -> None:
        first, end = self.numbers, self.numbers + RECORDS
        await self._producer.publish_many([b"%d" % number for number in range(first, end)])
        while self.numbers < end:
            batch = await self._consumer.next_batch()
            for value in batch.values:
                if value != b"%d" % self.numbers:
                    raise AssertionError(f"{batch.topic}: {value!r} came in the place of {self.numbers}")
                self.numbers += 1
            await batch.ack()


async def work(url: str) -> None:
    """Do rounds and report them until stdin ends. Raises the first error."""
    # One attempt: a connection that the broker gives up is an error, not something to get over.
    async with linn.connect(url, name="bystander", retries_max=0, request_timeout_s=ROUND_S_MAX) as client:
        async with (
            client.producer(QUEUE) as to_queue,
            client.producer(STREAM) as to_stream,
            client.consumer(QUEUE) as from_queue,
            client.consumer(STREAM, group=GROUP) as from_stream,
            trio.open_nursery() as nursery,
        ):
            asked: deque[int] = deque()
            nursery.start_soon(_listen, asked, nursery.cancel_scope)
            await _rounds([Lane(to_queue, from_queue), Lane(to_stream, from_stream)], asked)


async def _listen(asked: deque[int], scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        async for chunk in stdin:
            asked.extend(int(line) for line in chunk.split())
    scope.cancel()


async def _rounds(lanes: list[Lane], asked: deque[int]) -> None:
    rounds, longest_s, report_at = 0, 0.0, None
    while True:
        began_s = trio.current_time()
        with trio.fail_after(ROUND_S_MAX):
            async with trio.open_nursery() as nursery:
                for lane in lanes:
                    nursery.start_soon(lane.round)
        took_s = trio.current_time() - began_s
        rounds += 1
        longest_s = max(longest_s, took_s)
        if report_at is None and asked:
            report_at = rounds + asked.popleft()
        if report_at is not None and rounds >= report_at:
            _say(Report(rounds, time.monotonic(), longest_s, sum(lane.numbers for lane in lanes)))
            longest_s, report_at = 0.0, None
        await trio.sleep(PERIOD_S - took_s % PERIOD_S)


def _say(report: Report) -> None:
    sys.stdout.write(json.dumps(report._asdict()) + "\n")
    sys.stdout.flush()


class Bystander:
    """The process, seen from a test. Use it with `with`."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.pid = self._process.pid
        self._longest_s = 0.0

    def report(self, rounds: int = 0, timeout_s: float = 30.0) -> Report:
        """The progress after so many more rounds. Fails if the bystander had an error."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"%d\n" % rounds)
            process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(timeout_s), f"the bystander was not served for {timeout_s:g} s"
        line = process.stdout.readline()
        assert line, f"the bystander ended with {process.wait(timeout_s)}"
        report = Report(**json.loads(line))
        assert not report.error, f"the bystander was disturbed: {report.error}"
        self._longest_s = max(self._longest_s, report.longest_s)
        return report

    def take_longest_s(self) -> float:
        """The longest round that was reported since this was asked last."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def __enter__(self) -> Bystander:
        return self

    def __exit__(self, *exc: object) -> None:
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """The program."""
    try:
        trio.run(work, sys.argv[1])
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        _say(Report(0, time.monotonic(), 0.0, 0, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
