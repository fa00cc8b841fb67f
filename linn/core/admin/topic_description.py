"""A topic as the verbs show it, made in steps: it may have thousands of partitions, and a broker many such topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from linn.core.batch.steps import Steps
from linn.core.config.topic_settings import encode_without_bindings
from linn.core.queue.queue import Queue
from linn.core.queue.shared_dispatch import SharedDispatch

if TYPE_CHECKING:
    from linn.core.broker.broker import Broker


class JsonText(str):
    """A verb's result that is text of JSON already: where it is large, that is made in steps too."""

    __slots__ = ()


def topics_as_json(broker: Broker, names: list[str]) -> Steps[JsonText]:
    """Topics, but for those that are gone by their turn."""
    shown: list[str] = []
    for name in names:
        topic = yield from topic_as_json(broker, name)
        if topic is not None:
            shown.append(topic)
    return JsonText(f"[{','.join(shown)}]")


def topic_as_json(broker: Broker, name: str) -> Steps[JsonText | None]:
    """Settings, partitions and, for a queue, what waits in it. None: the topic is gone."""
    topic = broker.topics.get(name)
    if topic is None:
        return None
    # What a change changes is taken at one moment; what is in the partitions goes on changing.
    settings = encode_without_bindings(topic.settings)
    queue, dispatches = topic.queue, _dispatches(topic.queue)
    bindings = (*topic.settings.bindings, *topic.live_bindings)
    shown: dict[str, Any] = {"name": name, "settings": {**settings, "bindings": bindings}}
    partitions: list[str] = []  # As text: a hundred thousand objects would set off a collection of all garbage.
    for number in sorted(topic.partitions):
        if broker.topics.get(name) is not topic:
            return None  # Its logs may be gone as well.
        partition = topic.partitions[number]
        start, end, size = partition.start_offset, partition.high_watermark, partition.log.size_bytes()
        partitions.append(f'{{"start":{start},"end":{end},"bytes":{size}}}')
        yield
    shown["partitions"] = msgspec.Raw(f"[{','.join(partitions)}]".encode())
    if queue is not None:
        unsettled, leased = yield from _count(dispatches)
        shown["queue"] = {"unsettled": unsettled, "leased": leased, "consumers": len(queue.consumers)}
    return JsonText(msgspec.json.encode(shown).decode())


def _dispatches(queue: Queue | None) -> Sequence[SharedDispatch]:
    return () if queue is None else tuple(queue.dispatches)


def _count(dispatches: Sequence[SharedDispatch]) -> Steps[tuple[int, int]]:
    """Of records that are not settled, and of those that are leased."""
    unsettled = leased = 0
    for dispatch in dispatches:
        unsettled += dispatch.subscription.unsettled_count(dispatch.partition.high_watermark)
        leased += dispatch.subscription.leased_count
        yield
    return unsettled, leased
