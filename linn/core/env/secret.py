"""References to secrets: a setting names the file, variable or credential that holds the value.

Laws: a reference never holds the value, which is read where it is used and is in no description, export, log or error.
Its repr, and its place in everything that the broker shows, is `***`. In a table of a service, every table of one of
the three keys with a text is a reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from linn.core.env.env import Env
from linn.core.errors.tree import SecretUnusable, StorageError

MASK = "***"
"""Text in the place of a secret."""
SECRET_BYTES_MAX = 64 << 10
"""Limit of a secret: keys and tokens have some KiB."""
MASKED_CHARACTERS_MIN = 4
"""The shortest value that is masked in texts of others: a shorter one would mask half of the words."""
CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""The variable in which systemd names the folder of a service's credentials."""
HOW_TO_WRITE_SECRETS = 'write { file = "PATH" }, { env = "NAME" } or { credential = "NAME" }'
_KINDS = ("file", "env", "credential")

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference to a secret, with exactly one of its fields."""

    file: Name | None = None
    """A file that only its owner may use. One line feed at its end is not part of the value."""
    env: Name | None = None
    """A variable of the broker's environment."""
    credential: Name | None = None
    """A credential that systemd passes to the service (systemd.exec(5), `LoadCredential=`)."""

    def __post_init__(self) -> None:
        """Check that there is one place. Raises ValueError."""
        if sum(getattr(self, kind) is not None for kind in _KINDS) != 1:
            raise ValueError(f"names no place, or more than one: {HOW_TO_WRITE_SECRETS}")
        if self.credential is not None and ("/" in self.credential or self.credential in (".", "..")):
            raise ValueError("names a credential, not a path")

    def __repr__(self) -> str:
        return MASK

    def reveal(self, env: Env) -> str:
        """Read the value.

        Raises SecretUnusable, which names the place: there is none, others may read it, it is not a file, it is empty,
        has more than 64 KiB or is not text in UTF-8.
        """
        if self.env is not None:
            found = env.process.variable(self.env)
            if not found:
                raise SecretUnusable(f"the variable {self.env} is not set, or is empty")
            return found
        path = self.file or f"{self._credentials(env)}/{self.credential}"
        try:
            # systemd keeps its folder from others; its files may have the mode of an access list.
            data = env.disk.read_named(path, SECRET_BYTES_MAX, private=self.file is not None)
        except StorageError as error:
            raise SecretUnusable(error.text) from error
        try:
            value = data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise SecretUnusable(f"{path} is not text in UTF-8") from None
        if not value:
            raise SecretUnusable(f"{path} is empty")
        return value

    def _credentials(self, env: Env) -> str:
        folder = env.process.variable(CREDENTIALS)
        if not folder:
            text = f"the credential {self.credential} is not there: systemd sets {CREDENTIALS} for a service that has"
            raise SecretUnusable(f"{text} LoadCredential={self.credential}:PATH")
        return folder


def secrets_in(value: object) -> Iterator[tuple[tuple[str | int, ...], Secret]]:
    """Yield the references in a value with their places, such as ("options", "password")."""
    items: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, Secret):
        yield (), value
    elif isinstance(value, msgspec.Struct):
        items = ((field.encode_name, getattr(value, field.name)) for field in msgspec.structs.fields(type(value)))
    elif isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, list | tuple):
        items = iter(enumerate(value))
    for key, part in items:
        for place, secret in secrets_in(part):
            yield (key, *place), secret


def masked(value: Any) -> Any:
    """Replace the references in a table of a service, as it stands in a file, by `***`."""
    if isinstance(value, Secret):
        return MASK
    if isinstance(value, Mapping):
        if len(value) == 1 and isinstance(value.get(next(iter(value))), str) and next(iter(value)) in _KINDS:
            return MASK
        return {key: masked(part) for key, part in value.items()}
    return [masked(part) for part in value] if isinstance(value, list | tuple) else value


def without(secrets: tuple[str, ...], text: str) -> str:
    """Replace values of secrets by `***` in a text from elsewhere, such as another program's error."""
    for secret in secrets:
        if len(secret) >= MASKED_CHARACTERS_MIN:
            text = text.replace(secret, MASK)
            text = text.replace(msgspec.json.encode(secret).decode()[1:-1], MASK)
    return text
