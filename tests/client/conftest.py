from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

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
def broker() -> Iterator[str]:
    """The URL of a broker that all tests of a file share, in a thread of this process."""
    with BrokerThread(CONFIG) as running:
        yield running.url


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
def own_broker() -> Iterator[str]:
    """The URL of a broker that only one file of tests uses."""
    with BrokerThread(CONFIG) as running:
        yield running.url
