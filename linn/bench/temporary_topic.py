"""Temporary topic of a measurement, so that no user's messages are affected."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from linn.client.client import Client
from linn.core.errors.tree import LinnError

_DELETE_S = 5.0
"""Time limit for deleting the topic of an interrupted command."""


@asynccontextmanager
async def temporary_topic(client: Client, prefix: str, settings: Mapping[str, Any]) -> AsyncIterator[str]:
    """Create a topic, and delete it in the end, also when cancelled. Raises LinnError where it can't be created."""
    name = f"{prefix}-{os.urandom(4).hex()}"
    await client.admin.perform("topic.create", name=name, settings=dict(settings))
    try:
        yield name
    finally:
        with anyio.move_on_after(_DELETE_S, shield=True), contextlib.suppress(LinnError):
            await client.admin.delete_topic(name)
