"""The verbs about users and roles, and their recovery at a start.

`Administration` calls the verbs: changes one at a time, queries at any time. Each verb raises LinnErrors.

Laws: users and roles that the configuration file names are changed in the file alone. A caller who lacks a
right can't give it, and changes no user and no role that has it. A change is durable before it holds; when its
verb is answered, no session of the user has more than the new rights. A connection lives no longer than a second after
the user, or the password, with which it has logged in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from linn import rights, verbs
from linn.core.admin.entry_store import EntryStore
from linn.core.admin.stored_entries import ROLE, USER, StoredRole, StoredUser
from linn.core.config.config import Config
from linn.core.connections.connections import Connections
from linn.core.errors.auth import AuthFailed, Forbidden, UserExists, UserUnknown
from linn.core.errors.names import name_problem
from linn.core.errors.tree import ConfigError, ConfigNotLive, LimitExceeded
from linn.core.loop.long_work import LongWork
from linn.core.ports.principal import Principal
from linn.core.security.policy import ADMINISTRATOR, Policy
from linn.core.security.quota import Limits
from linn.core.security.rule import Rule, described_rules, rules_of
from linn.core.security.sasl.plain import PLAIN
from linn.core.security.sasl.scram import SCRAM, SCRAM_PLUS, Verifier
from linn.core.security.users import NO_LIMITS, User, check_user_name
from linn.descriptions import CallerDescription, RightDescription, RoleDescription, UserDescription

USERS_MAX = 100_000
"""Limit of the users: each takes about 1 KiB in memory and in the metadata store."""
ROLES_MAX = 1_000
"""Limit of the roles, for the same reason: with 100 rules, a role takes 20 KiB."""

PASSWORDS = (PLAIN, SCRAM, SCRAM_PLUS)
"""Ways to log in with a password."""


class UserAdministration:
    """Users and roles, shown and changed while the broker runs."""

    def __init__(
        self, config: Config, policy: Policy, connections: Connections, entries: EntryStore, long_work: LongWork
    ) -> None:
        self._config = config
        self._connections = connections
        self._policy = policy
        self._entries = entries
        self._long_work = long_work

    async def recover(self, stored: Mapping[str, Any]) -> None:
        """Take the users and roles from checked entries of the metadata store. What the file names stays as it is."""
        for key, entry in stored.items():
            if key.startswith((ROLE, USER)):
                await self.follow(key, entry)

    async def follow(self, key: str, entry: object) -> None:
        """Put a checked entry of the metadata store into effect; None: it was removed."""
        kind, _, name = key.partition("/")
        if name in (self._config.roles if kind + "/" == ROLE else self._config.users):
            return
        if kind + "/" == ROLE:
            rules = rules_of(msgspec.convert(entry, StoredRole).rules) if entry is not None else None
            change = self._policy.put_role(name, rules) if rules is not None else self._policy.remove_role(name)
            await self._long_work.run(change, immediate=True)
        elif entry is None:
            await self._long_work.run(self._policy.remove_user(name), immediate=True)
            await self._end_connections(name, (), "was deleted")
        else:
            before = self._policy.users.find(name)
            user = User(name=name, **msgspec.structs.asdict(msgspec.convert(entry, StoredUser)))
            await self._long_work.run(self._policy.put_user(user), immediate=True)
            if before is not None and before.scram != user.scram:
                await self._end_connections(name, PASSWORDS, "has another password")

    # --- users ---

    async def create_user(self, asked: verbs.NewUser, caller: Principal) -> verbs.Created:
        """Create a user; nothing happens if there is one with these settings."""
        check_user_name(asked.name)
        roles = tuple(asked.roles)
        user = User(name=asked.name, roles=roles, scram=asked.scram, certificate=asked.certificate, uid=asked.uid)
        user = msgspec.structs.replace(user, limits=_limits(NO_LIMITS, asked.limits))
        existing = self._policy.users.find(user.name)
        if existing == user:
            return {"created": False}
        if existing is not None:
            raise UserExists(f"user {user.name} exists with other settings")
        if len(self._policy.users.by_name) >= USERS_MAX:
            raise LimitExceeded(f"a broker has at most {USERS_MAX} users")
        await self._put_user(user, asked, caller)
        return {"created": True}

    async def alter_user(self, asked: verbs.UserChange, caller: Principal) -> verbs.Changed:
        """Change a user. Connections that have logged in with a password end if it is another one from now on."""
        before = self._live_user(asked.name)
        self._check_grant(before.roles, caller)
        given = {key: value for key in _LOGIN_FACTS if (value := getattr(asked, key)) is not None}
        if given.get("uid") == -1:
            given["uid"] = None
        roles = [*(before.roles if asked.roles is None else asked.roles), *asked.add_roles]
        given["roles"] = tuple(role for role in dict.fromkeys(roles) if role not in asked.remove_roles)
        limits = _limits(before.limits, asked.limits)
        user = msgspec.structs.replace(before, limits=limits, **given)
        if user != before:
            await self._put_user(user, asked, caller)
            if user.scram != before.scram and not asked.validate_only:
                await self._end_connections(user.name, PASSWORDS, "has another password")
        return {"changed": user != before}

    async def delete_user(self, asked: verbs.NamedChange, caller: Principal) -> verbs.Nothing:
        """Delete a user, who may do nothing from then on. Its connections end."""
        self._check_grant(self._live_user(asked.name).roles, caller)
        if not asked.validate_only:
            await self._entries.remove(USER + asked.name)
            await self._long_work.run(self._policy.remove_user(asked.name), immediate=True)
            await self._end_connections(asked.name, (), "was deleted")
        return {}

    async def show_user(self, asked: verbs.Named) -> UserDescription:
        """One user, without the password."""
        return self._described(self._user(asked.name))

    async def list_users(self, _: verbs.NoArguments) -> list[UserDescription]:
        """All users, by name."""
        return [self._described(user) for _, user in sorted(self._policy.users.by_name.items())]

    async def can(self, asked: verbs.RightAsked, caller: Principal) -> RightDescription:
        """Whether a user may do something, and by which roles. Users may ask about themselves."""
        if asked.user != caller.name:
            caller.access.check(rights.ADMIN, rights.BROKER)
        kind, colon, name = asked.resource.partition(":")
        if kind not in rights.OPERATIONS or bool(name) == (kind == rights.BROKER) or bool(colon) != bool(name):
            raise ConfigError(f'"{asked.resource[:80]}" is no resource: write KIND:NAME or "broker"')
        if asked.operation not in rights.OPERATIONS[kind]:
            known = ", ".join(rights.OPERATIONS[kind])
            raise ConfigError(f'there is no operation "{asked.operation[:80]}" on a {kind}: {known}')
        asked_for, access = rights.Need(asked.operation, kind, name), self._policy.access(asked.user)
        await access.decide([asked_for])
        return {
            "allowed": access.may(*asked_for),
            "roles": self._policy.roles_that_allow(asked.user, *asked_for),
        }

    async def whoami(self, _: verbs.NoArguments, caller: Principal) -> CallerDescription:
        """The caller itself."""
        given = sorted(role for role in caller.roles if role in self._policy.roles)
        roles = list(dict.fromkeys([*self._policy.roles_of(caller.name), *given]))
        return {"user": caller.name, "login": caller.login, "roles": roles, "connection": caller.connection}

    def _user(self, name: str) -> User:
        found = self._policy.users.find(name)
        if found is None:
            raise UserUnknown(f"there is no user {name[:80]}")
        return found

    def _live_user(self, name: str) -> User:
        """A user that verbs may change. Raises UserUnknown, ConfigNotLive."""
        if name in self._config.users:
            raise ConfigNotLive(f"user {name} is defined in the configuration file, and changed there")
        return self._user(name)

    async def _put_user(self, user: User, asked: verbs.Change, caller: Principal) -> None:
        self._check_grant(user.roles, caller)
        if user.scram:
            Verifier.parse(user.scram)
        if not asked.validate_only:
            stored = StoredUser(user.roles, user.scram, user.certificate, user.uid, user.limits)
            await self._entries.put(USER + user.name, msgspec.to_builtins(stored))
            await self._long_work.run(self._policy.put_user(user), immediate=True)

    async def _end_connections(self, user: str, ways: Sequence[str], why: str) -> None:
        ending = self._connections.end_of_user(user, ways, AuthFailed(f'the user "{user[:80]}" {why}'))
        await self._long_work.run(ending, immediate=True)

    def _check_grant(self, roles: Iterable[str], caller: Principal) -> None:
        """Check that a caller has all rights of some roles. Raises UserUnknown, Forbidden."""
        for role in roles:
            self._check_rules(self._rules(role), role, caller)

    @staticmethod
    def _check_rules(rules: Sequence[Rule], role: str, caller: Principal) -> None:
        if not all(caller.access.covers(rule) for rule in rules):
            raise Forbidden(f'user "{caller.name[:80]}" lacks rights of the role {role[:80]}, and may not give them')

    def _described(self, user: User) -> UserDescription:
        return {
            "user": user.name,
            "roles": list(user.roles),
            "has_password": bool(user.scram),
            "certificate": user.certificate,
            "uid": user.uid,
            "limits": msgspec.to_builtins(user.limits),
            "in_file": user.name in self._config.users,
        }

    # --- roles ---

    async def create_role(self, asked: verbs.RoleRules, caller: Principal) -> verbs.Created:
        """Create a role; nothing happens if there is one with these rules."""
        wrong = name_problem(asked.name)
        if wrong is not None:
            raise ConfigError(f"role {asked.name!r:.80}: {wrong}")
        rules = rules_of(asked.rules)
        existing = self._policy.roles.get(asked.name)
        if existing is not None:
            if sorted(existing) == sorted(rules):
                return {"created": False}
            raise UserExists(f"role {asked.name} exists with other rules")
        if len(self._policy.roles) >= ROLES_MAX:
            raise LimitExceeded(f"a broker has at most {ROLES_MAX} roles")
        await self._put_role(asked, rules, caller)
        return {"created": True}

    async def alter_role(self, asked: verbs.RoleRules, caller: Principal) -> verbs.Changed:
        """Replace all rules of a role."""
        before, rules = self._live_rules(asked.name), rules_of(asked.rules)
        self._check_rules(before, asked.name, caller)
        if sorted(before) == sorted(rules):
            return {"changed": False}
        await self._put_role(asked, rules, caller)
        return {"changed": True}

    async def delete_role(self, asked: verbs.NamedChange, caller: Principal) -> verbs.Nothing:
        """Delete a role that no user has."""
        self._check_rules(self._live_rules(asked.name), asked.name, caller)
        users = sorted(user.name for user in self._policy.users.by_name.values() if asked.name in user.roles)
        if users:
            raise UserExists(f"role {asked.name} is given to {', '.join(users[:10])}")
        if not asked.validate_only:
            await self._entries.remove(ROLE + asked.name)
            await self._long_work.run(self._policy.remove_role(asked.name), immediate=True)
        return {}

    async def show_role(self, asked: verbs.Named) -> RoleDescription:
        """One role."""
        return self._described_role(asked.name, self._rules(asked.name))

    async def list_roles(self, _: verbs.NoArguments) -> list[RoleDescription]:
        """All roles, by name."""
        return [self._described_role(name, rules) for name, rules in sorted(self._policy.roles.items())]

    def _rules(self, role: str) -> Sequence[Rule]:
        found = self._policy.roles.get(role)
        if found is None:
            raise UserUnknown(f"there is no role {role[:80]}")
        return found

    def _live_rules(self, role: str) -> Sequence[Rule]:
        """The rules of a role that verbs may change. Raises UserUnknown, ConfigNotLive."""
        if role == ADMINISTRATOR:
            raise ConfigNotLive(f"the role {ADMINISTRATOR} may do everything, and can't be changed")
        if role in self._config.roles:
            raise ConfigNotLive(f"role {role} is defined in the configuration file, and changed there")
        return self._rules(role)

    async def _put_role(self, asked: verbs.RoleRules, rules: Sequence[Rule], caller: Principal) -> None:
        self._check_rules(rules, asked.name, caller)
        if not asked.validate_only:
            await self._entries.put(ROLE + asked.name, msgspec.to_builtins(StoredRole(described_rules(rules))))
            await self._long_work.run(self._policy.put_role(asked.name, rules), immediate=True)

    def _described_role(self, name: str, rules: Sequence[Rule]) -> RoleDescription:
        return {"role": name, "rules": described_rules(rules), "in_file": name in self._config.roles}


def _limits(before: Limits, changes: Mapping[str, int]) -> Limits:
    """The limits with changes; 0: none. Raises ConfigError."""
    given = msgspec.to_builtins(before) | dict(changes)
    try:
        return msgspec.convert({key: value for key, value in given.items() if value}, Limits)
    except msgspec.ValidationError as error:
        raise ConfigError(f"limits: {error}") from error


_LOGIN_FACTS = ("scram", "certificate", "uid")
