"""A consumer to which the broker decides a delivery, and which is lost before it says that it is done."""

from __future__ import annotations

import contextlib
from pathlib import Path

import anyio

import linn
from linn.participants import SqliteParticipant


class BrokenStore(SqliteParticipant):
    """A participant whose commit fails."""

    def commit(self, marks: object, floor: object) -> None:
        """Raise OSError."""
        raise OSError("the store is gone")


def decide_and_leave(url: str, topic: str, name: str, folder: Path, records: int = 1) -> int:
    """Have so many records of one batch decided to a consumer of this name, which then leaves; the delivery id."""

    async def main() -> int:
        async with linn.connect(url) as client:
            async with client.consumer(topic, name=name, exactly_once=BrokenStore(folder / "store.db")) as consumer:
                for _ in range(records):
                    await anext(consumer)
                with contextlib.suppress(OSError):
                    await consumer.commit()
            return (await client.admin.decided_deliveries(topic))["deliveries"][0]["delivery_id"]

    return anyio.run(main)
