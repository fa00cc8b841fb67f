"""Describing and changing topics and exchanges over the native protocol.

Law: verbs of one connection are carried out one at a time, in the order in which they came; the next one begins when
the connection has room for its answer. Arguments that wait for their turn are text, and counted in `received`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from linn.core.admin.verb import ARGUMENTS_BYTES_MAX
from linn.core.batch.steps import at_once
from linn.core.errors.tree import LimitExceeded
from linn.core.loop.long_work import in_turns
from linn.core.loop.memory_budget import RESERVE_BYTES
from linn.protocols.capnp.description_frame import PARTITION_BYTES, description_frame
from linn.wire import messages as m
from linn.wire.connection import Event

if TYPE_CHECKING:
    from linn.protocols.capnp.session import Session

DESCRIBED_MAX = 4_096
"""Names in one describe: each takes 20 us, known or not."""
DESCRIBED_AT_ONCE_MAX = 128
"""Topics and partitions in a description that is made in one go, in about half a millisecond; longer ones are made in
turns, of each connection one at a time."""
DESCRIPTIONS_MAX = 2
"""Long ones of one connection: the one that is made, and one behind it with up to 4,096 names."""
WAITING_BYTES_MAX = 2 * ARGUMENTS_BYTES_MAX
"""Of arguments of one connection: of the verb that is carried out, and of one behind it."""


class Administering:
    """What one connection asks of the broker as a whole."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last: trio.Event | None = None
        """Set when the verb that came last has been carried out; None where none came yet."""
        self._waiting_bytes = 0
        self._describing = trio.Lock()
        self._descriptions = 0
        """Long ones, that is made and that wait."""

    def is_full(self) -> bool:
        """Whether so much waits that no more should be read; where memory is short, that is little."""
        waiting, session = self._waiting_bytes, self._session
        if waiting >= WAITING_BYTES_MAX or self._descriptions >= DESCRIPTIONS_MAX:
            return True
        return waiting > RESERVE_BYTES and session.broker.memory.received.is_over and not session.consumes

    def close(self) -> None:
        """The connection is gone."""
        del self._session

    def describe(self, event: Event) -> None:
        """Answer with kinds, partitions and bounds of topics; one that is named twice is described once."""
        describe = event.message
        assert isinstance(describe, m.Describe)
        if len(describe.topics) > DESCRIBED_MAX:
            raise LimitExceeded(f"{len(describe.topics)} topics in one describe, more than {DESCRIBED_MAX}")
        session, broker = self._session, self._session.broker
        names = list(dict.fromkeys(describe.topics)) or sorted(broker.topics)
        partitions = sum([len(broker.topics[name].partitions) for name in names if name in broker.topics])
        if partitions * PARTITION_BYTES > session.settings.frame_bytes_max:
            raise LimitExceeded(f"a description of {partitions} partitions is larger than a frame: name fewer topics")
        if not event.correlation:
            return
        steps = description_frame(broker, names, event.correlation)
        if len(names) + partitions <= DESCRIBED_AT_ONCE_MAX:
            session.answer([at_once(steps)])
            return

        async def work() -> None:
            try:
                async with self._describing:
                    await session.outbox.wait_room()
                    session.answer([await in_turns(broker, steps, at_once=True)])
            finally:
                self._descriptions -= 1

        self._descriptions += 1
        session.in_task(event, work)

    def administer(self, event: Event) -> None:
        """Carry out a verb of `linn.core.admin.administration`, behind those that came before it."""
        administer = event.message
        assert isinstance(administer, m.Administer)
        session, administration = self._session, self._session.broker.administration
        administration.check(administer.verb, administer.arguments)
        received, size = session.broker.memory.received, len(administer.arguments)
        before, done = self._last, trio.Event()
        self._last = done
        self._waiting_bytes += size
        received.used_bytes += size

        async def work() -> None:
            try:
                if before is not None:
                    await before.wait()
                await session.outbox.wait_room()
                result = await administration.perform(administer.verb, administer.arguments)
                session.reply(event.correlation, m.Administered(result))
            finally:
                self._waiting_bytes -= size
                received.give_back(size)
                done.set()

        session.in_task(event, work)
