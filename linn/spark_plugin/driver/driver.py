"""Driver: runs pipelines in one Spark session until they have ended or their supervisor stops them.

Laws: a pipeline that fails ends only itself, and can be started again. At the end of standard input everything drains,
for a bounded time. Once the parent is dead the driver waits for nothing: the next driver repeats the micro-batches in
progress.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from time import monotonic

from pyspark.sql import SparkSession

from linn.spark_plugin.driver.control import Control, Start, Stop
from linn.spark_plugin.driver.running_pipeline import RunningPipeline
from linn.spark_plugin.driver.session import ended_session, made_session
from linn.spark_plugin.driver.status import StatusWriter
from linn.spark_plugin.spec import DriverSpec

DRAIN_S = 60.0
"""Time limit for the micro-batch in progress when its pipeline is to stop."""
_LOOK_S = 0.25


def run_driver(spec: DriverSpec, control: Control, status: StatusWriter) -> int:
    """Run until the end, and return the exit code. Raises the errors of making the session."""
    signal.signal(signal.SIGTERM, lambda *_: control.stop_all())
    session = made_session(spec)
    try:
        context = session.sparkContext
        status.write("session", spark=context.version, application=context.applicationId, ui=context.uiWebUrl)
        return _run(session, spec, control, status)
    finally:
        ended_session(session)
        control.ended()


def _run(session: SparkSession, spec: DriverSpec, control: Control, status: StatusWriter) -> int:
    pipelines: dict[str, RunningPipeline] = {}

    def start(names: Collection[str]) -> None:
        for pipeline in spec.pipelines:
            if pipeline.name in names:
                pipelines[pipeline.name] = RunningPipeline(pipeline, status)
                pipelines[pipeline.name].start(session, spec)

    start([pipeline.name for pipeline in spec.pipelines])
    while not all(pipeline.has_ended for pipeline in pipelines.values()):
        match control.next_command(_LOOK_S):
            case Start(names):
                start([name for name in names if pipelines[name].has_ended])
            case Stop(names):
                _drain([pipeline for name, pipeline in pipelines.items() if names is None or name in names])
        if control.is_orphan or status.is_broken:
            return 1
        for pipeline in pipelines.values():
            pipeline.look(monotonic())
    return 1 if any(pipeline.failure is not None for pipeline in pipelines.values()) else 0


def _drain(pipelines: Iterable[RunningPipeline]) -> None:
    for pipeline in pipelines:
        pipeline.drain(monotonic() + DRAIN_S)
