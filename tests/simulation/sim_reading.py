"""Simulated observers: a watcher that fetches and compares, and readers at the start and at the end of a life."""

from __future__ import annotations

import trio
from raw_client import RawClient, Refused
from sim_world import REQUEST_S_MAX, World, check_foreseen

from linn.core.batch.batch import RecordBatch
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.testing.history import Copy, DeadLabels, Drained, Read, ReadThrough, Recovered
from linn.wire import messages as m

_DEAD = "linn.dead."


def copy_of(record: Record) -> Copy:
    """A record as the history knows it."""
    labels = record.labels
    dead = None
    if f"{_DEAD}topic" in labels:
        named = [labels[_DEAD + name] for name in ("topic", "partition", "offset", "reason", "attempts")]
        dead = DeadLabels(*named, labels.get(f"{_DEAD}subscription", ""))  # type: ignore[arg-type]
    return Copy((record.value or b"").decode(), (record.key or b"").decode(), dead)


async def fetch(world: World, client: RawClient, life: int, topic: str, partition: int, offset: int) -> Read:
    """Fetch, and tell the history. Raises Refused, EOFError, LinnError, TooSlowError."""
    asked_at = len(world.history)
    with trio.fail_after(REQUEST_S_MAX):
        event = await client.ask(m.Fetch(topic, partition, offset, bytes_max=1 << 20))
    fetched = event.message
    assert isinstance(fetched, m.Fetched)
    first = event.batches[0].base_offset if event.batches else offset
    read = Read(
        life,
        topic,
        partition,
        asked_at,
        first,
        fetched.start_offset,
        fetched.high_watermark,
        copies_of(event.batches),
    )
    world.history.add(read)
    return read


def copies_of(batches: list[RecordBatch]) -> tuple[Copy, ...]:
    """The records of batches that follow one another."""
    copies: list[Copy] = []
    for batch in batches:
        assert batch.base_offset == batches[0].base_offset + len(copies), "a fetch has no holes"
        copies += [copy_of(record) for record in batch.records()]
    return tuple(copies)


class Watcher:
    """Fetches here and there, all the time."""

    def __init__(self, world: World, node: str) -> None:
        self.world = world
        self.node = node
        self.rng = world.rng("watcher")

    async def run(self) -> None:
        await self.world.keep_at(self.node, "watcher", self._work)

    async def _work(self, client: RawClient, life: int) -> None:
        ends: dict[tuple[str, int], int] = {}
        while not self.world.is_over:
            topic = self.rng.choice(self.world.plan.topics)
            place = topic.name, self.rng.randrange(topic.partitions)
            offset = self.rng.choice([0, self.rng.randint(0, ends.get(place, 0))])
            try:
                read = await fetch(self.world, client, life, *place, offset)
                ends[place] = read.end
            except Refused as refused:
                check_foreseen(refused)
                if refused.code != "log.offset_out_of_range":
                    raise
            await trio.sleep(self.rng.uniform(0.01, 0.3))


# --- by the run itself ---


def tell_recovered(world: World, broker: Broker) -> None:
    """Record each partition as it was opened; dead letters may have been copied since."""
    for topic in broker.topics.values():
        for index, partition in topic.partitions.items():
            start, end = partition.log.bounds()
            end -= partition.appended_records
            world.history.add(Recovered(world.life, topic.name, index, min(start, end), end))


async def read_through(world: World, client: RawClient) -> None:
    """Read all that is there."""
    for shown in await client.administer("topic.list"):
        for index, partition in enumerate(shown["partitions"]):
            offset, end = partition["start"], partition["end"]
            is_read = False
            while not is_read:  # Also where nothing is left: it says where the log begins.
                try:
                    read = await fetch(world, client, world.life, shown["name"], index, offset)
                except Refused as refused:
                    offset = await _start_behind(offset, refused, client, shown["name"], index)
                    continue
                assert read.copies or offset == end, "a fetch below the watermark reads something"
                offset = read.first + len(read.copies)
                is_read = offset >= end
        world.history.add(ReadThrough(world.life, shown["name"]))


async def _start_behind(offset: int, refused: Refused, client: RawClient, topic: str, index: int) -> int:
    """The present start of a partition, if retention has dropped the requested offset. Raises Refused for any other
    error.
    """
    (shown,) = [each for each in await client.administer("topic.list") if each["name"] == topic]
    start: int = shown["partitions"][index]["start"]
    if refused.code != "log.offset_out_of_range" or start <= offset:
        raise refused
    return start


async def drain(world: World, client: RawClient, wait_s: float) -> None:
    """Wait until all queues are empty, or as long as that may take; tell the history how they are."""
    left: dict[tuple[str, str], dict[str, int]] = {}
    plan = world.plan
    with trio.move_on_after(wait_s):
        while True:
            shown = await client.administer("subscription.list")
            late = [(await client.administer("scheduled.list", topic=it.name, count=0))["count"] for it in plan.topics]
            left = {(each["topic"], each["subscription"]): each for each in shown}
            if not any(late) and not any(each["unsettled"] or each["leased"] or each["dead"] for each in shown):
                break
            await trio.sleep(0.5)
    for (topic, shared), each in left.items():
        world.history.add(Drained(topic, each["unsettled"], each["leased"], each["dead"], shared))
