"""The tiers of the tests, and the actions that are forbidden in each.

A test belongs to the tier that it is marked with, or that `WHERE` has for its file or its folder, or to `test`. In the
tiers that every change must pass, no verdict depends on how fast the machine is and no process of linn is started: a
test that does either fails, and is told which mark it needs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

import pytest
import trio

TESTS = Path(__file__).parent
TIERS = {
    "quick": "pure, or in this process, and short; `make quick`",
    "test": "in this process, whatever the machine: broker, clients, storage, simulations, docs; `make test`",
    "system": "real processes, signals, the command line, other languages, installations; `make system`",
    "perf": "whose verdict depends on a clock, alone on the machine; `make perf`",
    "soak": "long, on fresh seeds; `make soak`",
}
DEFAULT = "test"
STRICT = ("quick", "test")
"""The tiers whose tests neither look at a clock nor start a process of linn."""
WHERE = {
    "batch": "quick",
    "batch/test_flat_routes.py": "test",
    "batch/test_gaps.py": "test",
    "batch/test_hostile_batches.py": "test",
    "batch/test_round_trip.py": "test",
    "batch/test_slices.py": "test",
    "benchmarks": "system",
    "benchmarks/test_peers.py": "quick",
    "benchmarks/test_peers_report.py": "quick",
    "benchmarks/test_ratios.py": "quick",
    "broker/test_fairness.py": "perf",
    "broker/test_many_connections.py": "system",
    "broker/test_stop_under_load.py": "system",
    "cli": "system",
    "cli/test_arguments.py": "test",
    "cli/test_cli_reference.py": "test",
    "cli/test_definition_text.py": "quick",
    "cli/test_exit_code.py": "test",
    "cli/test_lint.py": "test",
    "clients": "system",
    "config": "quick",
    "crashes": "system",
    "demo": "system",
    "deploy": "system",
    "demo/test_counts.py": "test",
    "demo/test_payments.py": "test",
    "demo/test_child_processes.py": "quick",
    "demo/test_spark_counts.py": "quick",
    "demo/test_view.py": "quick",
    "env": "quick",
    "examples": "system",
    "exchanges": "quick",
    "exchanges/test_exchange_conformance.py": "test",
    "exchanges/test_routing_model.py": "test",
    "exchanges/test_exchange_conformance.py::test_no_message_takes_long": "perf",
    "group": "quick",
    "hostile": "system",
    "hostile/test_hostile_page.py": "quick",
    "linearizability": "system",
    "models": "test",
    "mutations": "system",
    "mutations/test_mutation_seam.py": "test",
    "observability/test_exposition.py": "quick",
    "observability/test_metric_registry.py": "quick",
    "observability/test_monitoring_http.py": "system",
    "participants/test_postgres_participant.py": "system",
    "participants/test_redis_participant.py": "system",
    "plugins": "quick",
    "plugins/test_plugin_skeleton.py": "system",
    "predicates": "quick",
    "predicates/test_predicate_parser.py": "test",
    "predicates/test_predicate_truth.py": "test",
    "protocol": "quick",
    "spark": "quick",
    "spark/test_spark_processes.py": "system",
    "spark/test_driver.py": "system",
    "spark/test_driver_to_topics.py": "system",
    "spark/test_jdbc_sink.py": "system",
    "spark/test_json_values.py": "system",
    "spark/test_lake_sinks.py": "system",
    "spark/test_output_folder.py": "system",
    "spark/test_spark_connect.py": "system",
    "spark/test_kafka_oracle.py": "soak",
    "spark/test_spark_source.py": "test",
    "spark/test_write_job.py": "test",
    "spark/test_spark_cluster.py": "system",
    "spark/test_spark_connections.py": "system",
    "spark/test_spark_kills.py": "system",
    "spark/test_spark_memory.py": "soak",
    "spark/test_spark_page.py": "system",
    "spark/test_spark_sink.py": "system",
    "spark/test_spark_stream.py": "system",
    "subscription": "quick",
    "subscription/test_semantics_conformance.py": "test",
    "subscription/test_offset_ranges.py": "test",
    "subscription/test_subscription_model.py": "test",
    "subscription/test_subscription_walk.py": "test",
    "test_front_page.py": "system",
    "test_house.py": "quick",
    "test_prose.py": "quick",
    "test_tiers.py": "quick",
    "testing_fixtures/test_crashable_broker.py": "system",
    "testing_fixtures/test_pytest_plugin.py": "system",
    "transactions": "quick",
}
"""Folders, and what is in another tier than its folder: files, and tests that a file has from a conformance suite.

A new file needs no line where its folder's holds.
"""
assert [name for name in WHERE if not (TESTS / name.partition("::")[0]).exists()] == [], "renamed or gone"

MEASURED = (
    "batch/test_hostile_batches.py",
    "batch/test_routes.py",
    "broker/test_stop_under_load.py",
    "crashes/test_recovery_time.py",
    "fuzz",
    "hostile",
)
"""Tests that `make perf` runs as well, with bounds on time that they don't have otherwise (see `stopwatch.py`)."""
CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time")
OF_SYSTEM = ("linn", "pip", "venv")
"""Programs and modules of Python that only tests of the tier `system` start."""
SHELLS = ("sh", "bash")
MEASURES = "MEASURE" in os.environ
"""Whether bounds on time hold: `make perf` and `make soak` say so."""


class WrongTier(BaseException):
    """A test does what its tier does not allow; of BaseException, for what a test expects is an Exception."""


def places_of(path: Path, test: str = "") -> list[str]:
    """A test, its file and its folders as `WHERE` may name them, from the inside out."""
    inside = PurePath(path.relative_to(TESTS))
    return [f"{inside}::{test}", str(inside), *map(str, inside.parents)]


def tier_of(item: pytest.Item) -> str:
    """The one tier of a test. Raises UsageError where it is marked with two."""
    marked = sorted({marker.name for marker in item.iter_markers() if marker.name in TIERS})
    if len(marked) > 1:
        raise pytest.UsageError(f"{item.nodeid} is marked {' and '.join(marked)}: a test is in one tier")
    places = places_of(item.path, getattr(item, "originalname", item.name))
    found = [WHERE[name] for name in places if name in WHERE]
    return [*marked, *found, DEFAULT][0]


def has_none_of(path: Path, wanted: set[str]) -> bool:
    """Tell whether a file surely has no test of these tiers: its own is another, and no mark in it is theirs."""
    if not path.name.startswith("test_") or not wanted or not wanted <= {*TIERS}:
        return False
    places = places_of(path)
    whole = next((WHERE[name] for name in places if name in WHERE), DEFAULT)
    single = {tier for name, tier in WHERE.items() if name.startswith(f"{places[1]}::")}
    text = path.read_text(encoding="utf-8")
    marks = {*(f"mark.{tier}" for tier in wanted), *(["tiered("] if "quick" in wanted else [])}
    return not wanted & {whole, *single} and not any(mark in text for mark in marks)


def put_into_tiers(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and with `measured` where it is."""
    for item in items:
        tier = tier_of(item)
        if item.get_closest_marker(tier) is None:
            item.add_marker(tier)
        if tier != "soak" and any(name in MEASURED for name in places_of(item.path)):
            item.add_marker("measured")


# --- what the tests of a tier must not do ----------------------------------------------------------------------------

_running: list[pytest.Item] = []
"""The test that runs now; none while tests are collected."""


@contextlib.contextmanager
def watched(item: pytest.Item) -> Iterator[None]:
    """Hold a test, with its fixtures, to its tier."""
    _running[:] = [item]
    try:
        yield
    finally:
        _running.clear()


def is_measured() -> bool:
    """Whether the test that runs is held to bounds on time, which it must be marked for."""
    assert _running == [] or _running[0].get_closest_marker("measured") or tier_of(_running[0]) in ("perf", "soak"), (
        "a bound on time holds in `make perf` only: mark the test `measured`"
    )
    return MEASURES


def _refuse(what: str, mark: str) -> None:
    """Fail the test that runs if its tier is strict."""
    if not _running or tier_of(_running[0]) not in STRICT or (MEASURES and _running[0].get_closest_marker("measured")):
        return
    raise WrongTier(
        f"{_running[0].nodeid} is in the tier `{tier_of(_running[0])}`, and {what}. Mark it "
        f"@pytest.mark.{mark}, or give its file a line in WHERE of tests/tiers.py."
    )


def _starts_a_process(event: str, arguments: tuple[object, ...]) -> None:
    if event != "subprocess.Popen" or not _running:
        return
    program, command = str(arguments[0]), arguments[1]
    words = [str(word) for word in command] if isinstance(command, list | tuple) else [str(command)]
    if PurePath(program).name in SHELLS:
        words = " ".join(words).split()
    programs = sorted({PurePath(word).name for word in words} & {*OF_SYSTEM})
    if programs:
        _refuse(f"starts a process of {' and '.join(programs)}", "system")


def _time_is_virtual() -> bool:
    return type(trio.lowlevel.current_clock()).__name__ != "SystemClock"


def _looked_at(name: str, clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that tests of a strict tier can't read, while linn and its libraries can."""
    is_trios = clock is trio.current_time
    ours = (f"{TESTS}{os.sep}", f"{TESTS.parent}{os.sep}linn{os.sep}testing{os.sep}exchanges.py")

    def read() -> float:
        if _running and sys._getframe(1).f_code.co_filename.startswith(ours) and not (is_trios and _time_is_virtual()):
            _refuse(f"reads {name}(), so that its verdict depends on the machine (or see tests/stopwatch.py)", "perf")
        return clock()

    return read


def keep_watch() -> None:
    """Let processes and clocks be refused from now on."""
    sys.addaudithook(_starts_a_process)
    for name in CLOCKS:
        setattr(time, name, _looked_at(f"time.{name}", getattr(time, name)))
    trio.current_time = _looked_at("trio.current_time", trio.current_time)
