"""Subscribing: a consumer's subscriptions to its topics, each at the topic's leader or through the broker at hand.

Laws: all subscriptions of a topic are over one connection, and their records are settled over it. They end with it;
subscriptions of other topics go on. One task at a time subscribes again, as long as there is a broker at hand. After a
leader has ended a subscription because it leads no more, the next leader is waited for, for a while. A subscription
that is passed on moves to the leader once that can be reached, when the application waits for more messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import anyio

from linn.client.connection.answer import Answer
from linn.client.connection.connection import Connection
from linn.client.connection.metadata import find_leaders
from linn.client.consume.arrivals import Arrivals
from linn.client.consume.limits import Limits
from linn.client.consume.membership import Membership
from linn.client.consume.message import Batch
from linn.client.consume.requests import SubscribeRequest, until_subscribed
from linn.client.consume.seeking import Seeking
from linn.client.consume.start_position import Read, Start, requests_for
from linn.client.consume.subscription import Subscriber, Subscription
from linn.core.errors.tree import LinnError, LogTruncated
from linn.wire.messages import ConsumerKind

logger = logging.getLogger("linn.client")

_NEWS_S = 3.0
"""Longest wait for the next leader before the broker at hand is asked, which waits for it as well."""
_NEWS_INTERVAL_S = 0.1
_STRAY_S, _STRAY_S_MAX = 1.0, 60.0
"""First and longest pause before the leader of a topic is looked for whose subscription is passed on."""
_THROUGH_HAND_EVERY = 4
"""One of so many attempts goes through the broker at hand in any case: a leader may be reached and yet not serve."""


class Subscribing(Seeking):
    """The subscriptions of a `Consumer`, a part of it."""

    _named: str
    _membership: Membership
    _group: str
    _adapts: bool
    _prefetch: int
    _renewal_max_s: float
    _mode: str
    _start: Start
    _where: str
    _kind: ConsumerKind | None
    _positions: dict[int, Read]
    _partitions: dict[str, list[int]]
    _revoked: dict[Subscription, None]
    _arrived: Arrivals
    _current: Batch | None
    _unread: Iterator[int]
    _closed: bool
    _wake: Callable[[], None]
    _drop_unwanted: Callable[[], None]
    _on_refused: Callable[[LinnError], None]

    def __init__(self) -> None:
        super().__init__()
        self._subscriptions = []
        self._broken: LinnError | None = None
        """Why the consumer can't go on."""
        self._is_subscribing = False
        """Whether a task subscribes again."""
        self._asked_leader = False
        """Whether the last attempt to subscribe went to a leader directly."""
        self._looks_for_leaders = False
        """Whether a task looks for the leaders of topics whose subscriptions are passed on."""
        self._may_move = False
        """Whether such a leader can be reached now."""
        self._led_until: dict[str, int] = {}
        """By topic, the epoch of the leader that has ended its subscription."""

    def _taken(self, among: Callable[[Subscription], bool]) -> list[Subscription]:
        """Remove subscriptions from the present ones, and return them."""
        taken = [subscription for subscription in self._subscriptions if among(subscription)]
        self._subscriptions = [subscription for subscription in self._subscriptions if subscription not in taken]
        return taken

    def _unsubscribe(self, topics: Sequence[str]) -> list[Answer]:
        subscriptions = self._taken(lambda subscription: subscription.topic in topics)
        answers = [answer for subscription in subscriptions if (answer := subscription.leave()) is not None]
        for subscription in subscriptions:
            self._positions.update(subscription.places())
        return answers

    async def _subscribe(self, hand: Connection, topics: Sequence[str], *, through_hand: bool = False) -> None:
        """Subscribe to topics at their leaders, or else through the broker at hand. Raises the first refusal."""
        whose, leaders = (self._group, self._membership.shared), self._connector.leaders
        if not through_hand:
            await find_leaders(self._connector, topics, anew=True)
        requests = await requests_for(self._connector, topics, whose, self._start, self._where, self._positions)
        self._asked_leader = False
        credit = max(1, self._prefetch // len(requests)) if self._mode == "push" else 0
        membership = self._membership
        adapts, two_phase = self._adapts and not self._group, membership.is_two_phase
        limits = Limits(credit, adapts, self._renewal_max_s, membership.session_s, two_phase)
        answers = []
        for request, positions in requests:
            request.credit = limits.first_credit
            request.member, request.is_static = membership.name, membership.is_static
            request.two_phase, request.uncommitted = two_phase, membership.is_uncommitted
            request.priority = membership.priority
            request.session_ms = round(1000 * membership.session_s)
            leader = None if through_hand else leaders.at(request.topic)
            self._asked_leader = self._asked_leader or leader is not None
            connection = leader or hand
            answer = SubscribeRequest(cast(Subscriber, self), connection, request.topic, limits, positions)
            connection.ask(answer, request)
            answers.append(answer)
        try:
            await until_subscribed(answers, self._connector.time_limit(f"subscribe to {self._named}"))
        except BaseException:
            self._unsubscribe(topics)
            raise

    def _on_subscribed(self, subscription: Subscription) -> None:
        self._subscriptions.append(subscription)
        self._kind = subscription.kind
        if subscription.kind == ConsumerKind.READER:
            known = list(subscription.positions.resume_offsets())
            # Before the first record no partition is known, because one subscription reads all of them.
            self._pause_again(subscription, known or self.paused.get(subscription.topic, []))
        if not self._looks_for_leaders and self._strays():
            self._looks_for_leaders = True
            self._connector.tasks.start_soon(self._look_for_leaders)

    def _missing(self) -> list[str]:
        """Return the topics without a subscription."""
        present = {subscription.topic for subscription in self._subscriptions}
        return [topic for topic in self.topics if topic not in present]

    def _disconnected(self) -> None:
        """End the subscriptions of a lost connection."""
        self._end_lost()

    def _end_lost(self) -> None:
        """End the topics' subscriptions of which a connection is lost."""
        lost = [one.topic for one in self._subscriptions if one.connection.error is not None]
        if lost:
            self._end(lost)

    def _end(self, topics: Sequence[str], left: Sequence[Subscription] = ()) -> None:
        """End the subscriptions of topics: the broker has ended them, their connection is lost, or they are `left`."""
        for subscription in left:
            subscription.end()
        subscriptions = self._taken(lambda subscription: subscription.topic in topics)
        unsettled = sum([subscription.unsettled_count() for subscription in subscriptions])
        if unsettled:
            text = "%(count)d records of %(topic)s were not known to be settled, and may be delivered again"
            logger.warning(text, {"topic": self._named, "count": unsettled})
        for subscription in subscriptions:
            subscription.end()
            self._positions.update(subscription.places())
        for topic in topics:
            self._partitions.pop(topic, None)
        for subscription in subscriptions:
            self._revoked.pop(subscription, None)
        self._drop_unwanted()
        self._wake()

    def _connected(self, connection: Connection) -> None:
        """Subscribe again, in a task."""
        self._subscribe_again()

    def _moved(self) -> None:
        """Subscribe again to topics whose leader is lost."""
        self._end_lost()
        self._subscribe_again()
        self._let_move()

    def _subscribe_again(self) -> None:
        """Subscribe to the topics without a subscription, in a task, unless one is at it or the client reconnects."""
        if not self._is_subscribing and self._connector.usable is not None and self._missing():
            self._is_subscribing = True
            self._connector.tasks.start_soon(self._resubscribe)

    def _strays(self) -> list[Subscription]:
        """Return the subscriptions that are passed on."""
        is_stray = self._connector.leaders.is_stray
        return [one for one in self._subscriptions if is_stray(one.topic, one.connection, one.read_in[0])]

    async def _look_for_leaders(self) -> None:
        """Let subscriptions that are passed on move when their leaders can be reached."""
        pause_s = _STRAY_S
        try:
            while not self._closed and (strays := self._strays()):
                await self._connector.env.clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _STRAY_S_MAX)
                await find_leaders(self._connector, [one.topic for one in strays], anew=True)
                self._let_move()
        finally:
            self._looks_for_leaders = False

    def _movable(self) -> list[Subscription]:
        """Return the subscriptions that are passed on to a leader that can be reached."""
        at = self._connector.leaders.at
        return [one for one in self._strays() if at(one.topic) not in (None, one.connection)]

    def _let_move(self) -> None:
        if self._movable():
            self._may_move = True
            self._wake()

    def _move(self) -> None:
        """Leave the broker at hand for the leaders, where nothing is out that has to be settled there."""
        if self._is_subscribing or self._connector.usable is None:
            return
        strays = self._movable()
        self._may_move = bool(strays)
        topics = list(dict.fromkeys(one.topic for one in strays))
        if topics and all(one.may_move for one in self._subscriptions if one.topic in topics):
            self._is_subscribing = True
            self._connector.tasks.start_soon(self._resubscribe, self._unsubscribe(topics))
            self._end(topics, left=strays)

    async def _resubscribe(self, left: Sequence[Answer] = ()) -> None:
        """Subscribe to the topics without a subscription, once subscriptions have been left. A refusal is raised by the
        next step.
        """
        try:
            with anyio.move_on_after(self._connector.options.request_timeout_s):
                for answer in left:
                    await answer.refusal()
            await self._until_subscribed()
        finally:
            self._is_subscribing = False
        self._wake()

    async def _until_subscribed(self) -> None:
        """Subscribe as long as there is a broker at hand; the next connection to one goes on with it."""
        attempts = 0
        while (hand := self._connector.usable) is not None and not self._closed and (topics := self._missing()):
            try:
                await self._until_news(topics)
                await self._subscribe(hand, topics, through_hand=attempts % _THROUGH_HAND_EVERY == 1)
                attempts = 0
            except LinnError as error:
                if self._connector.usable is not hand:
                    continue
                if isinstance(error, LogTruncated) and error.partition in self._positions:
                    self._go_on_behind(error)
                    continue
                if not error.retriable or self._connector.options._is_used_up(attempts + 1):
                    self._broken = error
                    return
                await self._connector.env.clock.sleep(self._connector.backoff_s(attempts))
                attempts += 1

    async def _until_news(self, topics: Sequence[str]) -> None:
        """Wait until the next leaders are known of topics whose subscriptions their last ones have ended."""
        leaders, clock = self._connector.leaders, self._connector.env.clock
        with anyio.move_on_after(_NEWS_S):
            while leaders.is_needed and any(leaders.epoch(topic) <= self._led_until.get(topic, -1) for topic in topics):
                await find_leaders(self._connector, topics, anew=True)
                await clock.sleep(_NEWS_INTERVAL_S)
        for topic in topics:
            self._led_until.pop(topic, None)

    def _go_on_behind(self, error: LogTruncated) -> None:
        """Drop lost records that have arrived, and read on. If any was handed out, the next step raises the error."""
        before, current = self._positions[error.partition], self._current
        handed = before.offset
        if current is not None and current.partition == error.partition:
            handed = min([handed, *map(current._offset, self._unread)])
        lost = self._arrived.take_back(lambda it: it.partition == error.partition and it.end_offset > error.offset)
        handed = min([handed, *(first for _, first, _ in lost)])
        self._positions[error.partition] = Read(min(handed, error.offset), 0, before.topic_id)
        if handed > error.offset:
            self._on_refused(error)
