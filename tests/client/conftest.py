from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from brokers import several_brokers

import linn.sync
from linn.testing.broker_thread import BrokerThread

CONFIG = """
[broker]
default_storage = "dram"
message_bytes_max = "64KiB"

[exchanges.events]
type = "topic"
"""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a broker that all tests of a file share, in a thread of this process; or of a cluster's brokers."""
    with _running(pytestconfig) as url:
        yield url


@pytest.fixture
def client(broker: str) -> Iterator[linn.sync.Client]:
    """A blocking client of that broker."""
    with linn.sync.connect(broker) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A topic's name that no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture(scope="module")
def own_broker(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a broker, or of a cluster's, that only one file of tests uses."""
    with _running(pytestconfig) as url:
        yield url


@contextmanager
def _running(config: pytest.Config) -> Iterator[str]:
    if (kind := config.option.brokers) == "one":
        with BrokerThread(CONFIG) as thread:
            yield thread.url
    else:
        with several_brokers(kind, CONFIG) as several:
            yield several.url
