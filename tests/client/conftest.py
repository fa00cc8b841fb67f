from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from linn.testing.process import BrokerProcess

CONFIG = """
[broker]
default_storage = "dram"
message_bytes_max = "64KiB"

[exchanges.events]
type = "topic"
"""

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real broker in a process of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), CONFIG) as process:
        yield process.url


@pytest.fixture
def name() -> str:
    """A topic's name that no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a broker that only one file of tests uses."""
    with BrokerProcess(tmp_path_factory.mktemp("own"), CONFIG) as process:
        yield process.url
