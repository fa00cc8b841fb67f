"""`python -m benchmarks`: measure, show the results, and check the targets."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from benchmarks.blocking_client import blocking_lines
from benchmarks.client import client_lines
from benchmarks.cluster.lines import cluster_lines
from benchmarks.consume import consume_lines
from benchmarks.exactly_once import exactly_once_lines
from benchmarks.groups import group_lines
from benchmarks.idempotence import idempotence_lines
from benchmarks.latency import latency_lines
from benchmarks.line import Line
from benchmarks.load import LoadFailed
from benchmarks.matrix.chart import NoPlots
from benchmarks.matrix.lines import matrix_lines
from benchmarks.matrix.report import NoFolder, prepare_report, write_report
from benchmarks.orders import order_lines
from benchmarks.plan import Plan, quick_plan
from benchmarks.publish import publish_lines
from benchmarks.report import result_of, show, write_json
from benchmarks.routing import routing_lines
from benchmarks.schedule import schedule_lines
from benchmarks.security import security_lines
from benchmarks.servers import DiskTooFull
from benchmarks.spark import spark_lines
from benchmarks.start import start_lines
from benchmarks.tls import tls_lines
from linn.core.errors.tree import LinnError

GROUPS: dict[str, Callable[[Plan], Iterator[Line]]] = {
    "publish": publish_lines,
    "consume": consume_lines,
    "client": client_lines,
    "blocking": blocking_lines,
    "latency": latency_lines,
    "tls": tls_lines,
    "security": security_lines,
    "idempotence": idempotence_lines,
    "start": start_lines,
    "routing": routing_lines,
    "groups": group_lines,
    "orders": order_lines,
    "schedule": schedule_lines,
    "exactly-once": exactly_once_lines,
    "spark": spark_lines,
    "cluster": cluster_lines,
    "matrix": matrix_lines,
}
MATRIX = "matrix"
ON_REQUEST = ("spark", "cluster", MATRIX)
"""Groups that are measured only on request: they take long, Spark's fetches the JARs of Kafka, and a cluster needs
etcd."""
MISSED = 1
FAILED = 2


def _group(name: str) -> str:
    """Check the name of a group. `choices` refuses an empty list before Python 3.12. Raises ArgumentTypeError."""
    if name not in GROUPS:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(GROUPS)}")
    return name


def parser() -> argparse.ArgumentParser:
    """Make the parser of the options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.add_argument("groups", nargs="*", type=_group, metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    made.add_argument("--rounds", type=int, metavar="COUNT", help="turns of floor and linn per line")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    made.add_argument("--report", type=Path, metavar="FOLDER", help=f"write the page and plots of {MATRIX} there")
    made.add_argument("--folder", type=Path, metavar="FOLDER", help="measure the disk that this folder is on")
    made.add_argument("--whole", action="store_true", help="measure all combinations of the group cluster")
    made.add_argument("--quick", action="store_true", help="only see whether it works; the figures mean nothing")
    made.add_argument("--strict", action="store_true", help=f"end with {MISSED} if a target is missed")
    return made


def plan_of(options: argparse.Namespace) -> Plan:
    """The extent of the measurement."""
    folder = options.folder or Path(tempfile.gettempdir())
    plan = quick_plan(folder) if options.quick else Plan(folder)
    plan = dataclasses.replace(plan, cluster=dataclasses.replace(plan.cluster, is_whole=options.whole))
    if not options.rounds:
        return plan
    rounds = max(1, options.rounds)
    matrix, cluster = dataclasses.replace(plan.matrix, rounds=rounds), dataclasses.replace(plan.cluster, rounds=rounds)
    return dataclasses.replace(plan, rounds=rounds, spark_rounds=rounds, matrix=matrix, cluster=cluster)


def measure(plan: Plan, groups: Sequence[str]) -> list[Line]:
    """Measure all lines of the groups, and report progress."""
    lines: list[Line] = []
    for group in groups:
        print(f"measuring {group} ...", file=sys.stderr, flush=True)
        for line in GROUPS[group](plan):
            lines.append(line)
            if group == MATRIX:
                print(f"  {line.name}: {line.linn:,.2f} {line.detail_unit}", file=sys.stderr, flush=True)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code. 0: measured, 1: with --strict, a target was missed, 2: it could not be measured."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    started = time.perf_counter()
    groups = options.groups or [group for group in GROUPS if group not in ON_REQUEST]
    plan = plan_of(options)
    load_before = os.getloadavg()
    if options.report is not None and MATRIX not in groups:
        print(f"benchmarks: --report is of the group {MATRIX}: name it as well", file=sys.stderr)
        return FAILED
    try:
        if options.report is not None:
            prepare_report(options.report)
        lines = measure(plan, groups)
    except (DiskTooFull, LoadFailed, LinnError, NoPlots, NoFolder) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return FAILED
    show(lines)
    said = {"groups": groups, "quick": options.quick} | dataclasses.asdict(plan) | {"folder": None}
    result = result_of(lines, said, time.perf_counter() - started) | {"load_average_before": load_before}
    if options.json is not None:
        write_json(options.json, result)
    if options.report is not None:
        write_report(options.report, [line for line in lines if line.group == MATRIX], result)
    return MISSED if options.strict and any(line.is_met is False for line in lines) else 0


def _leave(number: int, frame: FrameType | None) -> None:
    # As an exception, so that processes are ended and folders removed.
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
