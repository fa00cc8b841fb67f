"""Configuration of all tests: their tiers (`tiers.py`), the end of their processes (`processes.py`), the order of their
files, and the seeds of the soak.

Long files begin first, so that at the end no worker waits for another. `make test` hands whole files to its workers,
and by itself pytest-xdist would begin with the files that have most tests: a file with one test of half a minute would
come last, alone.

The soak draws a first seed each time and prints it, unless `SIM_SEEDS` says which seeds to run.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Generator
from pathlib import Path

import brokers
import processes
import pytest
import tiers
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
LONG = [
    "mutations/test_mutations.py",
    "models/test_models.py",
    "cluster/test_replication_under_faults.py",
    "broker/test_transaction_arrows.py",
    "broker/test_queue_lives.py",
    "cluster/test_leaders_under_faults.py",
    "cluster/test_transactions_under_faults.py",
    "storage/test_crash.py",
    "metadata_stores/test_store_walks.py",
    "client/test_exactly_once_consumer.py",
    "simulation/test_simulated_transactions.py",
    "models/test_controller_plan.py",
    "cluster/test_catalog_under_faults.py",
    "client/test_docstring_examples.py",
    "client/test_consumer.py",
    "clients/test_client_conformance.py",
    "examples/test_example_plugins.py",
    "examples/test_pages_as_typed.py",
    "cluster/test_operated_brokers.py",
    "workers/test_worker_folders.py",
    "cluster/test_controller_in_simulation.py",
    "client/test_seeking_consumers.py",
    "subscription/test_subscription_walk.py",
    "cluster/test_dead_letters_elsewhere.py",
    "subscription/test_subscription_model.py",
    "leadership/test_led_groups.py",
    "leadership/test_led_queue_walks.py",
    "broker/test_shared_subscriptions.py",
    "broker/test_producer_arrows.py",
    "plugins/test_plugin_skeleton.py",
    "testing_fixtures/test_pytest_plugin.py",
    "demo/test_demo.py",
]
"""The slowest test files, the longest first. All others follow in the order of their names."""
assert [name for name in LONG if not (TESTS / name).is_file()] == [], "renamed or gone"

# By itself Hypothesis fails an example that takes 0.2 s, and a test whose examples are generated slowly: on a busy
# machine that is any.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_RANKS = {TESTS / name: rank for rank, name in enumerate(LONG)}
SPARK = "tests/spark/"


# --- tiers -----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests of clients run against the brokers of a cluster."""
    text = "what clients are tested against: one broker, three of a cluster beside etcd, or two workers"
    parser.addoption("--brokers", choices=brokers.KINDS, default="one", help=text)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have nothing of the tiers that `-m` names: reading all takes a quarter of `make quick`."""
    return tiers.has_none_of(collection_path, {*config.option.markexpr.split(" or ")}) or None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark each test with its tier, before `-m` looks at the marks, and put the files in their order afterwards."""
    tiers.put_into_tiers(items)
    brokers.keep_shared(config, items)
    yield
    _put_in_order(items)


def _put_in_order(items: list[pytest.Item]) -> None:
    """Move files as a whole; the tests of a file keep their order."""
    items.sort(key=lambda item: -1 if item.nodeid.startswith(SPARK) else _RANKS.get(item.path, len(LONG)))


class OneSparkAtATime(LoadFileScheduling):
    """Hands whole files to workers, and all that run Spark to one worker.

    Two sessions side by side leave each other no time: Spark gives a Python worker ten seconds to start.
    """

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSparkAtATime:
    """Give the tests of Spark one worker, and so one session."""
    return OneSparkAtATime(config, log)


# --- seeds and memory ------------------------------------------------------------------------------------------------

ALLOCATED_MAX = 10_000
"""Objects, net, after which the collector looks at young ones; Python's own 700 is a few steps of one broker."""


def pytest_configure(config: pytest.Config) -> None:
    """Draw the first seed of a soak, once for all workers."""
    os.environ.setdefault("SIM_SEEDS", str(random.randrange(1 << 32)))
    config.pluginmanager.register(processes)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a soak test its `seeds`, a chunk at a time: those of SIM_SEEDS, `FIRST` or `FIRST-END`."""
    soak = metafunc.definition.get_closest_marker("soak")
    if soak is None or "seeds" not in soak.kwargs:
        return
    first, _, end = os.environ["SIM_SEEDS"].partition("-")
    seeds = range(int(first), int(end or int(first) + soak.kwargs["seeds"]))
    chunk = soak.kwargs["chunk"]
    chunks = [seeds[at : at + chunk] for at in range(0, len(seeds), chunk)]
    metafunc.parametrize("seeds", chunks, ids=[f"{each.start}-{each.stop}" for each in chunks])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print the seeds of a soak."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    soaks = [soak for item in session.items if (soak := item.get_closest_marker("soak")) is not None]
    if reporter is not None and any("seeds" in soak.kwargs for soak in soaks):
        reporter.write_line(f"seeds of this soak: SIM_SEEDS={os.environ['SIM_SEEDS']}")
    _freeze()


def _freeze() -> None:
    """Keep what was loaded and collected from the collector: looking through it again takes 6 % of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATED_MAX)
