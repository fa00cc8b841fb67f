"""The order of the test files: those that take long begin first, so that at the end no worker waits for the other.

`make test` hands whole files to its workers, and by itself pytest-xdist would begin with the files that have most
tests: a file with one test of half a minute would come last, alone.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONG = [
    "simulation/test_crashes.py",
    "storage/test_crash.py",
    "clients/test_client_conformance.py",
    "cli/test_operating_page.py",
    "examples/test_example_plugins.py",
    "walkthrough/test_walkthrough.py",
    "broker/test_dead_letters.py",
    "broker/test_durability.py",
    "broker/test_simulation.py",
    "plugins/test_plugin_skeleton.py",
    "testing_fixtures/test_pytest_plugin.py",
    "testing_fixtures/test_testing_pages.py",
    "subscription/test_subscription_model.py",
    "demo/test_demo.py",
    "test_docs.py",
    "test_site.py",
]
"""By far the longest are here, the longest first. All others follow in the order of their names."""
assert [name for name in LONG if not (TESTS / name).is_file()] == [], "renamed or gone"

_RANKS = {TESTS / name: rank for rank, name in enumerate(LONG)}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move files as a whole; the tests of a file keep their order."""
    items.sort(key=lambda item: _RANKS.get(item.path, len(LONG)))


ALLOCATED_MAX = 10_000
"""Objects, net, after which the collector looks at young ones; Python's own 700 is a few steps of one broker."""


def pytest_collection_finish() -> None:
    """What was loaded and collected stays: looking through it again and again takes 6 % of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATED_MAX)
