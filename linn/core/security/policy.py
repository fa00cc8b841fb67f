"""The policy: which roles exist, which user has which of them, and what each user may do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

from linn.core.batch.steps import Steps
from linn.core.security.access import Access, FullAccess
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
        self._accesses: WeakValueDictionary[str, Access] = WeakValueDictionary()

    @property
    def roles(self) -> Mapping[str, Sequence[Rule]]:
        """The rules of each role."""
        return self._roles | {ADMINISTRATOR: ALL_RULES}

    def access(self, user: str) -> Access:
        """Return what a user may do: the same object for all of the user's sessions. An unknown user may do nothing."""
        found = self._accesses.get(user)
        if found is None and self.is_open:
            found = self._accesses[user] = FullAccess(user)
        elif found is None:
            quota = Quota(self._monotonic, self._limits_of(user))
            found = self._accesses[user] = Access(user, self._rules_of(user), quota)
        return found

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
        access = self._accesses.pop(user.name, None)  # The next program of this name gets rights of its own.
        if access is not None:
            access.change(())
            for watcher in list(access.watchers):
                watcher()

    def _limits_of(self, name: str) -> Limits:
        user = self.users.find(name)
        return user.limits if user is not None else NO_LIMITS

    def _rules_of(self, name: str) -> Iterator[Rule]:
        if name in self.users.services:
            yield from self.users.services[name].rules
        for role in self.roles_of(name):
            yield from self.roles.get(role, ())

    def _changed(self) -> Steps[None]:
        """Give each user in use the present rules, and tell the user's sessions; one step each."""
        for access in list(self._accesses.values()):
            access.change(self._rules_of(access.user))
            access.quota.change(self._limits_of(access.user))
            yield
            for watcher in list(access.watchers):
                if watcher in access.watchers:
                    watcher()
                yield
