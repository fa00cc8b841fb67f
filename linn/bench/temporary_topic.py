"""A topic for the time of a measurement, so that no user's messages are touched."""

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
"""How long an interrupted command still tries to take its topic with it."""


@asynccontextmanager
async def temporary_topic(client: Client, what: str, settings: Mapping[str, Any]) -> AsyncIterator[str]:
    """Make a topic and delete it in the end, also when cancelled. Raises LinnError where it can't be made."""
    name = f"{what}-{os.urandom(4).hex()}"
    await client.admin.perform("topic.create", name=name, settings=dict(settings))
    try:
        yield name
    finally:
        with anyio.move_on_after(_DELETE_S, shield=True), contextlib.suppress(LinnError):
            await client.admin.delete_topic(name)
