"""`python -m benchmarks.peers`: measure the systems one after another, show the page, and write it."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from benchmarks.peers.figure import Figure
from benchmarks.peers.page import Result, page
from benchmarks.peers.peer import Facts, PeerMissing
from benchmarks.peers.plan import REPETITIONS, Plan
from benchmarks.peers.systems import SYSTEMS, peer
from benchmarks.peers.trial import Trial
from benchmarks.report import machine
from benchmarks.servers import DiskTooFull, check_room

INCOMPLETE = 1
FAILED = 2


def systems_of(text: str) -> list[str]:
    """The value of --only. Raises ArgumentTypeError."""
    names = text.split(",")
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such system: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    return [name for name in SYSTEMS if name in names]


def positive(text: str) -> float:
    """The value of --seconds. Raises ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 600:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0 and up to 600")
    return seconds


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    made.add_argument("--only", type=systems_of, metavar="NAMES", help=f"some of {','.join(SYSTEMS)}")
    made.add_argument(
        "--seconds", type=positive, default=Plan.seconds, metavar="N",
        help=f"of publishing per figure, in {REPETITIONS} repetitions (default: {Plan.seconds:g})",
    )  # fmt: skip
    made.add_argument("--folder", type=Path, metavar="FOLDER", help="measure the disk that this folder is on")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    made.add_argument("--page", type=Path, metavar="FOLDER", help="write peers.md and peers.json there")
    made.add_argument("--apart", action="store_true", help="give servers one processor and clients the others")
    return made


class Run:
    """The systems of one run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._facts: list[Facts] = []
        self._figures: list[Figure] = []
        self._versions: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._machine = machine() | {"system": f"{platform.system()} {platform.machine()}"}
        self._started = time.perf_counter()

    def measure(self, name: str) -> None:
        """One system. What goes wrong with it is told, and the others are measured all the same."""
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            found = peer(name)
        except PeerMissing as error:
            self._miss(name, str(error))
            return
        self._facts.append(found.facts)
        trial = Trial(found, self._plan)
        try:
            trial.run()
        except Exception as error:  # Each system's library has a tree of errors of its own.
            traceback.print_exc()
            self._miss(found.facts.name, f"{type(error).__name__}: {error}")
            return
        self._versions[found.facts.name] = trial.version
        self._figures += trial.figures

    def _miss(self, name: str, why: str) -> None:
        self.missing[name] = why
        print(f"{name} is not measured: {why}", file=sys.stderr, flush=True)

    def result(self) -> Result:
        """So far."""
        return Result(
            self._facts,
            self._versions,
            self._figures,
            self.missing,
            datetime.now(UTC).isoformat(timespec="seconds"),
            time.perf_counter() - self._started,
            self._plan.repetition_s,
            REPETITIONS,
            self._plan.stock_bytes_max,
            self._plan.is_apart,
            self._machine,
        )


def write(result: Result, options: argparse.Namespace) -> None:
    """The files that were asked for."""
    data = json.dumps(result.data(), indent=1) + "\n"
    if options.json is not None:
        options.json.write_text(data)
    if options.page is not None:
        options.page.mkdir(parents=True, exist_ok=True)
        (options.page / "peers.md").write_text(page(result))
        (options.page / "peers.json").write_text(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code. 0: all measured, 1: some were not, 2: none was."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    plan = Plan(options.folder or Path(tempfile.gettempdir()), seconds=options.seconds, is_apart=options.apart)
    try:
        check_room(plan.folder)
    except (DiskTooFull, OSError) as error:
        print(f"benchmarks.peers: {error}", file=sys.stderr)
        return FAILED
    run = Run(plan)
    for name in options.only or SYSTEMS:
        run.measure(name)
    result = run.result()
    if not result.figures:
        print("benchmarks.peers: nothing was measured", file=sys.stderr)
        return FAILED
    print(page(result))
    write(result, options)
    return INCOMPLETE if run.missing else 0


def _leave(number: int, frame: FrameType | None) -> None:
    # As an exception, so that servers are ended and folders removed.
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
