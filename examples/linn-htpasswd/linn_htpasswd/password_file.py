"""The authenticator: one line of a file for each user.

    ann:scrypt$MTYgcmFuZG9tIGJ5dGVzIQ==$dGhpcyBpcyBub3QgYSBoYXNoIG9mIGFueXRoaW5nIQ==:reader,writer

The file is read at each login, so that a change needs no signal; others must have no rights to it.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Annotated, NamedTuple

import msgspec

from linn.api import Authenticated, Credentials, Env

FILE_BYTES_MAX = 256 << 10
"""Limit of the file, which is read in the broker's loop: thousands of users, in less than a millisecond."""


class PasswordFileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[authenticators.NAME]` with `authenticator = "htpasswd"`."""

    file: Annotated[str, msgspec.Meta(description="The file with one NAME:HASH:ROLES a line.")] = "htpasswd"


class Entry(NamedTuple):
    """One line."""

    salt: bytes
    hashed: bytes
    roles: tuple[str, ...]


NOBODY = Entry(b"16 bytes of salt", b"", ())
"""Takes as long as a user, so that the time does not tell who is one."""


class PasswordFile:
    """The authenticator of one file."""

    def __init__(self, settings: PasswordFileSettings, env: Env) -> None:
        self._path = settings.file
        self._env = env

    async def authenticate(self, credentials: Credentials) -> Authenticated | None:
        """Look the user up, and hash the password in a thread."""
        content = self._env.disk.read_named(self._path, FILE_BYTES_MAX, private=True)
        entry = entries_of(content.decode()).get(credentials.user, NOBODY)
        computed = await self._env.threads.run(lambda: hashed(credentials.secret, entry.salt))
        if not hmac.compare_digest(computed, entry.hashed):
            return None
        return Authenticated(credentials.user, entry.roles)


def hashed(password: str, salt: bytes) -> bytes:
    """Hash a password: 16 MiB of memory and 50 ms."""
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=32)


def line_of(user: str, password: str, salt: bytes, roles: str = "") -> str:
    """Write a user's line."""
    salted, computed = (b64encode(part).decode() for part in (salt, hashed(password, salt)))
    return f"{user}:scrypt${salted}${computed}:{roles}"


def entries_of(text: str) -> dict[str, Entry]:
    """Read a file. Raises ValueError: a line is none. The broker refuses all logins then, and its log says so."""
    found: dict[str, Entry] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            user, secret, roles = line.split(":")
            name, salt, computed = secret.split("$")
            if name != "scrypt":
                raise ValueError("not a hash by scrypt")
            salted, wanted = b64decode(salt, validate=True), b64decode(computed, validate=True)
            found[user] = Entry(salted, wanted, tuple(role for role in roles.split(",") if role))
    return found
