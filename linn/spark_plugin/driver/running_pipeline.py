"""RunningPipeline: the streaming queries of one pipeline, which the driver polls."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from linn.spark_plugin.driver.checkpoint import committed_offsets, dead_letter_checkpoint_of, exists
from linn.spark_plugin.driver.failure import Failure, failure_of
from linn.spark_plugin.driver.frames import broker_options, pipeline_frames
from linn.spark_plugin.driver.pipeline_settings import starts_at_latest
from linn.spark_plugin.driver.sinks import started_dead_letters, started_query
from linn.spark_plugin.driver.status import StatusWriter, progress_fields
from linn.spark_plugin.spec import DriverSpec, PipelineSpec, checkpoint_of

_BEGIN_S = 120.0
_OFFSETS_S = 10.0
_LOOK_S = 0.1


class RunningPipeline:
    """A pipeline's query, and the query of its dead letters, if any. The pipeline has ended once one of them has."""

    def __init__(self, spec: PipelineSpec, status: StatusWriter) -> None:
        self.spec = spec
        self.failure: Failure | None = None
        self.has_ended = False
        self._status = status
        self._query: StreamingQuery | None = None
        self._dead_letters: StreamingQuery | None = None
        self._reported: tuple[int, str] = (-1, "")
        """Number and time of the micro-batch that was reported last."""
        self._is_idle = False
        self._stop_by_s = math.inf
        self._drains_from = self._reported

    @property
    def drains(self) -> bool:
        """Whether the pipeline was told to stop."""
        return self._stop_by_s < math.inf

    def start(self, session: SparkSession, driver: DriverSpec) -> None:
        """Start the pipeline, or report why it can't start. Raises nothing."""
        try:
            frames = pipeline_frames(session, broker_options(driver), self.spec)
            if frames.dead_letters is not None:
                self._dead_letters = started_dead_letters(driver, self.spec, frames.dead_letters)
                if starts_at_latest(self.spec):
                    _await_begin(session, self._dead_letters, dead_letter_checkpoint_of(driver.state_dir, self.spec))
            end = committed_offsets(session, checkpoint_of(driver.state_dir, self.spec))
            self._query = started_query(session, driver, self.spec, frames.rows)
            ids = {"query": str(self._query.id), "run": str(self._query.runId)}
            self._status.write("started", self.spec.name, **ids, end=end)
            _await_offsets(self._query)
        except Exception as error:
            self._terminated(error)

    def drain(self, stop_by_s: float) -> None:
        """Stop when the micro-batch in progress is done, or at `stop_by_s` at the latest."""
        if not self.drains:
            self._drains_from = self._reported
        self._stop_by_s = min(self._stop_by_s, stop_by_s)

    def look(self, now_s: float) -> None:
        """Report progress and errors, and stop the pipeline if that is due."""
        if self.has_ended:
            return
        assert self._query is not None
        self._report_progress(self._query)
        ended = [query for query in self._queries() if not query.isActive]
        for query in ended:
            error = query.exception()
            if error is not None:
                self._terminated(error)
                return
        if len(ended) == len(self._queries()):
            self._stopped()
        elif self.drains and (now_s >= self._stop_by_s or self._is_drained()):
            self._stop()

    def _is_drained(self) -> bool:
        """Whether no micro-batch is in progress, or the one that was is done and the next has only begun."""
        return self._reported != self._drains_from or not any(map(_is_busy, self._queries()))

    def _queries(self) -> list[StreamingQuery]:
        return [query for query in (self._query, self._dead_letters) if query is not None]

    def _stop(self) -> None:
        try:
            for query in self._queries():
                query.stop()
        except Exception as error:
            self._terminated(error)
            return
        self._stopped()

    def _stopped(self) -> None:
        assert self._query is not None
        self._report_progress(self._query)
        self.has_ended = True
        self._status.write("stopped", self.spec.name)

    def _terminated(self, error: BaseException) -> None:
        for query in self._queries():
            _quietly(query.stop)
        self.failure = failure_of(error)
        self.has_ended = True
        self._status.write("terminated", self.spec.name, **self.failure._asdict())

    def _report_progress(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        if last is None:
            return
        if self._key(last) == self._reported:
            self._report_idle(query, last)
            return
        skipped = last["batchId"] > self._reported[0] + 1
        for progress in query.recentProgress if skipped else [last]:
            if self._key(progress) > self._reported:
                self._reported, self._is_idle = self._key(progress), False
                self._status.write("progress", self.spec.name, **progress_fields(json.loads(progress.json)))

    def _report_idle(self, query: StreamingQuery, last: Any) -> None:
        if self._is_idle or _is_busy(query) or query.status["isDataAvailable"]:
            return
        self._is_idle = True
        self._status.write("idle", self.spec.name, batch=last["batchId"])

    @staticmethod
    def _key(progress: Any) -> tuple[int, str]:
        return progress["batchId"], progress["timestamp"]


def _is_busy(query: StreamingQuery) -> bool:
    return query.isActive and bool(query.status["isTriggerActive"])


def _await_offsets(query: StreamingQuery) -> None:
    """Wait until a query has asked its source for offsets, for a bounded time.

    Spark starts a Python process for that, which must answer within ten seconds; many at once would take longer.
    """
    until_s = monotonic() + _OFFSETS_S
    starting = ("Initializing", "Getting offsets")
    while query.isActive and query.status["message"].startswith(starting) and monotonic() < until_s:
        sleep(_LOOK_S)


def _await_begin(session: SparkSession, query: StreamingQuery, checkpoint: str) -> None:
    """Wait until the checkpoint holds the start of the dead-letter query.

    The pipeline's query determines the end of the topics after that, so the dead-letter query reads every malformed
    record that the other leaves out.

    Raises:
        TimeoutError: the wait is too long.
        StreamingQueryException: the query has failed.
    """
    until_s = monotonic() + _BEGIN_S
    while not exists(session, checkpoint, "offsets", "0"):
        if query.awaitTermination(1):
            return
        if monotonic() > until_s:
            raise TimeoutError(f"the query of the dead letters has not begun within {_BEGIN_S:g} s")


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:
        print(f"linn: {failure_of(error).error}", flush=True)
