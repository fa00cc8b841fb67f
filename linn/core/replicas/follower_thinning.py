"""Thinning of a follower's logs, where their leader has thinned its own.

Law: what goes was settled by an event that is committed, so that no leader that may follow delivers it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing

import trio

from linn.core.batch.steps import TURN_S
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import LinnError, SyncFailed
from linn.core.log.partition import Partition
from linn.core.log.state_log import read_committed
from linn.core.queue.event import clip_event, decode_events
from linn.core.queue.subscription import SharedSubscription
from linn.core.replicas.log_numbers import KIND_BITS, events_of, is_data
from linn.core.topics.topic import Topic

logger = logging.getLogger("linn.cluster")


class FollowerThinning:
    """The thinning of one topic's logs at a follower: one log at a time."""

    def __init__(self, topic: Topic, logs: Mapping[int, Partition], monotonic: Callable[[], float]) -> None:
        self._topic = topic
        self._logs = logs
        self._monotonic = monotonic
        self._told: dict[int, int] = {}
        """Offsets below which the leader has thinned a log, and this broker has not."""
        self._is_running = False

    def tell(self, number: int, before: int) -> None:
        """The leader has thinned a log below an offset. Logs without published records are never thinned."""
        if is_data(number) and before > self._logs[number].thinning.before:
            self._told[number] = before

    @property
    def is_due(self) -> bool:
        """Whether `run` has anything to do."""
        return bool(self._told) and not self._is_running

    async def run(self) -> None:
        """Thin the logs that the leader has thinned. Tries again with the next call. Raises SyncFailed."""
        self._is_running = True
        try:
            for number in list(self._told):
                await self._try_to_thin(number)
        except SyncFailed:
            raise
        except LinnError as error:
            about = {"topic": self._topic.name} | log_fields(error)
            logger.info("a log of topic %(topic)s is not thinned yet: %(error)s", about)
        finally:
            self._is_running = False

    async def _try_to_thin(self, number: int) -> None:
        """Raises LinnError."""
        before, partition, events = self._told[number], self._logs.get(number), self._logs.get(events_of(number))
        keeps_settled = self._topic.settings.keeps_settled and not number >> KIND_BITS  # A timing log never does.
        if partition is None or events is None or keeps_settled:
            del self._told[number]
        elif partition.high_watermark >= before and not partition.thinning.is_running:
            await self._thin(partition, events, before)
            partition.thinning.before = max(partition.thinning.before, before)
            if self._told[number] == before:
                del self._told[number]

    async def _thin(self, partition: Partition, events: Partition, before: int) -> None:
        subscription = SharedSubscription(self._topic.semantics, 0)
        start, until_s = events.start_offset, self._monotonic() + TURN_S
        async with aclosing(read_committed(events, start, events.high_watermark)) as records:
            async for record in records:
                for event in decode_events(record):
                    clipped = clip_event(event, partition.log.bounds()[1])
                    if clipped is not None:
                        subscription.apply(clipped)
                if self._monotonic() > until_s:
                    await trio.lowlevel.checkpoint()
                    until_s = self._monotonic() + TURN_S
        await partition.thinning.run(subscription.unsettled, before, trio.lowlevel.checkpoint)
