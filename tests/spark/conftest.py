"""One Spark session for all tests that run in one process: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from spark_session import made_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session with linn's data source."""
    session = made_session()
    yield session
    session.stop()
