"""One Spark session for all tests of a process, since it takes seconds to start, and a broker for each file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from spark_session import made_session

import linn.sync
from linn.testing.broker_thread import BrokerThread


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session with linn's data source."""
    session = made_session()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A broker for the tests of one file, with its `CONFIG` if it has one."""
    with BrokerThread(getattr(request.module, "CONFIG", "")) as broker:
        yield broker.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[linn.sync.Client]:
    """A client of that broker."""
    with linn.sync.connect(url) as client:
        yield client


@pytest.fixture
def topic(client: linn.sync.Client, request: pytest.FixtureRequest) -> str:
    """A stream of three partitions for one test."""
    name = str(request.node.name.partition("[")[0])
    client.admin.create_topic(name, kind="stream", partitions=3)
    return name
