"""Replies to inboxes of connections at other brokers."""

from __future__ import annotations

from linn.cluster.reading import Reading
from linn.core.batch.batch import RecordBatch
from linn.wire import messages as m


class Replying(Reading):
    """The port `PeerReplier`, in lanes that rest between two replies."""

    async def reply(self, node: int, to: str, batch: RecordBatch) -> None:
        """See `PeerReplier.reply`."""
        await self._ask(node, m.Reply(to), m.Done, [batch], is_repeatable=False)
