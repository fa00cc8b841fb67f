"""The publishes of one connection, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from linn.core.batch.steps import TURN_S, Steps
from linn.core.env.env import Spawn
from linn.core.errors.auth import Forbidden
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError
from linn.core.log.mark import Mark
from linn.core.ports.principal import Principal
from linn.core.publish.forwarding import PublishLinks
from linn.core.publish.passed_on import PassedOn
from linn.core.publish.plan import Planned, recognize, without_room
from linn.core.publish.producer_ids import PRODUCER_BITS, OwnedProducers
from linn.core.publish.publisher import BegunPlan, Publisher, held_bytes
from linn.core.publish.request import PublishAnswers, PublishRequest
from linn.core.publish.split_publish import Outcome, SplitPublish
from linn.core.topics.timing_logs import TimingLogMissing

INLINE_STEPS_MAX = 64
"""Limit of the steps that a request may take where it is read, if they fit into a turn: small publishes need one to
three.
"""


class _Waiting(NamedTuple):
    """A publish that waits for earlier ones, for a topic, for room or for its turn."""

    request: PublishRequest
    ticket: int
    bytes: int
    begun: BegunPlan | None
    """A plan that takes long."""


class PublishLane:
    """The publishes of one connection, in order."""

    def __init__(
        self,
        publisher: Publisher,
        answers: PublishAnswers,
        spawn: Spawn,
        principal: Principal,
        owned: OwnedProducers,
        links: PublishLinks | None,
    ) -> None:
        self._principal = principal
        self._links = links
        self._publisher = publisher
        self._owned = owned
        self._memory = publisher.memory
        self._monotonic = publisher.long_work.monotonic
        self._answers = answers
        self._spawn = spawn
        self._access = principal.access
        self._waiting: deque[_Waiting] = deque()
        self._passed_on: PassedOn | None = None
        """Set with the first publish of which another broker stores a share."""
        self.waiting_bytes = 0
        """Bytes of waiting publishes and of those at another broker, which count in the share `received` and against
        the connection's limit.
        """

    @property
    def is_waiting(self) -> bool:
        """Whether a publish waits, or is at another broker."""
        return bool(self._waiting or self._is_passing())

    def close(self) -> None:
        """Drop waiting publishes: the connection is gone."""
        self._memory.give_back(self.waiting_bytes)
        self.waiting_bytes = 0
        self._waiting.clear()
        if self._passed_on is not None:
            self._passed_on.close()
        del self._answers, self._spawn

    def publish(self, request: PublishRequest, ticket: int) -> None:
        """Carry out a publish, or queue it behind waiting ones; `answers` gets the outcome, perhaps at once."""
        publisher, begun = self._publisher, None
        order = publisher.order
        for batch in request.batches:
            if batch.producer_id and batch.producer_id >> PRODUCER_BITS not in self._owned.blocks:
                self._answers.refused(ticket, publisher.foreign(request, batch, self._owned))
                return
        try:
            if (
                not self._waiting
                and (self._passed_on is None or not self._passed_on.count)
                and (publisher.make_topic is None or not publisher.lacks_topic(request))
            ):
                begun = publisher.begin(request, self._access, passes_on=self._links is not None)
                planned = self._planned_inline(begun[1])
                if planned is not None and not begun[0].is_split:
                    if order.missing:
                        order.check(request)
                    if self._passed_on is not None:
                        self._passed_on.order.check(request)
                    begun = None
                    planned = recognize(request, planned, self._access)
                    is_held = publisher.joins is not None and publisher.lacks_permission(request, planned) is not None
                    if not is_held and without_room(planned, self._access) is None:
                        self._answers.stored(ticket, *publisher.store(request, planned, self._access))
                        if order.missing or self._passed_on is not None:
                            self._settled(request)
                        return
                elif planned is not None:
                    begun = None
        except TimingLogMissing:
            begun = None  # It is made while the lane waits.
        except LinnError as error:
            if not isinstance(error, Forbidden) or not error.undecided:
                self._refuse(request, ticket, error)
                return
            begun = None  # The authorizer is being asked: the lane waits for its answer.
        self._wait(request, ticket, begun)

    def _planned_inline(self, steps: Steps[list[Planned]]) -> list[Planned] | None:
        """Run the steps of a plan that fit into a turn; returns its result, or None if it takes longer."""
        try:
            next(steps)
            until_s = self._monotonic() + TURN_S
            for _ in range(INLINE_STEPS_MAX):
                next(steps)
                if self._monotonic() > until_s:
                    break
        except StopIteration as end:
            planned: list[Planned] = end.value
            return planned
        return None

    def count_error(self, topic: str | None, error: LinnError) -> None:
        """Count, for the metrics, a request that was refused before it came here: to a topic, or an exchange (None)."""
        self._publisher.count_error(topic, error)

    def _refuse(self, request: PublishRequest, ticket: int, error: LinnError) -> None:
        self._publisher.count_refused(request, error)
        is_elsewhere = self._links is not None and (isinstance(error, NotLeader) or self._is_led_elsewhere(request))
        if not is_elsewhere:
            self._publisher.order.refused(request, error)
        if self._links is not None and (is_elsewhere or request.to_exchange):
            self._elsewhere(self._links).order.refused(request, error)
        self._answers.refused(ticket, error)

    def _is_led_elsewhere(self, request: PublishRequest) -> bool:
        topic = None if request.to_exchange else self._publisher.catalog.topics.get(request.target)
        return topic is not None and topic.led_by is not None

    # --- waiting ---

    def _wait(self, request: PublishRequest, ticket: int, begun: BegunPlan | None) -> None:
        size = held_bytes(request)
        self._waiting.append(_Waiting(request, ticket, size, begun))
        self.waiting_bytes += size
        self._memory.used_bytes += size
        if len(self._waiting) == 1:
            self._spawn(self._publish_waiting)

    async def _publish_waiting(self) -> None:
        """Carry out waiting publishes in order."""
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            is_done = True
            try:
                # No checkpoint between the two: what is stored is answered.
                stored, split = await self._publisher.carry_out(
                    first.request, self._access, first.begun, self, passes_on=self._links is not None
                )
                if split is not None:
                    is_done = False
                    await self._pass_on(first, split, stored[1])
                else:
                    self._answers.stored(first.ticket, *stored)
                    self._settled(first.request)
            except LinnError as error:
                self._refuse(first.request, first.ticket, error)
            except Exception as error:
                self._answers.failed(first.ticket, error)
            waiting.popleft()
            if is_done:
                self._done(first)

    def has_come(self, request: PublishRequest, nodes: frozenset[int]) -> bool:
        """See `StoreTurn.has_come`."""
        if 0 in nodes:
            self._publisher.order.check(request)
        passed_on = self._passed_on
        if passed_on is None:
            return True
        passed_on.order.check(request)
        return passed_on.takes(nodes)

    async def come(self) -> None:
        """See `StoreTurn.come`."""
        if self._passed_on is not None:
            await self._passed_on.until_none()

    def _settled(self, request: PublishRequest) -> None:
        """Note that a publish is stored: its topics may have had another leader when it was refused."""
        self._publisher.order.settled(request)
        if self._passed_on is not None:
            self._passed_on.order.settled(request)

    def _elsewhere(self, links: PublishLinks) -> PassedOn:
        if self._passed_on is None:
            self._passed_on = PassedOn(links, self._principal, self._owned)
        return self._passed_on

    def _is_passing(self) -> bool:
        return self._passed_on is not None and self._passed_on.count > 0

    async def _pass_on(self, first: _Waiting, split: SplitPublish, awaits: Sequence[tuple[Mark, int]]) -> None:
        """Let other brokers store their shares of a publish, of which the share of this one is stored."""
        request = first.request
        assert self._links is not None, "a publish is split where there are links"

        def told(outcome: Outcome) -> None:
            if isinstance(outcome, LinnError):
                self._publisher.count_refused(request, outcome)
                self._answers.refused(first.ticket, outcome)
            else:
                self._answers.stored(first.ticket, outcome, awaits)
                self._publisher.order.settled(request)
            self._done(first)

        try:
            await self._elsewhere(self._links).begin(split, told)
        except Exception as bug:
            self._answers.failed(first.ticket, bug)
            self._done(first)

    def _done(self, waiting: _Waiting) -> None:
        self.waiting_bytes -= waiting.bytes
        self._memory.give_back(waiting.bytes)
        self._answers.room()
