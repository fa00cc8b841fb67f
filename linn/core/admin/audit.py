"""The audit trail: changes, refusals and browsed queues, each with its caller, in the stream `__audit`.

Laws: a change is on the trail before it is carried out, as durably as its topic is; where it can't be written, the
change is refused. Refusals, logins and browsing hold up nothing: the first of a kind is written at once, and further
ones are counted for a minute. Values and secrets are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import trio

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.env.env import Env, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import LinnError
from linn.core.ports.principal import Principal
from linn.core.security.audit_chain import AuditChain
from linn.core.topics.topic import Topic
from linn.verbs import Verb

logger = logging.getLogger("linn.audit")

COUNTED_S = 60.0
"""Time for which repeated events of a kind are counted in one record."""
KINDS_MAX = 4_096
"""Limit of the kinds of events that are counted at a time, each of about 500 bytes; others are counted together."""
SHOWN = ("name", "topic", "exchange", "target_exchange", "group", "subscription", "service", "action", "user", "roles")
"""Arguments of verbs whose values are names."""
WHOLE = ("rules", "number", "partition", "delivery_id", "outcome")
"""Arguments whose values are neither secret nor data."""


class Seen(NamedTuple):
    """A kind of event that may be frequent."""

    action: str
    user: str
    address: str
    client: str
    on: str
    outcome: str


class AuditTrail:
    """The audit trail of a broker; without a topic it does nothing."""

    def __init__(self, env: Env, spawn: Spawn) -> None:
        self._env = env
        self._spawn = spawn
        self._topic: Topic | None = None
        self._chain = AuditChain()
        self._counts: dict[Seen, int] = {}

    async def open(self, topic: Topic) -> None:
        """Write to this topic from now on, after its last record. Raises StorageError, LogCorrupt."""
        partition = topic.partitions[0]
        end = partition.high_watermark
        if partition.start_offset < end:
            (batch,) = await partition.read_range(end - 1, end, 1)
            (record,) = batch.records()
            self._chain.resume(record.value or b"")
        self._topic = topic

    async def asked(self, verb: Verb[Any, Any], asked: msgspec.Struct, caller: Principal) -> None:
        """Write that a caller changes something, before it happens; returns when the record is confirmed.

        Raises StorageError, DiskFull, SyncFailed: the change must not happen. Cancellation: the record is written.
        """
        if self._topic is not None:
            self._write(_fields(verb.name, caller, "asked", **_shown(asked)))
            # A change can't be cancelled, so it must not wait for a sync that fails elsewhere.
            await self._topic.partitions[0].commit_all()

    def failed(self, verb: Verb[Any, Any], asked: msgspec.Struct, caller: Principal, error: LinnError) -> None:
        """Write that a change was not made."""
        self._try_to_write(_fields(verb.name, caller, error.code, **_shown(asked)))

    def login(self, address: str, user: str, how: str, outcome: str) -> None:
        """Note the end of a login."""
        self.seen("login", Principal(address, name=user), how, outcome)

    def seen(self, action: str, caller: Principal, on: str, outcome: str) -> None:
        """Note a refusal, a login, or a reading of records without consuming them."""
        if self._topic is None:
            return
        kind = Seen(action, caller.name, _host(caller.connection), caller.client, on, outcome)
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind = Seen(action, "", "", "", "", outcome)
        if kind in self._counts:
            self._counts[kind] += 1
            return
        if not self._counts:
            self._spawn(self._write_counts)
        self._counts[kind] = 0
        self._try_to_write(_seen_fields(kind, 1))

    async def _write_counts(self) -> None:
        """Write how often each kind was seen again, after a minute."""
        await self._env.clock.sleep(COUNTED_S)
        counts, self._counts = self._counts, {}
        for kind, times in counts.items():
            if times:
                self._try_to_write(_seen_fields(kind, times))
                await trio.lowlevel.checkpoint()

    def _try_to_write(self, fields: Mapping[str, Any]) -> None:
        if self._topic is None:
            return
        try:
            self._write(fields)
        except LinnError as error:
            logger.error("the audit trail can't be written: %(error)s", log_fields(error))

    def _write(self, fields: Mapping[str, Any]) -> None:
        assert self._topic is not None
        text = self._chain.next({"at_ms": self._env.clock.now_ms(), **fields})
        base_id = int.from_bytes(self._env.rng.bytes(16))
        self._topic.append(self._topic.partitions[0], build_from_records([Record(value=text)], base_id=base_id))
        self._chain.resume(text)


def _fields(action: str, caller: Principal, outcome: str, **details: object) -> dict[str, Any]:
    by = {"user": caller.name, "address": caller.connection, "client": caller.client}
    return {"action": action, **by, "outcome": outcome, **details}


def _seen_fields(kind: Seen, times: int) -> dict[str, Any]:
    return {**kind._asdict(), "times": times}


def _host(address: str) -> str:
    """An address without its port, which is another one for each connection."""
    return address if address.startswith("unix:") else address.rpartition(":")[0] or address


def _shown(asked: msgspec.Struct) -> dict[str, Any]:
    """The arguments of a verb that are not secret: names, and of other arguments that they were given."""
    shown: dict[str, Any] = {}
    changed: list[str] = []
    for key, value in msgspec.structs.asdict(asked).items():
        if value in (None, "", (), {}, False):
            continue
        if key in SHOWN or key in WHOLE:
            shown[key] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        elif isinstance(value, Mapping):
            changed += [f"{key}.{name}" for name in value]
        else:
            changed.append(key)
    return {"arguments": shown, "changed": changed}
