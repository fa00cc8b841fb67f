"""Sparking: the act in which Spark writes departures to Parquet and counts late ones, while its driver is killed.

The broker starts the driver, a process with both pipelines, together with itself. Once each pipeline has done a
micro-batch, the driver is killed with SIGKILL. The broker starts another driver, which goes on from the checkpoints.
When nothing is left to read, the pipelines are stopped, as by `linn spark stop`. Then the Parquet files are read with
pyarrow, and the counts from the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from linn.cli.demo.broker_config import HOURS, SINK
from linn.cli.demo.child_processes import descendants, kill
from linn.cli.demo.lake import Written, read_lake
from linn.cli.demo.progress import Progress
from linn.cli.demo.spark_counts import SparkOutcome
from linn.cli.demo.view import View
from linn.client.client import Client
from linn.core.env.real.programs import RealPrograms
from linn.core.errors.tree import ServiceFailed
from linn.spark_plugin.service.requirements import missing_java, missing_package
from linn.testing.process import BrokerProcess

DRIVER = "linn.spark_plugin.driver"
SILENCE_S = 150.0
"""Time without any progress after which the rest counts as missing; a driver has 120 s to start."""
STOP_S_MAX = 60.0
_LOOK_S = 0.1
_QUEUE_LOOK_S = 0.5
_QUEUE_SILENCE_S = 20.0

Pipelines = Mapping[str, Mapping[str, Any]]


class _Late(msgspec.Struct):
    """Value of a message in the queue of counts."""

    origin: str
    hour: str
    late: int


_read_late = msgspec.json.Decoder(_Late).decode


async def missing_for_spark() -> str | None:
    """Return the line that says what to install for this act; None if there is everything."""
    return missing_package() or await missing_java(RealPrograms())


class Sparking:
    """One run of the act."""

    def __init__(self, broker: BrokerProcess, lake: Path, progress: Progress, view: View) -> None:
        self._broker = broker
        self._lake = lake
        self._progress = progress
        self._view = view
        self._ends: dict[str, int] = {}
        self._restarts: dict[str, int] = {}
        """Restarts of each pipeline before the kill."""

    async def run(self, client: Client) -> SparkOutcome:
        """Wait for the pipelines, kill their driver on the way, and return their output.

        Raises LinnError.
        """
        progress, outcome = self._progress, SparkOutcome()
        partitions = (await client.admin.topic("departures"))["partitions"]
        self._ends = {str(index): partition["end"] for index, partition in enumerate(partitions)}
        for stretch in (progress.to_parquet, progress.by_hour):
            stretch.expected = sum(self._ends.values())
            stretch.start()
        if await self._until(client, _has_begun):
            self._restarts = {name: pipeline["restarts"] for name, pipeline in (await _pipelines(client)).items()}
            await anyio.to_thread.run_sync(self._kill_driver)
            outcome.has_restarted = await self._until(client, self._has_all)
        await self._stop(client)
        progress.pipelines.clear()
        outcome.written = await anyio.to_thread.run_sync(self._read_lake)
        await self._read_queue(client, outcome)
        return outcome

    # --- the driver ---

    def _kill_driver(self) -> None:
        drivers = [process for process in descendants(self._broker.pid) if DRIVER in process.command]
        drivers = [process for process in drivers if process.parent == self._broker.pid]
        done = f"{self._progress.to_parquet.done:,} of {self._progress.to_parquet.expected:,}"
        pids = ", ".join(str(process.pid) for process in drivers)
        self._view.say(f"SIGKILL to the Spark driver (process {pids}), with {done} departures in Parquet")
        kill(drivers)

    def _has_all(self, found: Pipelines) -> bool:
        """Whether everything was read, and the driver runs again."""
        return all(
            pipeline["restarts"] > self._restarts[name]
            and pipeline["state"] == "running"
            and self._done(pipeline) == sum(self._ends.values())
            for name, pipeline in found.items()
        )

    def _done(self, pipeline: Mapping[str, Any]) -> int:
        """Return how many departures a pipeline has written, or counted, for good."""
        offsets = pipeline["progress"]["offsets"].get("departures", {})
        return sum(min(end, offsets.get(partition, 0)) for partition, end in self._ends.items())

    async def _until(self, client: Client, is_so: Callable[[Pipelines], bool]) -> bool:
        """Wait for a state of the pipelines; return False if a pipeline fails, or progress stops."""
        before: object = None
        changed_at = anyio.current_time()
        while anyio.current_time() - changed_at < SILENCE_S:
            found = await _pipelines(client)
            self._show(found)
            failed = [pipeline for pipeline in found.values() if pipeline["state"] == "failed"]
            if failed:
                self._view.say(f"Spark has failed: {failed[0]['reason']}")
                return False
            if is_so(found):
                return True
            now = [(pipeline["state"], pipeline["restarts"], self._done(pipeline)) for pipeline in found.values()]
            if now != before:
                before, changed_at = now, anyio.current_time()
            await anyio.sleep(_LOOK_S)
        self._view.say("the Spark pipelines stand still")
        return False

    def _show(self, found: Pipelines) -> None:
        progress = self._progress
        for name, stretch in ((SINK, progress.to_parquet), (HOURS, progress.by_hour)):
            pipeline = found[name]
            lag = pipeline["progress"]["lag"]
            progress.pipelines[name] = pipeline["state"] + ("" if lag is None else f", lag {lag:,}")
            stretch.done = max(stretch.done, self._done(pipeline))
            if stretch.done == stretch.expected and stretch.ended_at is None:
                stretch.end()

    async def _stop(self, client: Client) -> None:
        """Stop the pipelines as `linn spark stop` does, and wait until they have."""
        await client.admin.perform(
            "service.perform", service="spark", action="stop", arguments={"pipelines": [SINK, HOURS]}
        )
        with anyio.move_on_after(STOP_S_MAX):
            while any(descendants(self._broker.pid)):
                await anyio.sleep(_LOOK_S)
        for stretch in (self._progress.to_parquet, self._progress.by_hour):
            if stretch.ended_at is None:
                stretch.end()

    # --- what they have written ---

    def _read_lake(self) -> list[Written]:
        try:
            return read_lake(self._lake)
        except (OSError, ValueError) as error:
            self._view.say(f"the Parquet files can't be read: {error}")
            return []

    async def _read_queue(self, client: Client, outcome: SparkOutcome) -> None:
        """Take every message from the queue, until nothing is left in it."""
        silence_s = 0.0
        async with client.consumer(HOURS) as consumer:
            batches = aiter(consumer.batches())
            while silence_s < _QUEUE_SILENCE_S:
                batch = None
                with anyio.move_on_after(_QUEUE_LOOK_S):
                    batch = await anext(batches)
                if batch is not None:
                    for message in batch:
                        outcome.updates[message.offset] = (
                            (message.key or b"").decode(),
                            _read_late(message.value or b"").late,
                        )
                    batch.ack()
                    silence_s = 0.0
                    continue
                silence_s += _QUEUE_LOOK_S
                outcome.unsettled = (await client.admin.topic(HOURS))["queue"]["unsettled"]
                if not outcome.unsettled:
                    return


def _has_begun(found: Pipelines) -> bool:
    """Whether each pipeline has done a micro-batch since the broker's start."""
    return all(pipeline["state"] == "running" and pipeline["progress"]["batches"] for pipeline in found.values())


async def _pipelines(client: Client) -> Pipelines:
    """Return the pipelines by name, as `service.list` describes them. Raises LinnError."""
    (service,) = [service for service in await client.admin.perform("service.list") if service["name"] == "spark"]
    if service["status"] is None:
        raise ServiceFailed(f"the service spark has failed: {service['error']}")
    return {pipeline["name"]: pipeline for pipeline in service["status"]["pipelines"]}
