"""Moving messages out of a queue: `linn move` and `linn dead-letters replay`.

Laws: a message is settled at the source after its copy was confirmed at the target, so that a crash leaves it in both
and never in neither. Each partition is gone through once, from where it began up to where it ended at the start: so a
move ends whatever it passes over, whoever publishes meanwhile, and what it holds is bounded by one pull. What it passes
over goes back before anything is copied; the attempt does not count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import typer

from linn.cli.console import tell
from linn.cli.exit_code import complain, told_when_interrupted
from linn.cli.selection import Selects
from linn.cli.session import with_client
from linn.client.client import Client
from linn.client.consume.message import Message
from linn.client.consume.settling import Settled
from linn.client.produce.producer import Producer
from linn.core.batch.record import Record
from linn.core.errors.texts import counted
from linn.core.errors.tree import DeliveryNotCurrent, LinnError, TopicUnknown, Unroutable
from linn.wire.messages import Verdict

PULLED_MAX = 500
"""Messages that are held, and copied, at a time."""


class Target(NamedTuple):
    """Where a message goes: to a topic, or to an exchange."""

    name: str
    is_exchange: bool = False


def _no_home(message: Message) -> Target | None:
    return None


@dataclass(frozen=True)
class Move:
    """What to move, and where to."""

    source: str
    target: Target | None = None
    """Where all messages go; None: each says it."""
    home_of: Callable[[Message], Target | None] = _no_home
    """Where a message goes if there is no target for all; None: it says nothing, and stays."""
    copy_of: Callable[[Message], Record] = Message.record
    selects: Selects | None = None
    count_max: int | None = None


class Moving:
    """One run."""

    def __init__(self, move: Move, *, dry: bool) -> None:
        """`dry`: everything is given back, and only counted."""
        self._move = move
        self._dry = dry
        self._left = math.inf if move.count_max is None else move.count_max
        self._producers: dict[Target, Producer | None] = {}
        """By target; None where there is no such topic."""
        self._moved: Counter[str] = Counter()
        """Messages by the name of where they went."""
        self._under_way = 0
        """Messages whose copies may be stored, and that are not settled yet."""
        self._unroutable = 0
        self._homeless: Counter[str] = Counter()
        """Messages by the topic that they name and that is gone; "" where they name none."""
        self._kept = 0
        """Messages that others hold, or that are delayed."""

    def run(self, url: str, *, as_json: bool) -> None:
        """Move, and say what became of it. Raises LinnError, BadParameter, KeyboardInterrupt; Unroutable at the end."""
        with told_when_interrupted(lambda: complain(f"interrupted: {self._how_far()}")):
            with_client(url, self._work)
        tell(self._as_data(), self._in_words(), as_json=as_json)
        if self._unroutable:
            assert self._move.target is not None
            name, stay = self._move.target.name, "stays" if self._unroutable == 1 else "stay"
            raise Unroutable(
                f"{counted(self._unroutable, 'message')} {stay}: no binding of exchange {name} leads to a topic"
            )

    async def _work(self, client: Client) -> None:
        move = self._move
        topic = await client.admin.topic(move.source)
        if "queue" not in topic:
            raise typer.BadParameter(
                f"{move.source} is a stream, and nothing is taken from a stream; this copies it: "
                f"linn browse {move.source} --format json | linn publish TARGET --input json",
                param_hint="SOURCE",
            )
        try:
            async with AsyncExitStack() as stack:
                if move.target is not None:
                    await self._open(client, stack, move.target)
                consumer = client.consumer(move.source, mode="pull", renewal_max_s=math.inf)
                await stack.enter_async_context(consumer)
                for partition, bounds in enumerate(topic["partitions"]):
                    offset = bounds["start"]
                    while offset < bounds["end"] and self._left:
                        pulled_max = min(PULLED_MAX, bounds["end"] - offset)
                        batches = await consumer.pull(pulled_max, partition=partition, start=offset)
                        if not batches:
                            break
                        offset = batches[-1].end_offset
                        await self._take(client, stack, [message for batch in batches for message in batch])
        except LinnError as error:
            if self._moved or self._under_way:
                error.text += f"; {self._how_far()}"
            raise
        queue = await client.admin.subscription(move.source)
        self._kept = queue["leased"] + queue["delayed"]

    async def _take(self, client: Client, stack: AsyncExitStack, messages: Sequence[Message]) -> None:
        """Move what is to be moved of these messages, and give back the rest."""
        chosen: dict[Target, list[Message]] = {}
        rest: list[Message] = []
        for message in messages:
            target = await self._target(client, stack, message)
            (rest if target is None else chosen.setdefault(target, [])).append(message)
        if self._dry:
            await self._give_back(messages)
            self._moved.update({target.name: len(group) for target, group in chosen.items()})
            return
        await self._give_back(rest)
        held = {message.offset: message for group in chosen.values() for message in group}
        try:
            for target, group in chosen.items():
                producer = self._producers[target]
                assert producer is not None
                self._under_way = len(group)
                self._moved[target.name] += await self._settle(group, await self._copy(producer, group))
                self._under_way = 0
                for message in group:
                    del held[message.offset]
        finally:
            _release(held.values())  # Sent when the consumer leaves.

    async def _target(self, client: Client, stack: AsyncExitStack, message: Message) -> Target | None:
        """Where a message goes; None: it is passed over."""
        move = self._move
        if not self._left or (move.selects is not None and not move.selects(message)):
            return None
        target = move.target or move.home_of(message)
        if target is not None and target not in self._producers:
            with suppress(TopicUnknown):
                await self._open(client, stack, target)
        if target is None or self._producers.setdefault(target, None) is None:
            self._homeless["" if target is None else target.name] += 1
            return None
        self._left -= 1
        return target

    async def _open(self, client: Client, stack: AsyncExitStack, target: Target) -> None:
        """Have a producer for a target. Raises TopicUnknown, ExchangeUnknown, also where topics are made when used."""
        if target.is_exchange:
            await client.admin.exchange(target.name)
            producer = client.producer(exchange=target.name)
        else:
            await client.admin.topic(target.name)
            producer = client.producer(target.name)
        self._producers[target] = await stack.enter_async_context(producer)

    async def _copy(self, producer: Producer, messages: Sequence[Message]) -> set[int]:
        """Publish copies, and wait until they are confirmed; the places of those that no topic takes."""
        records = [self._move.copy_of(message) for message in messages]
        try:
            await producer.publish_many(
                [record.value for record in records],
                keys=[record.key for record in records] if any(record.key is not None for record in records) else None,
                routing_keys=[record.routing_key for record in records],
                labels=[record.labels for record in records],
                headers=[record.headers for record in records],
                ids=[message.id for message in messages],
                timestamp_ms=[record.timestamp_ms for record in records],
                mandatory=True,
            )
        except Unroutable as error:
            return set(error.indexes)
        return set()

    async def _settle(self, messages: Sequence[Message], returned: set[int]) -> int:
        """Settle the messages that have a copy; how many. Raises DeliveryNotCurrent: they are in both places."""
        for settled in [message.ack() for place, message in enumerate(messages) if place not in returned]:
            await settled
        await self._give_back([messages[place] for place in sorted(returned)])
        self._unroutable += len(returned)
        return len(messages) - len(returned)

    async def _give_back(self, messages: Iterable[Message]) -> None:
        for settled in _release(messages):
            with suppress(DeliveryNotCurrent):  # Its lease was over, so that it is back already.
                await settled

    def _how_far(self) -> str:
        said = f"{counted(self._moved.total(), 'message')} moved"
        return said + (f", and {self._under_way:,} more may be in both places" if self._under_way else "")

    def _as_data(self) -> dict[str, Any]:
        return {
            "source": self._move.source,
            "moved": self._moved.total(),
            "to": dict(self._moved),
            "stay": self._unroutable + self._homeless.total(),
            "dry_run": self._dry,
        }

    def _in_words(self) -> str:
        places = [f"{number:,} to {name}" for name, number in sorted(self._moved.items())]
        if len(places) == 1:
            places = [f"to {name}" for name in self._moved]
        done = "would move" if self._dry else "moved"
        said = f"{done} {counted(self._moved.total(), 'message')} from {self._move.source}"
        said += f" {', '.join(places)}" if places else ""
        if self._kept:
            said += f"; {self._kept:,} that others hold or that are delayed stay"
        if self._homeless:
            gone = ", ".join(sorted(name for name in self._homeless if name))
            why = [f"there is no topic {gone}"] if gone else []
            why += [f"{self._homeless['']:,} name none"] if self._homeless[""] else []
            said += f"; {counted(self._homeless.total(), 'message')} stay: {', '.join(why)}; --to TOPIC moves them"
        return said


def _release(messages: Iterable[Message]) -> list[Settled]:
    """Give messages back to their queue; another consumer gets them as if they had never been here."""
    return [message.batch._settle(message.index, message.index + 1, Verdict.RELEASE, 0) for message in messages]
