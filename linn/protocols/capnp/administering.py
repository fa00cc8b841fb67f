"""Describing and changing topics and exchanges over the native protocol.

Law: the verbs of one connection are carried out one at a time, in order of arrival; the next one begins when the
connection has room for its answer. Waiting arguments are kept as text, and counted in `received`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import trio

from linn.api import ARGUMENTS_BYTES_MAX, RESERVE_BYTES, LimitExceeded, run_steps
from linn.protocols.capnp.responder import Responder
from linn.protocols.capnp.subscribing import Subscribing
from linn.wire import messages as m
from linn.wire.connection import Event
from linn.wire.description_frame import PARTITION_BYTES, description_frame

DESCRIBED_MAX = 4_096
"""Limit of the names in one describe: each takes 20 us, known or not."""
DESCRIBED_AT_ONCE_MAX = 128
"""Topics and partitions in a description made without a pause, in about half a millisecond; longer ones are made in
turns, one per connection at a time."""
DESCRIPTIONS_MAX = 2
"""Long descriptions of one connection: one in progress, and one waiting with up to 4,096 names."""
WAITING_BYTES_MAX = 2 * ARGUMENTS_BYTES_MAX
"""Limit of one connection's arguments: one verb in progress, and one waiting."""

Nodes = Callable[[], Sequence[tuple[int, str]]]


class Administering:
    """The requests of one connection that concern the broker as a whole."""

    def __init__(self, responder: Responder, subscribing: Subscribing, nodes: Nodes) -> None:
        """`nodes`: (number, address) of each broker that the client may reach."""
        self._nodes = nodes
        self._responder = responder
        self._subscribing = subscribing
        self._memory = responder.gateway.memory.received
        self._last: trio.Event | None = None
        """Set when the latest verb has been carried out; None before the first verb."""
        self._waiting_bytes = 0
        self._describing = trio.Lock()
        self._descriptions = 0
        """Long descriptions, in progress and waiting."""

    def is_full(self) -> bool:
        """Whether so many requests wait that no more should be read; few, if memory is short."""
        waiting = self._waiting_bytes
        if waiting >= WAITING_BYTES_MAX or self._descriptions >= DESCRIPTIONS_MAX:
            return True
        return waiting > RESERVE_BYTES and self._memory.is_over and self._subscribing.is_empty

    def describe(self, event: Event) -> None:
        """Answer with kinds, partitions and bounds of topics; a repeated name is described once."""
        describe = event.message
        assert isinstance(describe, m.Describe)
        if len(describe.topics) > DESCRIBED_MAX:
            raise LimitExceeded(f"{len(describe.topics)} topics in one describe, more than {DESCRIBED_MAX}")
        responder, session, gateway = self._responder, self._responder.session, self._responder.gateway
        names = list(dict.fromkeys(describe.topics)) or session.topic_names()
        partitions = session.partition_count(names)
        if partitions * PARTITION_BYTES > responder.settings.frame_bytes_max:
            raise LimitExceeded(f"a description of {partitions} partitions is larger than a frame: name fewer topics")
        if not event.correlation:
            return
        nodes = self._nodes()
        elsewhere = session.bounds_elsewhere(names)
        if elsewhere is None and len(names) + partitions <= DESCRIBED_AT_ONCE_MAX:
            steps = description_frame(gateway.name, nodes, names, session.topic_bounds, event.correlation)
            responder.answer(event.correlation, [run_steps(steps)])
            return

        async def work() -> None:
            try:
                async with self._describing:
                    find = session.topic_bounds
                    if elsewhere is not None:
                        find = partial(find, elsewhere=await elsewhere.ask())
                    await responder.outbox.wait_room()
                    steps = description_frame(gateway.name, nodes, names, find, event.correlation)
                    responder.answer(event.correlation, [await gateway.long_work.run(steps, immediate=True)])
            finally:
                self._descriptions -= 1

        self._descriptions += 1
        responder.in_task(event, work)

    def administer(self, event: Event) -> None:
        """Carry out an administration verb, after earlier ones."""
        administer = event.message
        assert isinstance(administer, m.Administer)
        responder, session = self._responder, self._responder.session
        session.check_verb(administer.verb, administer.arguments)
        received, size = self._memory, len(administer.arguments)
        before, done = self._last, trio.Event()
        self._last = done
        self._waiting_bytes += size
        received.used_bytes += size

        async def work() -> None:
            try:
                if before is not None:
                    await before.wait()
                await responder.outbox.wait_room()
                result = await session.perform(administer.verb, administer.arguments)
                responder.reply(event.correlation, m.Administered(result))
            finally:
                self._waiting_bytes -= size
                received.give_back(size)
                done.set()

        responder.in_task(event, work)
