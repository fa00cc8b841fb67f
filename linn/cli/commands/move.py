"""`linn move`: move messages out of a queue; `linn dead-letters replay` moves in the same way.

Laws: a message is settled at the source after its copy was confirmed at the target, so that a crash leaves it in both
and never in neither. Each partition is traversed once, from its start to its end at the beginning of the run: so a move
ends although it skips messages and producers go on, and it holds at most one pull of messages. Skipped messages are
released before anything is copied, and the attempt does not count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from linn.cli.completion import exchange_names, queue_names, topic_names
from linn.cli.exit_code import complain, on_interrupt
from linn.cli.options import DEFAULT_URL, CountMax, DryRun, Json, Url, Where
from linn.cli.render.console import print_result
from linn.cli.session import with_client
from linn.core.errors.texts import counted
from linn.core.errors.tree import ConfigError, DeliveryNotCurrent, LinnError, TopicUnknown, Unroutable

if TYPE_CHECKING:
    from linn.cli.message_filter import MessageFilter
    from linn.client.client import Client
    from linn.client.consume.message import Message
    from linn.client.consume.settling import Settled
    from linn.client.produce.producer import Producer
    from linn.core.batch.record import Record

PULLED_MAX = 500
"""Messages held and copied at a time."""

SourceName = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Name of the source queue.", autocompletion=queue_names)
]
TargetName = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="Name of the target topic, unless --exchange is given.",
        show_default=False,
        autocompletion=topic_names,
    ),
]
ExchangeName = Annotated[
    str | None, typer.Option("--exchange", metavar="NAME", help="Move to this exchange.", autocompletion=exchange_names)
]


def move(
    source: SourceName,
    target: TargetName = None,
    exchange: ExchangeName = None,
    where: Where = None,
    count: CountMax = None,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Move the waiting messages of a queue. Each is settled there once its copy is confirmed, so that none is lost.

    A copy keeps value, key, routing key, labels, headers, id and time; the labels of a dead letter become headers. If
    the command is killed, the few messages in progress may be in both places. Messages that are in flight to consumers,
    delayed, or published meanwhile stay; messages that no binding of the exchange routes to a topic stay as well, and
    then the command ends with 1.
    """
    if (target is None) == (exchange is None):
        raise typer.BadParameter("name the topic to move to, or --exchange NAME", param_hint="TARGET")
    if target == source:
        raise typer.BadParameter(f"the messages are in {source} already", param_hint="TARGET")
    from linn.cli.message_filter import message_filter

    to = Target(exchange, is_exchange=True) if exchange is not None else Target(target or "")
    selects = None if where is None else message_filter(where)
    Move(MovePlan(source, to, selects=selects, count_max=count), dry_run=dry_run).run(url, as_json=as_json)


class Target(NamedTuple):
    """Topic or exchange that messages are moved to."""

    name: str
    is_exchange: bool = False


class MovePlan(NamedTuple):
    """Selection of messages of one queue, and their targets."""

    source: str
    target: Target | None = None
    """Target of all messages; None: `target_of` gives the target of each message."""
    target_of: Callable[[Message], Target | None] | None = None
    """Return the target of a message if `target` is None. A message without a target stays."""
    copy_of: Callable[[Message], Record] | None = None
    """Make the copy of a message; None: an exact copy."""
    selects: MessageFilter | None = None
    count_max: int | None = None


class Move:
    """One run of a move."""

    def __init__(self, plan: MovePlan, *, dry_run: bool) -> None:
        """`dry_run`: release all messages again, and only count them."""
        self._plan = plan
        self._dry_run = dry_run
        self._left = math.inf if plan.count_max is None else plan.count_max
        self._producers: dict[Target, Producer | None] = {}
        """Producers by target; None where there is no such topic."""
        self._moved: Counter[str] = Counter()
        """Number of messages by target name."""
        self._in_progress = 0
        """Messages that are not settled yet, and whose copies may be stored."""
        self._without_copy = 0
        """Messages whose copies were unroutable or refused."""
        self._refusal: LinnError | None = None
        """Error of a refused copy; None: all are unroutable."""
        self._without_target: Counter[str] = Counter()
        """Number of messages by the missing topic that they name; "" for messages that name none."""
        self._held = 0
        """Messages that are in flight to consumers, or delayed."""

    def run(self, url: str, *, as_json: bool) -> None:
        """Move, and print the result.

        Raises LinnError, BadParameter, KeyboardInterrupt; at the end Unroutable, or the error of another message that
        stays.
        """
        with on_interrupt(lambda: complain(f"interrupted: {self._progress()}")):
            with_client(url, self._work)
        print_result(self._data(), self._text(), as_json=as_json)
        if self._without_copy:
            stay = f"{counted(self._without_copy, 'message')} {'stays' if self._without_copy == 1 else 'stay'}"
            if self._refusal is not None:
                self._refusal.text = f"{stay}: {self._refusal.text}"
                raise self._refusal
            assert self._plan.target is not None
            raise Unroutable(f"{stay}: no binding of exchange {self._plan.target.name} leads to a topic")

    async def _work(self, client: Client) -> None:
        plan = self._plan
        topic = await client.admin.topic(plan.source)
        if "queue" not in topic:
            raise typer.BadParameter(
                f"{plan.source} is a stream, and nothing is taken from a stream; this copies it: "
                f"linn browse {plan.source} --format json | linn publish TARGET --input json",
                param_hint="SOURCE",
            )
        try:
            async with AsyncExitStack() as stack:
                if plan.target is not None:
                    await self._open_producer(client, stack, plan.target)
                consumer = client.consumer(plan.source, mode="pull", renewal_max_s=math.inf)
                await stack.enter_async_context(consumer)
                for partition, bounds in enumerate(topic["partitions"]):
                    offset = bounds["start"]
                    while offset < bounds["end"] and self._left:
                        pulled_max = min(PULLED_MAX, bounds["end"] - offset)
                        batches = await consumer.pull(pulled_max, partition=partition, start=offset)
                        if not batches:
                            break
                        offset = batches[-1].end_offset
                        await self._move(client, stack, [message for batch in batches for message in batch])
        except LinnError as error:
            if self._moved or self._in_progress:
                error.text += f"; {self._progress()}"
            raise
        queue = await client.admin.subscription(plan.source)
        self._held = queue["leased"] + queue["decided"] + queue["delayed"]

    async def _move(self, client: Client, stack: AsyncExitStack, messages: Sequence[Message]) -> None:
        """Move the selected messages, and release the rest."""
        selected: dict[Target, list[Message]] = {}
        rest: list[Message] = []
        for message in messages:
            target = await self._target(client, stack, message)
            (rest if target is None else selected.setdefault(target, [])).append(message)
        if self._dry_run:
            await self._release(messages)
            self._moved.update({target.name: len(group) for target, group in selected.items()})
            return
        await self._release(rest)
        held = {message.offset: message for group in selected.values() for message in group}
        try:
            for target, group in selected.items():
                producer = self._producers[target]
                assert producer is not None
                self._in_progress = len(group)
                self._moved[target.name] += await self._settle(group, await self._copy(producer, group))
                self._in_progress = 0
                for message in group:
                    del held[message.offset]
        finally:
            _release(held.values())  # Sent when the consumer leaves.

    async def _target(self, client: Client, stack: AsyncExitStack, message: Message) -> Target | None:
        """Return the target of a message; None: it is skipped."""
        plan = self._plan
        if not self._left or (plan.selects is not None and not plan.selects(message)):
            return None
        target = plan.target
        if target is None and plan.target_of is not None:
            target = plan.target_of(message)
        if target is not None and target not in self._producers:
            with suppress(TopicUnknown):
                await self._open_producer(client, stack, target)
        if target is None or self._producers.setdefault(target, None) is None:
            self._without_target["" if target is None else target.name] += 1
            return None
        self._left -= 1
        return target

    async def _open_producer(self, client: Client, stack: AsyncExitStack, target: Target) -> None:
        """Open a producer.

        Raises TopicUnknown, ExchangeUnknown, also where the broker creates topics on use. ConfigError: a topic, or one
        behind the exchange, may take copies for duplicates.
        """
        for topic in await _topics_behind(client, target.name) if target.is_exchange else [target.name]:
            window = (await client.admin.topic(topic))["settings"]["dedup"]
            if window != "off":
                text = f"topic {topic} does not store messages whose ids it has seen in the last {window}"
                raise ConfigError(f"{text}, which these may be: linn topics alter {topic} dedup=off first")
        producer = client.producer(exchange=target.name) if target.is_exchange else client.producer(target.name)
        self._producers[target] = await stack.enter_async_context(producer)

    async def _copy(self, producer: Producer, messages: Sequence[Message]) -> set[int]:
        """Publish copies, and wait for their confirmation. Returns the indexes of messages that have none."""
        from linn.cli.topic_copy import publish_copies

        copy_of = self._plan.copy_of
        records = [message.record() if copy_of is None else copy_of(message) for message in messages]
        try:
            await publish_copies(producer, messages, records, mandatory=True)
        except LinnError as error:
            if not error.indexes:
                raise
            if not isinstance(error, Unroutable):
                self._refusal = error
            return set(error.indexes)
        return set()

    async def _settle(self, messages: Sequence[Message], without_copy: set[int]) -> int:
        """Settle the messages that have a copy, and count them. Raises DeliveryNotCurrent: they are in both places."""
        for settled in [message.ack() for index, message in enumerate(messages) if index not in without_copy]:
            await settled
        await self._release([messages[index] for index in sorted(without_copy)])
        self._without_copy += len(without_copy)
        return len(messages) - len(without_copy)

    async def _release(self, messages: Iterable[Message]) -> None:
        for settled in _release(messages):
            with suppress(DeliveryNotCurrent):  # Its lease has expired, so that it is back already.
                await settled

    # --- the result ---

    def _progress(self) -> str:
        text = f"{counted(self._moved.total(), 'message')} moved"
        return text + (f", and {self._in_progress:,} more may be in both places" if self._in_progress else "")

    def _data(self) -> dict[str, Any]:
        return {
            "source": self._plan.source,
            "moved": self._moved.total(),
            "to": dict(self._moved),
            "stay": self._without_copy + self._without_target.total(),
            "dry_run": self._dry_run,
        }

    def _text(self) -> str:
        places = [f"{number:,} to {name}" for name, number in sorted(self._moved.items())]
        if len(places) == 1:
            places = [f"to {name}" for name in self._moved]
        done = "would move" if self._dry_run else "moved"
        text = f"{done} {counted(self._moved.total(), 'message')} from {self._plan.source}"
        text += f" {', '.join(places)}" if places else ""
        if self._held:
            text += f"; {self._held:,} that others hold or that are delayed stay"
        if self._without_target:
            gone = ", ".join(sorted(name for name in self._without_target if name))
            why = [f"there is no topic {gone}"] if gone else []
            why += [f"{self._without_target['']:,} name none"] if self._without_target[""] else []
            stay = counted(self._without_target.total(), "message")
            text += f"; {stay} stay: {', '.join(why)}; --to TOPIC moves them"
        return text


async def _topics_behind(client: Client, exchange: str) -> list[str]:
    """Return the visible topics that an exchange may lead to, whatever its bindings match. Raises ExchangeUnknown."""
    known = {exchange: await client.admin.exchange(exchange)}
    if any("exchange" in binding for binding in known[exchange]["bindings"]) or known[exchange]["alternate"]:
        known |= {found["name"]: found for found in await client.admin.exchanges()}
    topics, reached = dict[str, None](), [exchange]
    for name in reached:
        for binding in known[name]["bindings"] if name in known else ():
            if "topic" in binding:
                topics[binding["topic"]] = None
            elif binding["exchange"] not in reached:
                reached.append(binding["exchange"])
        alternate = known[name]["alternate"] if name in known else None
        if alternate is not None and alternate not in reached:
            reached.append(alternate)
    return list(topics)


def _release(messages: Iterable[Message]) -> list[Settled]:
    """Release messages to their queue; the delivery does not count as an attempt."""
    from linn.wire.messages import Verdict

    return [message.batch._settle(message.index, message.index + 1, Verdict.RELEASE, 0) for message in messages]
