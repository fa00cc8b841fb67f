"""Load on a cluster of real processes, and the proof of what came of it.

    with Load(cluster, at=cluster.urls_without(lost)) as load:
        at_s = time.monotonic()
        cluster.lose(lost)
        gap_s = load.longest_gap(at_s)
    load.check()

Two producers publish numbers with acks = all to each of two topics, a queue and a stream: one a number at a time, the
other in batches. A worker acks what the queue has, and a reader reads the stream. The block ends when all that was
confirmed has arrived. `check` asserts that nothing confirmed is missing or out of order, that nothing comes again after
its ack was confirmed, that the stream has each number once, and that the copies of all brokers are equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import trio
from cluster_processes import POLL_S, SLACK_S, RealCluster, until

import linn
from linn.cli.segment_dump import SegmentFile

QUEUE, STREAM = "jobs", "flights"
LEASE_S = 5.0
TABLES = f"""
[topics.{QUEUE}]
kind = "queue"
lease = "{LEASE_S:g}s"
[topics.{STREAM}]
kind = "stream"
retention = "forever"
"""
"""Tables of the brokers, for the topics of a load."""
BATCH = 20
PAUSE_S = 0.01
"""Pause of a producer after each confirmation: the load is for order and loss, and other tests run beside it."""
BACKLOG_MAX = 1000
"""Confirmed records that the worker may be behind: its acks wait for all replicas too, one batch after the other."""
MARGIN_S = 0.5
CATCH_UP_S = 60.0
COPY_NAMES = (QUEUE, STREAM, f"__s.{QUEUE}")
"""Folders of the logs whose copies are compared."""


class Sent(NamedTuple):
    """A confirmation, or its failure."""

    at_s: float
    took_s: float
    values: tuple[bytes, ...]
    error: linn.errors.LinnError | None = None


class Load:
    """A load; it runs in a thread while the block runs."""

    def __init__(self, cluster: RealCluster, at: Sequence[str] = (), *, timeout_s: float = 60.0) -> None:
        """
        Args:
            at: URLs at which the clients are, in turns; none: of all brokers.
            timeout_s: for each request of a client.
        """
        self.cluster = cluster
        self.sent: dict[str, list[Sent]] = {name: [] for name in ("jobs-1", "jobs-n", "flights-1", "flights-n")}
        """Outcomes by producer, in order."""
        self.read: list[tuple[float, bytes]] = []
        """(time, value) of all that the reader of the stream got."""
        self.taken: list[tuple[float, bytes]] = []
        """(time, value) of the worker's deliveries."""
        self.deliveries: list[tuple[float, int, int, int, int]] = []
        """(time, attempt, leader epoch, first offset, end) of each, for the reader of a failure."""
        self.lost_once: set[bytes] = set()
        """Values whose first delivery was lost with a link: they come again, behind others that were on their way."""
        self.acked: dict[bytes, float] = {}
        """Time of the first confirmed ack, by value."""
        self.unknown: set[bytes] = set()
        """Values of which an ack was refused: it was kept nevertheless, or the record comes again."""
        self._urls = list(at) or cluster.urls
        self._timeout_s = timeout_s
        self._stopping = self._is_over = False
        self._producing = len(self.sent)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        until(lambda: self._error is not None or (all(self.sent.values()) and bool(self.read) and bool(self.acked)))
        self._raise()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping = True
        try:
            if kind is None:
                until(lambda: not self._producing or self._error is not None, self._timeout_s + SLACK_S)
                until(lambda: not self._missing() or self._error is not None, CATCH_UP_S)
                until(lambda: self.cluster.unsettled(QUEUE) == 0, LEASE_S + CATCH_UP_S)
        except AssertionError as error:
            missing, now_s = sorted(self._missing()), time.monotonic()
            ages = ", ".join(f"{now_s - max(times, default=0):.1f}" for times in self._times())
            text = f"{len(missing)} have not arrived, such as {missing[:5]}; the last progress was {ages} s ago"
            raise AssertionError(text) from error
        finally:
            self._is_over = True
            self._thread.join(SLACK_S)
        if kind is None:
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise AssertionError("the load has failed") from self._error

    # --- clients -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:
            self._error = error

    async def _live(self) -> None:
        tasks = [partial(self._produce, name) for name in self.sent] + [self._work, self._read]
        async with trio.open_nursery() as nursery:
            for number, task in enumerate(tasks):
                nursery.start_soon(task, self._urls[number % len(self._urls)])
            while not self._is_over:
                await trio.sleep(POLL_S)
            nursery.cancel_scope.cancel()

    async def _produce(self, name: str, url: str) -> None:
        topic, _, how = name.partition("-")
        number, outcomes = 0, self.sent[name]
        async with (
            linn.connect(url, request_timeout_s=self._timeout_s) as client,
            client.producer(topic, acks="all") as producer,
        ):
            while not self._stopping:
                values = tuple(f"{name}-{n}".encode() for n in range(number, number + (1 if how == "1" else BATCH)))
                number += len(values)
                began_s, failure = time.monotonic(), None
                try:
                    await producer.publish_many(values)
                except linn.errors.LinnError as error:
                    failure = error
                now_s = time.monotonic()
                outcomes.append(Sent(now_s, now_s - began_s, values, failure))
                await trio.sleep(PAUSE_S)
                while topic == QUEUE and self._backlog() > BACKLOG_MAX and not self._stopping:
                    await trio.sleep(PAUSE_S)
        self._producing -= 1

    def _backlog(self) -> int:
        confirmed = sum(len(self.sent[name]) * size for name, size in ((f"{QUEUE}-1", 1), (f"{QUEUE}-n", BATCH)))
        return confirmed - len(self.acked)

    async def _work(self, url: str) -> None:
        async with (
            linn.connect(url, request_timeout_s=self._timeout_s) as client,
            client.consumer(QUEUE) as worker,
        ):
            async for batch in worker.batches():
                now_s, values = time.monotonic(), [bytes(value or b"") for value in batch.values]
                if batch.attempt > 1:
                    self.lost_once |= set(values).difference(value for _, value in self.taken)
                self.taken += [(now_s, value) for value in values]
                self.deliveries.append((now_s, batch.attempt, batch.leader_epoch, batch.start_offset, batch.end_offset))
                try:
                    await batch.ack()
                except (linn.errors.DeliveryNotCurrent, linn.errors.NotLeader, linn.errors.DiskFull):
                    self.unknown.update(values)
                else:
                    now_s = time.monotonic()
                    for value in values:
                        self.acked.setdefault(value, now_s)

    async def _read(self, url: str) -> None:
        async with (
            linn.connect(url, request_timeout_s=self._timeout_s) as client,
            client.consumer(STREAM) as reader,
        ):
            async for message in reader:
                self.read.append((time.monotonic(), message.value or b""))

    # --- findings ----------------------------------------------------------------------------------------------------

    def confirmed(self, topic: str) -> list[list[bytes]]:
        """The confirmed values of a topic's producers, each in order."""
        return [
            [value for sent in outcomes if sent.error is None for value in sent.values]
            for name, outcomes in self.sent.items()
            if name.startswith(f"{topic}-")
        ]

    def failures(self) -> list[Sent]:
        """The outcomes that are no confirmations."""
        return [sent for outcomes in self.sent.values() for sent in outcomes if sent.error is not None]

    def longest_gap(self, since_s: float) -> float:
        """Wait until all clients go on after a moment; returns the longest time that one of them waited."""

        def go_on() -> bool:
            self._raise()
            return all(times[-1] > since_s + MARGIN_S for times in self._times())

        until(go_on, self._timeout_s + SLACK_S)
        return self.longest_gap_until_now(since_s)

    def longest_gap_until_now(self, since_s: float) -> float:
        """The longest time that a client has waited since a moment."""
        return max(_longest(times, since_s) for times in self._times())

    def _times(self) -> Iterator[list[float]]:
        """Times of confirmations by producer, of acks, and of what was read."""
        for outcomes in self.sent.values():
            yield [sent.at_s for sent in list(outcomes) if sent.error is None]
        yield list(self.acked.values())
        yield [at_s for at_s, _ in list(self.read)]

    def _missing(self) -> set[bytes]:
        """Confirmed values that the worker has not settled, or that the reader has not seen."""
        acked, read = set(self.acked) | self.unknown, {value for _, value in list(self.read)}
        missing = {value for values in self.confirmed(QUEUE) for value in values if value not in acked}
        missing |= {value for values in self.confirmed(STREAM) for value in values if value not in read}
        return missing

    # --- checks ------------------------------------------------------------------------------------------------------

    def check(self, *, copies: bool = True) -> None:
        """Assert that nothing confirmed was lost, moved or repeated; then wait for equal copies at all brokers.

        `copies`: whether all brokers run, and so come to have them.
        """
        read = [value for _, value in self.read]
        assert len(set(read)) == len(read), "the stream has a record twice"
        for values in self.confirmed(STREAM):
            assert _in_order(values, read), "the stream has lost a confirmed record, or its order"
        first_taken = list(dict.fromkeys(value for _, value in self.taken))
        for values in self.confirmed(QUEUE):
            assert set(values) <= set(first_taken), "the queue has lost a confirmed record"
            at_once = [value for value in values if value not in self.lost_once]
            assert _in_order(at_once, first_taken), self._disorder(at_once, first_taken)
        late = [value for at_s, value in self.taken if at_s > self.acked.get(value, at_s)]
        assert late == [], "a record came again after its ack was confirmed"
        if copies:
            self.cluster.until_whole(QUEUE, STREAM)
            until(lambda: not self._unequal(), SLACK_S)

    def _disorder(self, wanted: Sequence[bytes], found: Sequence[bytes]) -> str:
        """Say where the queue has lost its order, with the deliveries around it."""
        places = {value: place for place, value in enumerate(found)}
        before, early = next(pair for pair in pairwise(wanted) if places[pair[0]] > places[pair[1]])
        times = [next(at_s for at_s, value in self.taken if value == it) for it in (before, early)]
        near = [it for it in self.deliveries if min(times) - 1 < it[0] < max(times) + 1]
        shown = ", ".join(
            f"{at_s:.2f} s: {first} to {end - 1}, attempt {n}, epoch {e}" for at_s, n, e, first, end in near
        )
        return f"the queue has lost its order: {early!r} came before {before!r}; the deliveries were {shown}"

    def _unequal(self) -> list[str]:
        """The logs of which the brokers have different copies."""
        folders = [broker.data_dir for _, broker in sorted(self.cluster.brokers.items())]
        found = list[str]()
        for name in COPY_NAMES:
            first, *others = [content(folder / "segmented-log" / name / "0") for folder in folders]
            begins = max([min(each, default=0) for each in (first, *others)])
            kept = [{at: batch for at, batch in each.items() if at >= begins} for each in (first, *others)]
            found += [name] if any(each != kept[0] for each in kept) else []
        return found


def content(folder: Path) -> dict[int, tuple[int, int, int]]:
    """The batches in the files of a log, by offset: (epoch, records, CRC of what the producer sealed)."""
    found = dict[int, tuple[int, int, int]]()
    for path in sorted(folder.glob("*.log")):
        with path.open("rb") as file:
            for part in SegmentFile(path, file, None).parts():
                if part.batch is not None and part.damage is None:
                    batch = part.batch
                    found[batch.base_offset] = (batch.leader_epoch, batch.count, batch.crc)
    return found


def _in_order(wanted: Sequence[bytes], found: Sequence[bytes]) -> bool:
    """Whether `found` has all wanted values in their order, maybe among others."""
    rest = iter(found)
    return all(value in rest for value in wanted)


def _longest(times: Sequence[float], since_s: float) -> float:
    """The longest time between two of these moments, from one on."""
    later = [since_s, *(at_s for at_s in times if at_s >= since_s)]
    return max((after - before for before, after in pairwise(later)), default=0.0)
