"""Simulated consumers of queues, subscriptions and groups, by hand: they ack, nack, reject, extend, are late, leave."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import trio
from raw_client import RawClient, Refused
from sim_plan import ConsumerPlan
from sim_world import REQUEST_S_MAX, World, check_foreseen

from linn.testing.history import Answered, Asked, Assigned, Delivered, Joined, Left, Verdict
from linn.wire import messages as m
from linn.wire.connection import Event

PULL_WAIT_MS = 500
IDLE_S = 0.5
"""Interval at which a pushed consumer checks whether the run is over."""
_VERDICTS: dict[Verdict, m.Verdict] = {
    "ack": m.Verdict.ACK,
    "nack": m.Verdict.NACK,
    "reject": m.Verdict.REJECT,
    "extend": m.Verdict.EXTEND,
}


@dataclass
class _Subscription:
    """One subscription on one connection: what the history calls a consumer."""

    name: str
    id: int
    kind: m.ConsumerKind
    lease_ms: int
    generation: int = 0


def _runs_of(event: Event) -> dict[int, list[str]]:
    """The values of a delivery by runs of offsets, each by its first: of a queue with an order it has gaps."""
    found: dict[int, list[str]] = {}
    first = end = -1
    for batch in event.batches:
        for place, record in enumerate(batch.records()):
            offset = batch.offset(place)
            if offset != end:
                first = offset
            found.setdefault(first, []).append((record.value or b"").decode())
            end = offset + 1
    return found


class RawConsumer:
    """A consumer that subscribes again whenever it has left or was removed."""

    def __init__(self, world: World, plan: ConsumerPlan) -> None:
        self.world = world
        self.plan = plan
        self.rng = world.rng(plan.name)
        self._count = 0
        self._life = 0
        self._allowed: deque[float] = deque()
        """The earliest time at which each record that may be pushed was allowed."""
        self._told_early: deque[Event] = deque()
        """Events that came before the answer to a commit and are not yet handled."""
        self._asked_s = 0.0

    async def run(self) -> None:
        while not self.world.is_over:
            await self.world.keep_at(self.plan.node, f"{self.plan.name}/{self._count}", self._work)
            await trio.sleep(self.rng.uniform(0, 0.1))

    async def _work(self, client: RawClient, life: int) -> None:
        """Subscribe, and consume until it is time to leave."""
        plan, self._life = self.plan, life
        self._allowed.clear()
        self._told_early.clear()
        self._asked_s = trio.current_time()
        credit = plan.credit if plan.mode == "push" else 0
        self._allow(credit, self._asked_s)
        member = plan.name if plan.shared else ""
        subscribe = m.Subscribe(plan.topic, group=plan.group, credit=credit, member=member, shared=plan.shared)
        answer = await self._call(client, subscribe)
        self._count += 1
        name = f"{plan.name}#{self._count}"
        subscription = _Subscription(name, answer.subscription, m.ConsumerKind(answer.kind), answer.lease_ms)
        if subscription.kind == m.ConsumerKind.READER:
            await trio.sleep(0.3)  # It is a stream at present; perhaps a queue later.
            return
        self.world.history.add(Joined(life, name, plan.topic, plan.group, shared=plan.shared))
        try:
            await self._consume(client, subscription)
        finally:
            self.world.history.add(Left(name, plan.topic))

    async def _consume(self, client: RawClient, subscription: _Subscription) -> None:
        while not self.world.is_over:
            event = await self._next(client, subscription)
            if event is None:
                continue
            if isinstance(event.message, m.Ended):
                return
            await self._deal_with(client, subscription, event)
            if not self.world.is_closing and self.rng.random() < self.plan.leave:
                if self.rng.random() < 0.5:
                    await self._call(client, m.Unsubscribe(subscription.id))
                return

    def _allow(self, records: int, at_s: float) -> None:
        self._allowed.extend([at_s] * records)

    async def _call(self, client: RawClient, message: m.Message) -> m.Message:
        with trio.fail_after(REQUEST_S_MAX):
            return await client.call(message)

    async def _next(self, client: RawClient, subscription: _Subscription) -> Event | None:
        """The next delivery or end; None: nothing came for a while."""
        if self._told_early:
            return self._told_early.popleft()
        if self.plan.mode == "pull" and not client.pushed:
            self._asked_s = trio.current_time()
            with trio.fail_after(REQUEST_S_MAX):
                event = await client.pull(subscription.id, self.plan.credit, PULL_WAIT_MS)
            while client.pushed:  # The share was told before the records.
                await self._take_push(client, subscription, client.pushed.popleft())
            return self._told(subscription, event) if event.batches else None
        try:
            event = await client.push(IDLE_S)
        except trio.TooSlowError:
            return None
        return await self._take_push(client, subscription, event)

    async def _take_push(self, client: RawClient, subscription: _Subscription, event: Event) -> Event | None:
        match event.message:
            case m.Assigned(epoch=generation, partitions=partitions, revoked=revoked):
                subscription.generation = generation
                if revoked:
                    await client.tell(m.Heartbeat(subscription.id, generation))
                plan = self.plan
                self.world.history.add(
                    Assigned(self._life, subscription.name, plan.topic, plan.group, generation, tuple(partitions))
                )
                return None
            case m.Deliver():
                return self._told(subscription, event)
            case m.Failed(code=code):
                check_foreseen(code)
                return None
            case m.Ended(code=code):
                check_foreseen(code)
                return event
        return None

    async def _tell_early(self, client: RawClient, subscription: _Subscription) -> None:
        """Tell the history what came before an answer: under which share a commit counted depends on their order."""
        while client.pushed:
            event = await self._take_push(client, subscription, client.pushed.popleft())
            if event is not None:
                self._told_early.append(event)

    def _told(self, subscription: _Subscription, event: Event) -> Event:
        """Tell the history of a delivery."""
        deliver = event.message
        assert isinstance(deliver, m.Deliver)
        runs = _runs_of(event)
        granted_after_s = self._asked_s
        if self.plan.mode == "push":
            count = sum(map(len, runs.values()))
            granted_after_s = min([self._allowed.popleft() if self._allowed else 0.0 for _ in range(count)])
            if subscription.lease_ms:  # Its settlement or its end makes room, before there is a Credit.
                ends_s = granted_after_s + subscription.lease_ms / 1000
                self._allow(count, min(ends_s, trio.current_time()))
        for first, values in runs.items():
            self.world.history.add(
                Delivered(
                    self._life,
                    subscription.name,
                    self.plan.topic,
                    deliver.partition,
                    first,
                    tuple(values),
                    0 if self.plan.group else deliver.delivery_id,
                    deliver.attempt,
                    granted_after_s,
                    self.plan.group,
                    subscription.generation,
                    self.plan.shared,
                )
            )
        return event

    # --- settling ---

    async def _deal_with(self, client: RawClient, subscription: _Subscription, event: Event) -> None:
        runs = {first: first + len(values) for first, values in _runs_of(event).items()}
        count = sum(runs.values()) - sum(runs)
        for first, end in runs.items():
            if self.plan.group:
                await self._commit(client, subscription, event, first, end)
            elif self.world.is_closing or not subscription.lease_ms:
                await self._settle(client, subscription, event, "ack", first, end)
            else:
                await self._settle_somehow(client, subscription, event, first, end)
        if self.plan.mode == "push":
            if not subscription.lease_ms:
                self._allow(count, trio.current_time())
            await client.tell(m.Credit(subscription.id, count))

    async def _commit(self, client: RawClient, subscription: _Subscription, event: Event, first: int, end: int) -> None:
        if self.world.is_closing or self.rng.random() < 0.7:
            await self._settle(client, subscription, event, "ack", first, end)
        elif self.rng.random() < self.plan.nack and self._counts_attempts():
            await self._settle(client, subscription, event, "nack", first, end)

    def _counts_attempts(self) -> bool:
        return self.world.history.topics[self.plan.topic].delivery == "at-least-once"

    async def _settle_somehow(
        self, client: RawClient, subscription: _Subscription, event: Event, first: int, end: int
    ) -> None:
        plan, rng = self.plan, self.rng
        if rng.random() < plan.extend:
            await self._settle(client, subscription, event, "extend", first, end, ms=rng.choice([500, 3000]))
        if rng.random() < plan.late:
            await trio.sleep(subscription.lease_ms / 1000 * rng.uniform(0.5, 1.5))
        elif rng.random() < 0.3:
            await trio.sleep(rng.uniform(0, 0.2))
        middle = rng.randint(first, end) if rng.random() < 0.3 else end
        for begin, stop in ((first, middle), (middle, end)):
            if begin < stop:
                await self._settle(client, subscription, event, self._verdict(), begin, stop)

    def _verdict(self) -> Verdict:
        chance = self.rng.random()
        if chance < self.plan.nack:
            return "nack"
        return "reject" if chance < self.plan.nack + self.plan.reject else "ack"

    async def _settle(
        self,
        client: RawClient,
        subscription: _Subscription,
        event: Event,
        verdict: Verdict,
        first: int,
        end: int,
        ms: int = 0,
    ) -> None:
        deliver, plan, add = event.message, self.plan, self.world.history.add
        assert isinstance(deliver, m.Deliver)
        asked = add(
            Asked(
                self._life,
                subscription.name,
                plan.topic,
                deliver.partition,
                first,
                end,
                verdict,
                0 if plan.group else deliver.delivery_id,
                ms,
                plan.group,
                subscription.generation,
                plan.shared,
            )
        )
        entry = m.Settlement(deliver.partition, deliver.delivery_id, first, end, _VERDICTS[verdict], ms)
        try:
            settled = await self._call(client, m.Settle(subscription.id, [entry]))
        except Refused as refused:
            check_foreseen(refused)
            add(Answered(asked, refused.code))
            if refused.code == "subscription.unknown":
                raise
            return
        assert isinstance(settled, m.Settled)
        if plan.group:
            await self._tell_early(client, subscription)
        add(Answered(asked, settled.refused[0].code if settled.refused else ""))
