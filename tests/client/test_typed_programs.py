"""The clients' types are complete: mypy, strict, reads programs that use everything, and the programs run as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from blocking_facade import BOTH, EXAMPLES, replaced

HERE = Path(__file__).parent
ASYNC = HERE / "every_call.py", HERE / "own_calls_async.py"
BLOCKING = HERE / "own_calls_blocking.py"
FOR_BLOCKING = (
    (r"^import anyio$", "import threading"),
    (r"anyio\.run\(main, (.*), backend=.*\)", r"main(\1)"),
)
ROOT = HERE.parents[1]
WRONG = """
import linn

def publish(producer: linn.sync.Producer) -> str:
    producer.publish("text")
    return producer.publish(b"", key=b"").offset

async def settle(message: linn.client.Message) -> None:
    message.ack(1)
    await message.batch.nak()

async def administer(admin: linn.client.Admin, blocking: linn.sync.Admin) -> None:
    await admin.create_topic("orders", lesae="30s")
    blocking.create_topic("orders", kind="stack")
    await admin.alter_topic("orders", partitions="two")
    (await admin.topic("orders"))["partition"]
"""


def run(*command: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


def every_call_blocking(folder: Path) -> Path:
    """The program of the async client that uses every call, for the blocking client."""
    program = folder / "every_call_blocking.py"
    text = (HERE / "every_call.py").read_text(encoding="utf-8")
    program.write_text(replaced(text, FOR_BLOCKING, EXAMPLES, BOTH), encoding="utf-8")
    return program


def mypy(*files: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "mypy", "--strict", "--no-error-summary", *map(str, files))


def test_mypy_knows_every_type_and_sees_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG, encoding="utf-8")
    done = mypy(*ASYNC, BLOCKING, every_call_blocking(tmp_path), wrong)
    assert [
        line.split(" error: ")[0].rpartition("/")[2] for line in done.stdout.splitlines() if " error: " in line
    ] == [
        "wrong.py:5:",
        "wrong.py:6:",
        "wrong.py:9:",
        "wrong.py:10:",
        "wrong.py:13:",
        "wrong.py:14:",
        "wrong.py:15:",
        "wrong.py:16:",
    ], done.stdout


def test_import_linn_is_enough_for_every_name_that_mypy_knows() -> None:
    done = run("-c", "import linn; print(linn.client.Message, linn.sync.Message, linn.connect)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_the_async_programs_run(broker: str, name: str, loop: str) -> None:
    for program in ASYNC:
        done = run("-W", "error", str(program), broker, f"{name}-{program.stem}", loop)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_blocking_programs_run(broker: str, name: str, tmp_path: Path) -> None:
    for program in (every_call_blocking(tmp_path), BLOCKING):
        done = run("-W", "error", str(program), broker, f"{name}-{program.stem}")
        assert (done.returncode, done.stderr) == (0, "")
