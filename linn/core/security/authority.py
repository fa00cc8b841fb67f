"""The authority: the authorizer, a plugin that is asked for rights that no role gives, and what its answers allow.

Laws: an answer holds for the time that it says, and no longer. An exception, an answer of another type and one after
`ANSWER_S` are denials that hold for `FAILED_HOLD_S`. A look-up does not wait for an answer: `check` raises a
`Forbidden` with the rights that are `undecided`; a caller that can wait awaits `decide`, and checks again. Rights of
consumers are asked for again before the answer ends; a denial ends the consumer.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple
from weakref import ReferenceType, ref

import trio

from linn.core.errors.auth import Forbidden
from linn.core.security.access import ALTERING, ANSWERS_MAX, OWN_TOPICS, Access
from linn.core.security.quota import Quota
from linn.core.security.rule import Rule
from linn.rights import AUDIT, BROKER, SEE, TOPIC, Need

logger = logging.getLogger("linn.rights")

ANSWER_S = 5.0
"""Time for an answer, waiting for a turn included."""
QUESTIONS_AT_ONCE = 64
"""Questions that the authorizer answers at a time."""
WAITING_MAX = 4_096
"""Questions of all users that may wait, each in a task of about 4 KiB; beyond it, the answer is no."""
VISIBLE_AT_ONCE = 256
"""Names of a list that are asked about together."""
HOLD_S_MIN, HOLD_S_MAX = 1.0, 3_600.0
"""Bounds of the time for which an answer holds: below a second every batch would ask; beyond an hour is an hour."""
FAILED_HOLD_S = 1.0
"""Time for which a failure is a denial, so that an authorizer that fails is asked once a second for each right."""
COMPACTED_AT = 100_000
"""Entries of the list of ends, each of 200 bytes, beyond which entries of users without a session are removed."""
LOGGED_AGAIN_S = 60.0
"""Time after which the same failure is logged again."""


class Decision(NamedTuple):
    """The answer of an authorizer."""

    allowed: bool
    holds_s: float
    """Seconds for which the answer holds, from 1; longer than an hour is an hour. A change is felt after that time."""


class _Held(NamedTuple):
    allowed: bool
    renew_s: float
    ends_s: float


_DENIED_LATE = "gave no answer in time"


class Authority:
    """The questions to the authorizer, of all users."""

    def __init__(
        self,
        ask: Callable[[str, str, str, str], Awaitable[object]],
        monotonic: Callable[[], float],
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        blamed: Callable[[BaseException], str],
    ) -> None:
        """`ask`: user, operation, kind and name -> a Decision; `spawn`: starts a task of the broker."""
        self._ask = ask
        self._monotonic = monotonic
        self._spawn = spawn
        self._blamed = blamed
        self._turns = trio.CapacityLimiter(QUESTIONS_AT_ONCE)
        self._waiting = 0
        self._due: list[tuple[float, int, ReferenceType[AskedAccess], Need]] = []
        self._due_count = 0
        self._compacted_at = COMPACTED_AT
        self._earlier = trio.Event()
        self._logged = "", 0.0

    def access(self, user: str, rules: Iterable[Rule], quota: Quota) -> AskedAccess:
        """Make the rights of a user who has some by rules, and may have others by the authorizer."""
        return AskedAccess(user, rules, quota, self)

    def ask(self, access: AskedAccess, need: Need, within_s: float = ANSWER_S) -> None:
        """Ask for a right, unless the question is under way."""
        if need in access.pending:
            return
        if self._waiting >= WAITING_MAX:
            self._log(f"{WAITING_MAX} questions wait")
            self._hold(access, need, Decision(False, FAILED_HOLD_S))
            return
        access.pending[need] = trio.Event()
        self._waiting += 1
        self._spawn(partial(self._question, access, need, within_s))

    async def run(self) -> None:
        """Drop answers when they end, and ask again for rights that consumers need shortly before. Never returns."""
        while True:
            while self._due and self._due[0][0] <= self._monotonic():
                _, _, reference, need = heapq.heappop(self._due)
                access = reference()
                if access is not None:
                    self._look_after(access, need)
                del access
                await trio.lowlevel.checkpoint()
            self._earlier = trio.Event()
            until_s = self._due[0][0] - self._monotonic() if self._due else ANSWER_S
            with trio.move_on_after(max(0.0, until_s)):
                await self._earlier.wait()

    def _look_after(self, access: AskedAccess, need: Need) -> None:
        held, now_s = access.held.get(need), self._monotonic()
        if held is None:
            return
        if now_s >= held.ends_s:
            access.forget(need)
        elif now_s >= held.renew_s:
            self._due_at(held.ends_s, access, need)
            if held.allowed and access.is_needed(need):
                self.ask(access, need, held.ends_s - now_s)

    async def _question(self, access: AskedAccess, need: Need, within_s: float) -> None:
        try:
            self._hold(access, need, await self._answer(access.user, need, within_s))
        finally:
            self._waiting -= 1
            access.pending.pop(need).set()
        if not access.held[need].allowed:
            for watcher in list(access.watchers):
                if watcher in access.watchers:
                    watcher()
                    await trio.lowlevel.checkpoint()

    async def _answer(self, user: str, need: Need, within_s: float) -> Decision:
        found: object = None
        try:
            with trio.move_on_after(within_s) as scope:
                async with self._turns:
                    found = await self._ask(user, *need)
        except Exception as error:
            self._log(f"failed: {type(error).__name__} in {self._blamed(error)}")
            return Decision(False, FAILED_HOLD_S)
        is_late = trio.current_time() >= scope.deadline  # Which it may also be without being cancelled.
        problem = _DENIED_LATE if is_late else problem_with(found)
        if problem is None:
            assert isinstance(found, Decision), "checked just now"
            return found
        self._log(problem)
        return Decision(False, FAILED_HOLD_S)

    def _hold(self, access: AskedAccess, need: Need, decision: Decision) -> None:
        now_s, holds_s = self._monotonic(), min(decision.holds_s, HOLD_S_MAX)
        held = _Held(decision.allowed, now_s + holds_s - min(ANSWER_S, holds_s / 2), now_s + holds_s)
        access.hold(need, held)
        self._due_at(held.renew_s, access, need)

    def _due_at(self, at_s: float, access: AskedAccess, need: Need) -> None:
        if len(self._due) >= self._compacted_at:
            self._due = [entry for entry in self._due if entry[2]() is not None]
            heapq.heapify(self._due)
            self._compacted_at = max(COMPACTED_AT, 2 * len(self._due))
        self._due_count += 1
        heapq.heappush(self._due, (at_s, self._due_count, ref(access), need))
        if self._due[0][0] == at_s:
            self._earlier.set()

    def _log(self, problem: str) -> None:
        last, at_s = self._logged
        if problem != last or self._monotonic() - at_s >= LOGGED_AGAIN_S:
            logger.error("the authorizer denies, because it %(problem)s", {"problem": problem})
            self._logged = problem, self._monotonic()


def problem_with(found: object) -> str | None:
    """The reason why an answer is none; None if it is one."""
    if not isinstance(found, Decision):
        return f"answered with a {type(found).__name__}, not with a Decision"
    allowed: object = found.allowed
    holds_s: object = found.holds_s
    if not isinstance(allowed, bool):
        return f"answered with a {type(allowed).__name__}, not with True or False"
    if isinstance(holds_s, bool) or not isinstance(holds_s, int | float) or not holds_s >= HOLD_S_MIN:
        return f"answered with a time to hold that is not at least {HOLD_S_MIN:.0f} s"
    return None


class AskedAccess(Access):
    """The rights of a user by rules, and by an authorizer where no rule gives them."""

    __slots__ = ("_authority", "held", "misses", "pending")

    def __init__(self, user: str, rules: Iterable[Rule], quota: Quota, authority: Authority) -> None:
        self._authority = authority
        self.held: dict[Need, _Held] = {}
        """Answers that hold, the oldest first."""
        self.pending: dict[Need, trio.Event] = {}
        """Questions under way."""
        self.misses = 0
        super().__init__(user, rules, quota)

    def check(self, operation: str, kind: str, name: str = "") -> None:
        """See `Access.check`. The Forbidden names the right as `undecided` while the authorizer is asked."""
        if not self.may(operation, kind, name):
            need = Need(operation, kind, name)
            if self._is_undecided(need):
                raise self._undecided([need])
            super().check(operation, kind, name)

    def check_all(self, needs: Iterable[Need]) -> None:
        """See `Access.check_all`. All of them are asked for together."""
        every = list(needs)
        undecided = [need for need in every if not self.may(*need) and self._is_undecided(need)]
        if undecided:
            raise self._undecided(undecided)
        super().check_all(every)

    def check_any(self, needs: Sequence[Need]) -> None:
        """See `Access.check_any`."""
        if not any(self.may(*need) for need in needs):
            undecided = [need for need in needs if self._is_undecided(need)]
            if undecided:
                raise self._undecided(undecided)
            super().check_any(needs)

    def lacks(self, needs: Iterable[Need]) -> Forbidden | None:
        """See `Access.lacks`. An undecided right is not lacking yet."""
        return super().lacks(need for need in needs if self.may(*need) or not self._is_undecided(need))

    def visible(self, kind: str, names: Iterable[str]) -> list[str]:
        """See `Access.visible`. Raises Forbidden while the authorizer is asked about some of them."""
        found, undecided = list[str](), list[Need]()
        for name in names:
            if self.may(SEE, kind, name):
                found.append(name)
            elif self._is_undecided(Need(SEE, kind, name)):
                undecided.append(Need(SEE, kind, name))
                if len(undecided) == VISIBLE_AT_ONCE:
                    break
        if undecided:
            raise self._undecided(undecided)
        return found

    def covers(self, rule: Rule) -> bool:
        """Whether rules allow it: an answer that ends gives no right to grant."""
        if not rule.is_prefix:
            return all(self._by_rules(operation, rule.kind, rule.name) for operation in rule.operations)
        return super().covers(rule)

    async def decide(self, needs: Iterable[Need]) -> None:
        """Wait until it is decided whether the user has these rights. Cancellation: the questions go on."""
        for need in needs:
            while not self.may(*need) and self._is_undecided(need):
                await self.pending[_asked_for(need)].wait()

    async def settle(self) -> None:
        """Wait until no question about the user is under way."""
        while self.pending:
            await next(iter(self.pending.values())).wait()

    def hold(self, need: Need, held: _Held) -> None:
        """Take an answer."""
        self.forget(need)
        self.held[need] = held
        if len(self.held) > ANSWERS_MAX:
            self.forget(next(iter(self.held)))

    def forget(self, need: Need) -> None:
        """Drop an answer."""
        self.held.pop(need, None)
        self._answers.pop(need, None)

    def is_needed(self, need: Need) -> bool:
        """Whether a consumer of the user exists by this right."""
        return any(need in needs for consumers in self.watchers.values() for needs in consumers.values())

    def _decided(self, operation: str, kind: str, name: str) -> bool:
        need = Need(operation, kind, name)
        asked_for = _asked_for(need)
        if asked_for != need:
            return operation not in ALTERING and self.may(*asked_for)
        answer = self._by_rules(*need)
        if not answer:
            held = self.held.get(need)
            if held is None:
                self.misses += 1
                origin = self._origin if isinstance(self._origin, AskedAccess) else self
                self._authority.ask(origin, need)
                return False
            answer = held.allowed
        return self._remember(need, answer)

    def _is_undecided(self, need: Need) -> bool:
        asked_for = _asked_for(need)
        return asked_for in self.pending and asked_for not in self.held

    def _undecided(self, needs: Sequence[Need]) -> Forbidden:
        error = self._forbidden(needs[0])
        error.undecided = needs
        return error


def _asked_for(need: Need) -> Need:
    """The right on which one depends: `audit`, for a topic of linn's own."""
    return Need(AUDIT, BROKER) if need.kind == TOPIC and need.name in OWN_TOPICS else need
