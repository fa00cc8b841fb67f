"""The verbs about open connections."""

from __future__ import annotations

from linn import verbs
from linn.core.connections.connections import Connections
from linn.core.errors.tree import LimitExceeded
from linn.core.loop.long_work import LongWork
from linn.descriptions import ConnectionDescription

REASON_CHARACTERS_MAX = 1_000
"""Limit of the reason sent to a client when an operator closes its connection."""


class ConnectionAdministration:
    """Open connections, shown and closed by an operator."""

    def __init__(self, connections: Connections, long_work: LongWork) -> None:
        self._connections = connections
        self._long_work = long_work

    async def list_all(self, _: verbs.NoArguments) -> list[ConnectionDescription]:
        """All open connections, oldest first."""
        return await self._long_work.run(self._connections.as_json(), immediate=True)

    async def close(self, asked: verbs.ConnectionClose) -> verbs.Nothing:
        """Close a connection. Raises ConnectionUnknown, LimitExceeded."""
        if len(asked.reason) > REASON_CHARACTERS_MAX:
            raise LimitExceeded(f"a reason of more than {REASON_CHARACTERS_MAX} characters")
        self._connections.check(asked.number)
        if not asked.validate_only:
            self._connections.close(asked.number, asked.reason)
        return {}
