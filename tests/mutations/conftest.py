"""Fixtures of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mutated_run import Mutations


@pytest.fixture(scope="session")
def mutations() -> Iterator[Mutations]:
    """The process whose children run the seeds."""
    with Mutations() as running:
        yield running
