"""Access: what one user may do, as a look-up that is fast enough for each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

from linn.core.errors.auth import Forbidden
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.security.quota import Quota
from linn.core.security.rule import OWN_PREFIX, Rule
from linn.core.security.users import NO_LIMITS
from linn.rights import AUDIT, BROKER, CONFIGURE, PUBLISH, SEE, TOPIC, Need
from linn.verbs import TRANSACTIONS_TOPIC

ALTERING = (PUBLISH, CONFIGURE)
"""Operations on a topic that no rule allows on a topic of linn's own."""
OWN_TOPICS = (AUDIT_TOPIC, TRANSACTIONS_TOPIC)
"""The audit trail, and the log of a cluster's transactions: who may audit may read them, and only linn alters them."""
ANSWERS_MAX = 16_384
"""Limit of the remembered answers of one user, each of about 200 bytes; names may come from the client."""

T = TypeVar("T")


def _ignore(_: Need) -> None:
    """Do nothing."""


class Access:
    """The rights of one user, shared by all of the user's sessions. Everything is denied that no rule allows.

    Answers are remembered until the rules change, so that a check costs one look-up.
    """

    __slots__ = (
        "__weakref__",
        "_answers",
        "_exact",
        "_lengths",
        "_origin",
        "_prefixes",
        "on_refused",
        "quota",
        "user",
        "watchers",
    )

    is_full = False
    """Whether everything is allowed."""
    misses = 0
    """The number of times that an authorizer had to be asked."""

    def __init__(self, user: str, rules: Iterable[Rule] = (), quota: Quota | None = None) -> None:
        self.user = user
        """The user's name in errors."""
        self.quota = quota if quota is not None else Quota(lambda: 0.0, NO_LIMITS)
        """The user's rates."""
        self.watchers: dict[Callable[[], None], Mapping[Any, Sequence[Need]]] = {}
        """Called after the rules have changed, once for each session, with the rights that its consumers need."""
        self.on_refused: Callable[[Need], None] = _ignore
        """Called with each right that `check` finds lacking."""
        self._origin: Access | None = None
        self._answers: dict[tuple[str, str, str], bool] = {}
        self._exact: dict[tuple[str, str], frozenset[str]] = {}
        self._prefixes: dict[tuple[str, str], frozenset[str]] = {}
        self._lengths: list[int] = []
        self.change(rules)

    def of_session(self, on_refused: Callable[[Need], None]) -> Access:
        """Return the same rights for one session, whose refusals are told to `on_refused`."""
        found = copy(self)  # Shares all containers, which `change` changes in place, and keeps their owner.
        found.on_refused, found._origin = on_refused, self
        return found

    def change(self, rules: Iterable[Rule]) -> None:
        """Replace all rules, without calling the watchers."""
        for answers in (self._answers, self._exact, self._prefixes):
            answers.clear()
        for kind, name, is_prefix, operations in rules:
            found = self._prefixes if is_prefix else self._exact
            found[kind, name] = found.get((kind, name), frozenset()) | operations
        self._lengths[:] = sorted({len(name) for _, name in self._prefixes})

    def may(self, operation: str, kind: str, name: str = "") -> bool:
        """Whether the user may do this to the resource, whether or not it exists."""
        answer = self._answers.get((operation, kind, name))
        return self._decided(operation, kind, name) if answer is None else answer

    def check(self, operation: str, kind: str, name: str = "") -> None:
        """Raise Forbidden unless the user may do this."""
        answer = self._answers.get((operation, kind, name))
        if not (self._decided(operation, kind, name) if answer is None else answer):
            self.on_refused(Need(operation, kind, name))
            raise self._forbidden(Need(operation, kind, name))

    def lacks(self, needs: Iterable[Need]) -> Forbidden | None:
        """Return the error about the first right that the user lacks; None: the user has all."""
        return next((self._forbidden(need) for need in needs if not self.may(*need)), None)

    def _forbidden(self, need: Need) -> Forbidden:
        return Forbidden(f'user "{self.user[:80]}" may not {need.described()}')

    def check_all(self, needs: Iterable[Need]) -> None:
        """Raise Forbidden unless the user has all these rights."""
        for need in needs:
            self.check(*need)

    def check_any(self, needs: Sequence[Need]) -> None:
        """Raise Forbidden, about the first, unless the user has one of these rights."""
        if not any(self.may(*need) for need in needs):
            self.check(*needs[0])

    async def decide(self, needs: Iterable[Need]) -> None:
        """Wait until it is decided whether the user has these rights: by rules it always is."""

    async def decided(self, call: Callable[[], T]) -> T:
        """Call a function that checks rights; again, while an authorizer had to be asked for some of them.

        Raises what the call raises. Cancellation: it is not called again.
        """
        while True:
            try:
                return call()
            except Forbidden as error:
                if not error.undecided:
                    raise
                await self.decide(error.undecided)

    async def settle(self) -> None:
        """Wait until no authorizer is being asked about the user."""

    def visible(self, kind: str, names: Iterable[str]) -> list[str]:
        """Return the names of the resources that the user may see."""
        return [name for name in names if self.may(SEE, kind, name)]

    def shown(self, kind: str, names: Iterable[str], names_max: int = 10) -> str:
        """Name the resources that the user may see, sorted, for an error; the others are "others"."""
        every = list(names)
        seen = sorted(self.visible(kind, every))
        return ", ".join([*seen[:names_max], *(["others"] if len(seen) < len(every) else [])])

    def covers(self, rule: Rule) -> bool:
        """Whether the user may do everything that a rule allows, and so may grant it."""
        if not rule.is_prefix:
            return all(self.may(operation, rule.kind, rule.name) for operation in rule.operations)
        return rule.operations <= self._by_prefix(rule.kind, rule.name)

    def _decided(self, operation: str, kind: str, name: str) -> bool:
        if kind == TOPIC and name in OWN_TOPICS:
            return operation not in ALTERING and self.may(AUDIT, BROKER)
        return self._remember((operation, kind, name), self._by_rules(operation, kind, name))

    def _remember(self, asked: tuple[str, str, str], answer: bool) -> bool:
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        self._answers[asked] = answer
        return answer

    def _by_rules(self, operation: str, kind: str, name: str) -> bool:
        allowed = self._exact.get((kind, name), frozenset())
        if not name.startswith(OWN_PREFIX):
            allowed |= self._by_prefix(kind, name)
        return operation in allowed

    def _by_prefix(self, kind: str, name: str) -> frozenset[str]:
        lengths = [length for length in self._lengths if length <= len(name)]
        found = [self._prefixes.get((kind, name[:length])) for length in lengths]
        return frozenset().union(*[operations for operations in found if operations])


class FullAccess(Access):
    """Every right: of all callers where no rights are configured. Topics of linn's own can't be altered even so."""

    __slots__ = ()
    is_full = True

    def may(self, operation: str, kind: str, name: str = "") -> bool:
        """Whether it does not alter a topic of linn's own."""
        return name not in OWN_TOPICS or operation not in ALTERING

    def check(self, operation: str, kind: str, name: str = "") -> None:
        """See `Access.check`."""
        if name in OWN_TOPICS:
            super().check(operation, kind, name)

    def of_session(self, on_refused: Callable[[Need], None]) -> Access:
        """Return itself: nothing is refused."""
        return self

    def covers(self, rule: Rule) -> bool:
        """True."""
        return True
