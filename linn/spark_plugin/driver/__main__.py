"""Entry point of a driver: `python -m linn.spark_plugin.driver`, with its specification as the first line of input."""

from __future__ import annotations

import io
import sys
from importlib import import_module

import msgspec

from linn.spark_plugin.driver.control import Control
from linn.spark_plugin.driver.failure import Failure, failure_of
from linn.spark_plugin.driver.status import StatusWriter
from linn.spark_plugin.spec import DriverSpec

FAILED = 3
"""Exit code of a driver that has no session to run pipelines in."""
NEEDS = "linn's pipelines need PySpark and pyarrow: pip install 'linn[spark]' (and Java 17 or newer)"


def main() -> int:
    """Run pipelines. Returns the exit code: 0 all stopped in order, 1 one failed or the parent died, 3 no session."""
    status = StatusWriter.from_environment()
    # Without a buffer: its lock would be held by the thread that reads, and Python could not exit.
    stream = io.FileIO(sys.stdin.fileno(), closefd=False)
    try:
        spec = msgspec.json.decode(stream.readline(), type=DriverSpec)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        return _failed(status, Failure(f"the specification can't be read: {error}", "spark.pipeline_invalid", True))
    control = Control(stream)
    control.start()
    try:
        driver = import_module("linn.spark_plugin.driver.driver")
    except ModuleNotFoundError as error:
        return _failed(status, Failure(f"{NEEDS}: no module {error.name}", "ModuleNotFoundError", True))
    try:
        code: int = driver.run_driver(spec, control, status)
    except Exception as error:
        return _failed(status, failure_of(error))
    return code


def _failed(status: StatusWriter, failure: Failure) -> int:
    status.write("failed", **failure._asdict())
    print(f"linn: {failure.error}", file=sys.stderr, flush=True)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
