"""A plugin of every kind that raises, or holds up the loop, where a message or a request says so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from linn.core.batch.batch import RecordBatch
from linn.core.batch.format import BodyColumns, FormatKind
from linn.core.config.topic_settings import TopicSettings
from linn.core.log.storage import EngineKind, PartitionId
from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.interceptor import InterceptorKind
from linn.core.ports.observer import Observer
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.semantics import SemanticsKind
from linn.core.routing.exchange import Binding, ExchangeKind, Subject
from linn.core.routing.partitioner import PartitionerKind
from linn.plugins.exchanges import FanoutExchange, NoSettings
from linn.semantics.at_least_once import AtLeastOnce
from linn.storage_engines.dram.engine import DramEngine
from linn.storage_engines.dram.settings import DramSettings

HELD_S = 0.08
FORMAT = 66
RAISE, BLOCK = b"raise", b"block"
LATER = b"read "
RAISE_MS, BLOCK_MS = 666, 667
"""Delays of a nack that mean the same to the semantics."""


def misbehave(word: bytes) -> None:
    if word == RAISE:
        raise RuntimeError("I am broken")
    if word == BLOCK:
        time.sleep(HELD_S)  # Not a wait of a test's: this is the fault that it is about.


class HostileExchange(FanoutExchange):
    def match(self, subject: Subject) -> Sequence[Binding]:
        misbehave(subject.routing_key.encode())
        return super().match(subject)


class HostileInterceptor:
    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch:
        misbehave(batch.value(0) or b"")
        return batch


class HostilePartitioner:
    def place(self, batch: RecordBatch, partitions: int) -> int:
        misbehave(batch.value(0) or b"")
        return 0


class HostileLog:
    """A log in memory that looks at what it stores, and at the size that a reader asks for."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, batch: RecordBatch, leader_epoch: int = 0) -> int:
        misbehave(batch.value(0) or b"")
        return int(self._log.append(batch, leader_epoch))

    def read_nowait(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        misbehave({RAISE_MS: RAISE, BLOCK_MS: BLOCK}.get(bytes_max, b""))
        found: Sequence[RecordBatch] = self._log.read_nowait(offset, bytes_max)
        return found

    async def read(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        misbehave({RAISE_MS: RAISE, BLOCK_MS: BLOCK}.get(bytes_max, b""))
        found: Sequence[RecordBatch] = await self._log.read(offset, bytes_max)
        return found


class HostileEngine(DramEngine):
    async def open(self, partition: PartitionId) -> Any:
        return HostileLog(await super().open(partition))


class HostileSemantics(AtLeastOnce):
    def redelivery_ms(self, attempts: int, asked_ms: int | None) -> int | None:
        misbehave({RAISE_MS: RAISE, BLOCK_MS: BLOCK}.get(asked_ms or 0, b""))
        return super().redelivery_ms(attempts, asked_ms)


class HostileFormat:
    """A body is a word, which every record has as its value; `read ` in front of it spares the publish."""

    def check(self, body: memoryview, count: int, bytes_max: int) -> int:
        misbehave(bytes(body))
        return len(body)

    def to_native(self, body: memoryview, count: int, bytes_max: int) -> BodyColumns:
        misbehave(bytes(body).removeprefix(LATER))
        return BodyColumns([bytes(body)] * count)

    def from_native(self, batch: RecordBatch) -> bytes:
        return batch.value(0) or b""


class HostileObserver(Observer):
    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        misbehave(topic.encode())


@hookimpl
def linn_register_exchange() -> ExchangeKind:
    return ExchangeKind("hostile", NoSettings, HostileExchange)


@hookimpl
def linn_register_interceptor() -> InterceptorKind:
    return InterceptorKind("hostile", None, lambda topic, settings, own: HostileInterceptor())


@hookimpl
def linn_register_partitioner() -> PartitionerKind:
    return PartitionerKind("hostile", HostilePartitioner)


@hookimpl
def linn_register_format() -> FormatKind:
    return FormatKind("hostile", FORMAT, HostileFormat)


@hookimpl
def linn_register_engine() -> EngineKind:
    return EngineKind("hostile", DramSettings, HostileEngine)


@hookimpl
def linn_register_semantics() -> SemanticsKind:
    return SemanticsKind("hostile", LeaseSettings, HostileSemantics)


@hookimpl
def linn_register_observer() -> HostileObserver:
    return HostileObserver()
