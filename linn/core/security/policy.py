"""The policy: which roles exist, which user has which of them, and what each user may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

from linn.core.batch.steps import Steps
from linn.core.security.access import Access, FullAccess
from linn.core.security.authority import Authority
from linn.core.security.quota import Limits, Quota
from linn.core.security.rule import ALL_RULES, Rule
from linn.core.security.users import NO_LIMITS, ServiceUser, User, Users

ADMINISTRATOR = "administrator"
"""The role that may do everything, which exists without a definition; and the user with this role that stands for
processes with the broker's own user id, over a Unix socket."""


class Policy:
    """The roles and users of one broker.

    `is_open`: every caller may do everything, because the configuration has neither roles, users nor logins.
    """

    def __init__(
        self,
        roles: Mapping[str, Sequence[Rule]],
        users: Users,
        *,
        is_open: bool = False,
        monotonic: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._monotonic = monotonic
        self._roles = dict(roles)
        self.users = users
        self.is_open = is_open
        self.authority: Authority | None = None
        """Asks the authorizer for rights that no role gives; None: there is no authorizer."""
        self._accesses: WeakValueDictionary[tuple[str, frozenset[str]], Access] = WeakValueDictionary()
        self._quotas: WeakValueDictionary[str, Quota] = WeakValueDictionary()

    @property
    def roles(self) -> Mapping[str, Sequence[Rule]]:
        """The rules of each role."""
        return self._roles | {ADMINISTRATOR: ALL_RULES}

    def access(self, user: str, roles: Iterable[str] = ()) -> Access:
        """Return what a user may do, with further roles that a login gave: the same object for all such sessions.

        Unknown roles allow nothing, and an unknown user has none.
        """
        key = user, frozenset(roles)
        found = self._accesses.get(key)
        if found is None:
            found = self._accesses[key] = self._new_access(*key)
        return found

    def _new_access(self, user: str, roles: frozenset[str]) -> Access:
        """Make the rights of a user. A program of a service has its rules alone."""
        if self.is_open:
            return FullAccess(user)
        quota = self._quotas.get(user)
        if quota is None:
            quota = self._quotas[user] = Quota(self._monotonic, self._limits_of(user))
        is_ours = user in self.users.services
        make = Access if self.authority is None or is_ours else self.authority.access
        return make(user, self._rules_of(user, roles), quota)

    def roles_of(self, user: str) -> list[str]:
        """Return the names of a user's roles."""
        found = self.users.find(user)
        if found is not None:
            return list(found.roles)
        return [ADMINISTRATOR] if user == ADMINISTRATOR else []

    def roles_that_allow(self, user: str, operation: str, kind: str, name: str) -> list[str]:
        """Return the user's roles that allow an operation on a resource."""
        return [
            role for role in self.roles_of(user) if Access(user, self.roles.get(role, ())).may(operation, kind, name)
        ]

    def put_role(self, name: str, rules: Sequence[Rule]) -> Steps[None]:
        """Add or replace a role. The steps apply it to each user, and end consumers that it no longer allows."""
        self._roles[name] = rules
        yield from self._changed()

    def remove_role(self, name: str) -> Steps[None]:
        """Remove a role, as `put_role` does."""
        self._roles.pop(name, None)
        yield from self._changed()

    def put_user(self, user: User) -> Steps[None]:
        """Add or replace a user, as `put_role` does."""
        self.users.put(user)
        yield from self._changed()

    def remove_user(self, name: str) -> Steps[None]:
        """Remove a user, as `put_role` does."""
        self.users.remove(name)
        yield from self._changed()

    def begin_service(self, user: ServiceUser) -> None:
        """Let a program of a service log in, with these rights. It replaces one of its name."""
        before = self.users.services.get(user.name)
        if before is not None:
            self.end_service(before)
        self.users.services[user.name] = user

    def end_service(self, user: ServiceUser) -> None:
        """End a program's login and the rights of its connections, which stay without any. Idempotent."""
        if self.users.services.get(user.name) is not user:
            return
        del self.users.services[user.name]
        # The next program of this name gets rights of its own.
        access = self._accesses.pop((user.name, frozenset()), None)
        if access is not None:
            access.change(())
            for watcher in list(access.watchers):
                watcher()

    def _limits_of(self, name: str) -> Limits:
        user = self.users.find(name)
        return user.limits if user is not None else NO_LIMITS

    def _rules_of(self, name: str, more: Iterable[str]) -> Iterator[Rule]:
        if name in self.users.services:
            yield from self.users.services[name].rules
        for role in (*self.roles_of(name), *more):
            yield from self.roles.get(role, ())

    def _changed(self) -> Steps[None]:
        """Give each user in use the present rules, and tell the user's sessions; one step each."""
        for (user, roles), access in list(self._accesses.items()):
            access.change(self._rules_of(user, roles))
            access.quota.change(self._limits_of(access.user))
            yield
            for watcher in list(access.watchers):
                if watcher in access.watchers:
                    watcher()
                yield
