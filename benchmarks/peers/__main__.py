"""`python -m benchmarks.peers`: measure all systems in rounds, print the page, and write it with its raw data."""

from __future__ import annotations

import argparse
import dataclasses
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from benchmarks.peers.peer import Peer, PeerMissing
from benchmarks.peers.plan import Plan, quick_plan
from benchmarks.peers.report import JSON, ROOT, document, page
from benchmarks.peers.result import Result, write
from benchmarks.peers.rounds import Rounds, minutes
from benchmarks.peers.systems import ALONE, SYSTEMS, peer
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


def positive(text: str) -> int:
    """The value of --rounds. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text} is no number of rounds from 1 to 100")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    made.add_argument(
        "--only", type=systems_of, metavar="NAMES", help=f"some of {','.join(SYSTEMS)}; default: those of one broker"
    )
    made.add_argument(
        "--rounds", type=positive, metavar="COUNT", help=f"turns of each system at each work (default: {Plan.rounds})"
    )
    made.add_argument("--quick", action="store_true", help="only see whether it works; the figures mean nothing")
    made.add_argument("--folder", type=Path, metavar="FOLDER", help="measure the disk that this folder is on")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every turn there")
    made.add_argument("--page", type=Path, metavar="FILE", help="write the page there, as Markdown")
    made.add_argument(
        "--docs", action="store_true", help=f"write {JSON}, and all that the documentation says of it; of a whole run"
    )
    return made


def plan_of(options: argparse.Namespace) -> Plan:
    """The amount of measuring."""
    folder = options.folder or Path(tempfile.gettempdir())
    plan = quick_plan(folder) if options.quick else Plan(folder)
    return dataclasses.replace(plan, rounds=options.rounds or plan.rounds)


def found(names: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    """The systems that are here, and why the others are not."""
    peers: list[Peer] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            peers.append(peer(name))
        except PeerMissing as error:
            missing[name] = str(error)
            _say(f"{name} is not measured: {error}")
    return peers, missing


def measure(peers: Sequence[Peer], missing: dict[str, str], plan: Plan, is_quick: bool) -> Result:
    """All of it."""
    from benchmarks.report import machine  # Its libraries are in the extra as well.

    about = machine() | {"system": f"{platform.system()} {platform.machine()}", "python": platform.python_version()}
    started = time.perf_counter()
    rounds = Rounds(peers, plan)
    rounds.run()
    return Result(
        facts=[each.facts for each in peers],
        versions=rounds.versions,
        samples=rounds.samples,
        warm_ups=rounds.warm_ups,
        idle_cores=rounds.idle_cores,
        missing=missing | rounds.failed,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        minutes=(time.perf_counter() - started) / 60,
        is_quick=is_quick,
        plan=dataclasses.asdict(plan) | {"folder": None},
        machine=about,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code. 0: all measured, 1: some were not, 2: none was."""
    made = parser()
    options = made.parse_args(arguments)
    if options.docs and (options.quick or options.only or (options.rounds or Plan.rounds) < Plan.rounds):
        made.error(f"--docs is for a whole run: without --quick and --only, and of {Plan.rounds} rounds or more")
    signal.signal(signal.SIGTERM, _leave)
    plan = plan_of(options)
    try:
        check_room(plan.folder)
    except (DiskTooFull, OSError) as error:
        _say(str(error))
        return FAILED
    peers, missing = found(options.only or ALONE)
    if not peers:
        _say("no system is here")
        return FAILED
    _say(f"{len(peers)} systems, about {minutes(peers, plan):.0f} minutes")
    result = measure(peers, missing, plan, options.quick)
    if not result.samples:
        _say("nothing was measured")
        return FAILED
    _write(result, options)
    return INCOMPLETE if result.missing else 0


def _write(result: Result, options: argparse.Namespace) -> None:
    print(page(result))
    if options.json is not None:
        write(options.json, result)
    if options.page is not None:
        options.page.write_text(page(result), encoding="utf-8")
    if options.docs:
        write(ROOT / JSON, result)
        document(result)


def _say(text: str) -> None:
    print(f"benchmarks.peers: {text}", file=sys.stderr, flush=True)


def _leave(number: int, frame: FrameType | None) -> None:
    # As an exception, so that servers are ended and folders removed.
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
