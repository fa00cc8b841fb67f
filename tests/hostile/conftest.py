"""One watched broker for each module of attacks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack import WatchedBroker

MEMORY_DISK = Path("/dev/shm")
"""A disk on which the bystander's rate does not depend on other users; Linux has it."""


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[WatchedBroker]:
    """`linn serve` with the module's `CONFIG`, and a bystander at work."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as folder:
        with WatchedBroker(Path(folder), getattr(request.module, "CONFIG", "")) as watched:
            yield watched
