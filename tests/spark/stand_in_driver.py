"""A program that stands in for the driver of Spark pipelines: it speaks its interface, and does no work.

`conf` of its specification may have "stand-in.alive", a pipe that it and its child hold open for as long as they live,
and "stand-in.hangs": it does not stop when it is told to. Asked for the files of a pipeline, it names one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

status = int(os.environ["LINN_STATUS_FD"])
spec = json.loads(sys.stdin.readline())
if sys.argv[-1].endswith("committed_files"):
    file = {"event": "file", "path": f"{spec['path']}/one.parquet"}
    os.write(status, json.dumps(file).encode() + b"\n")
    sys.exit()
conf = spec["conf"]
alive = os.open(conf["stand-in.alive"], os.O_WRONLY) if "stand-in.alive" in conf else os.open(os.devnull, os.O_WRONLY)
child = subprocess.Popen(["sleep", "1000"], pass_fds=[alive], stdin=subprocess.DEVNULL)


def say(event: str, pipeline: str | None = None, **more: Any) -> None:
    os.write(status, json.dumps({"event": event, "pipeline": pipeline, **more}).encode() + b"\n")


print("Spark stands in", flush=True)
say("session", spark="4.3.0", application="stand-in", ui=None)
for each in spec["pipelines"]:
    say("started", each["name"], query="q", run="r", end={})
    offsets = {topic: {"0": 7} for topic in each["topics"]}
    numbers = {"batch": 0, "rows": 7, "input_rows_per_s": 7.0, "processed_rows_per_s": 70.5, "duration_ms": 100}
    say("progress", each["name"], **numbers, durations={}, end=offsets)
os.write(alive, b"running\n")
for line in sys.stdin:
    for name in json.loads(line)["stop"]:
        say("stopped", name)
if "stand-in.hangs" in conf:
    signal.pause()
os.write(alive, b"drained\n")
child.kill()
child.wait()
