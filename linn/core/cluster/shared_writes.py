"""Writes to the metadata store that go together, because they came while another one was under way (group commit).

Law: a write has its own outcome. One that is refused for its conditions refuses no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import trio

from linn.core.cluster.plan import KEYS_MAX, Write
from linn.core.errors.metadata import MetadataError, MetadataUnknown, RevisionConflict
from linn.core.metadata.store import MetadataStore


class _Waiting:
    """A write that waits."""

    __slots__ = ("outcome", "write")

    def __init__(self, write: Write) -> None:
        self.write = write
        self.outcome: int | MetadataError | None = None
        """The revision, or why there is none."""


class SharedWrites:
    """The writes of many tasks, in order."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._turn = trio.StrictFIFOLock()

    async def put(self, write: Write) -> int:
        """Make a write, perhaps together with others; returns its revision.

        Raises RevisionConflict, MetadataUnknown, MetadataError. Cancellation: it may be made.
        """
        own = _Waiting(write)
        self._waiting.append(own)
        async with self._turn:
            while own.outcome is None:
                await self._put(self._next())
        if isinstance(own.outcome, MetadataError):
            raise copy(own.outcome)
        return own.outcome

    def _next(self) -> list[_Waiting]:
        """Take the writes that go next: as many as fit into one, as long as they agree about common keys."""
        keys_max, taken = min(KEYS_MAX, self._store.changes_max), list[_Waiting]()
        conditions: dict[str, int] = {}
        for waiting in self._waiting:
            more = waiting.write.conditions
            agrees = all(conditions.get(key, revision) == revision for key, revision in more.items())
            if taken and (not agrees or len({**conditions, **more}) > keys_max):
                break
            conditions |= more
            taken.append(waiting)
        del self._waiting[: len(taken)]
        return taken

    async def _put(self, waiting: Sequence[_Waiting]) -> None:
        """Make writes together, and each alone if one of them conflicts. Cancellation: their outcome is unknown."""
        changes = {key: value for each in waiting for key, value in each.write.changes.items()}
        conditions = {key: revision for each in waiting for key, revision in each.write.conditions.items()}
        outcome: int | MetadataError = MetadataUnknown("the task that wrote it together with others was ended")
        try:
            outcome = await self._store.put_all(changes, conditions)
        except RevisionConflict as error:
            if len(waiting) > 1:
                for each in waiting:
                    await self._put([each])
            outcome = error
        except MetadataError as error:
            outcome = error
        finally:
            for each in waiting:
                each.outcome = each.outcome or outcome
