"""Publishing from the command line: what a source gives, at a rate, until all of it is confirmed.

Law: memory is bounded by what the source gives at a time and what the client has under way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from linn.cli.console import tell
from linn.cli.exit_code import complain, told_when_interrupted
from linn.cli.outgoing import Outgoing
from linn.cli.pace import Pace
from linn.cli.progress import Advance, progress
from linn.cli.session import with_client
from linn.cli.source import Source
from linn.client.client import Client
from linn.client.produce.producer import Producer
from linn.client.produce.receipt import BulkReceipt, Offsets
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError, MessageTooLarge, Unroutable


class Publishing:
    """`linn publish`."""

    def __init__(
        self, url: str, target: str, *, to_exchange: bool, mandatory: bool, rate: float | None, as_json: bool
    ) -> None:
        """`mandatory`: it fails with the first messages that no topic takes. `rate`: messages a second at most."""
        self._url = url
        self._target = target
        self._to_exchange = to_exchange
        self._mandatory = mandatory
        self._rate = rate
        self._as_json = as_json
        self._total = BulkReceipt(0, None if to_exchange else target, {}, 0)
        self._under_way = 0
        """Messages that nobody has confirmed yet."""

    def run(self, source: Source) -> None:
        """Publish it all; say what became of it. Raises LinnError."""
        # A bar would run over what somebody types.
        shown = not (source.is_stdin and sys.stdin.isatty())
        with (
            told_when_interrupted(self._say_how_far),
            progress(f"publishing to {self._target}", source.total, shown=shown) as advance,
        ):
            with_client(self._url, partial(self._work, source, advance))
        tell(self._as_data(), self._in_words(), as_json=self._as_json)

    async def _work(self, source: Source, advance: Advance, client: Client) -> None:
        place: dict[str, Any] = {"exchange" if self._to_exchange else "topic": self._target}
        pace = Pace(self._rate)
        async with aclosing(source.messages()) as given, client.producer(**place) as producer:
            async for messages in given:
                done = 0
                while done < len(messages):
                    room = await pace.room(len(messages) - done)
                    await self._publish(producer, messages[done : done + room])
                    done += room
                    advance(room)

    async def _publish(self, producer: Producer, messages: Sequence[Outgoing]) -> None:
        self._under_way = len(messages)
        try:
            self._total = added(self._total, await self._receipt(producer, messages))
            self._under_way = 0
        except Unroutable as error:
            raise self._returned(error, len(messages)) from error
        except LinnError as error:
            if isinstance(error, MessageTooLarge):
                error.text = self._too_large(messages, producer.message_bytes_max) or error.text
            before = self._total.count
            if before:
                error.text += f"; confirmed before: {counted(before, 'message')}"
            raise

    def _say_how_far(self) -> None:
        said = f"interrupted: {counted(self._total.count, 'message')} confirmed"
        complain(f"{said}, {self._under_way:,} more may be stored" if self._under_way else said)

    def _too_large(self, messages: Sequence[Outgoing], bytes_max: int) -> str | None:
        """What the client says of the last messages, said of all; None where only the broker knows which it is."""
        for number, message in enumerate(messages, self._total.count + 1):
            if message.size > bytes_max:
                return (
                    f"message {number:,} has {message.size:,} bytes, more than the message_bytes_max of {bytes_max:,}"
                )
        return None

    def _returned(self, error: Unroutable, count: int) -> Unroutable:
        """What the client says of the last `count` messages, said of all."""
        before, returned = self._total.count, len(error.indexes)
        places = [before + index for index in error.indexes]
        return Unroutable(
            f"no binding of exchange {self._target} leads message {places[0] + 1:,} to a topic"
            + (f", nor {returned - 1:,} after it" if returned > 1 else "")
            + f"; confirmed: {counted(before + count - returned, 'message')}, {places[0]:,} of them before it",
            places,
        )

    async def _receipt(self, producer: Producer, messages: Sequence[Outgoing]) -> BulkReceipt:
        first = messages[0]
        alike = all(message.routing_key == first.routing_key and message.labels == first.labels for message in messages)
        return await producer.publish_many(
            [message.value for message in messages],
            keys=None if all(message.key is None for message in messages) else [message.key for message in messages],
            routing_keys=first.routing_key if alike else [message.routing_key for message in messages],
            labels=first.labels if alike else [message.labels for message in messages],
            headers=[message.headers for message in messages] if any(m.headers for m in messages) else None,
            mandatory=self._mandatory,
        )

    def _as_data(self) -> dict[str, Any]:
        total = self._total
        offsets = {str(partition): list(offsets) for partition, offsets in total.partitions.items()}
        return {"count": total.count, "topic": total.topic, "copies": total.copies, "partitions": offsets}

    def _in_words(self) -> str:
        total = self._total
        said = f"published {counted(total.count, 'message')} to {self._target}"
        if self._to_exchange and total.count:
            stored = f"{counted(total.copies, 'copy')} stored" if total.copies else "no binding took any"
            return f"{said}: {stored}"
        places = [
            f"partition {partition}, offset{'s' * (first != last)} {first}{f' to {last}' * (first != last)}"
            for partition, (first, last) in sorted(total.partitions.items())
        ]
        return f"{said} ({'; '.join(places)})" if places else said


def added(total: BulkReceipt, receipt: BulkReceipt) -> BulkReceipt:
    """Two receipts of the same place as one."""
    partitions = dict(total.partitions)
    for partition, offsets in receipt.partitions.items():
        known = partitions.get(partition)
        partitions[partition] = offsets if known is None else Offsets(known.first, offsets.last)
    copies = (total.copies or 0) + (receipt.copies or 0)
    return BulkReceipt(total.count + receipt.count, total.topic, partitions, copies)
