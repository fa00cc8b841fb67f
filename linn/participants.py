"""Participants of exactly-once delivery: stores that take effects and the marks of their records in one transaction.

`SqliteParticipant` needs no other package. For another store write a class with the methods of `Participant` or
`AsyncParticipant`, and test it with `linn.testing.participants`. Participants are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linn.client.participants.files import FileParticipant
    from linn.client.participants.participant import NO_FLOOR, AsyncParticipant, Floor, Mark, Participant, Place
    from linn.client.participants.postgres import AsyncPostgresParticipant, PostgresParticipant
    from linn.client.participants.redis import RedisParticipant
    from linn.client.participants.sqlite import SqliteParticipant

__all__ = [
    "NO_FLOOR",
    "AsyncParticipant",
    "AsyncPostgresParticipant",
    "FileParticipant",
    "Floor",
    "Mark",
    "Participant",
    "Place",
    "PostgresParticipant",
    "RedisParticipant",
    "SqliteParticipant",
]

_MODULES = {
    "AsyncPostgresParticipant": "postgres",
    "FileParticipant": "files",
    "PostgresParticipant": "postgres",
    "RedisParticipant": "redis",
    "SqliteParticipant": "sqlite",
}
"""Modules of `linn.client.participants` by participant."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'linn.participants' has no attribute {name!r}")
    return getattr(importlib.import_module(f"linn.client.participants.{_MODULES.get(name, 'participant')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
