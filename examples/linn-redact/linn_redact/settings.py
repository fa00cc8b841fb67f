"""`[interceptors.redact]`."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec


class RedactSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is masked, and with what."""

    labels: Annotated[tuple[str, ...], msgspec.Meta(description="Names of labels whose value is masked.")] = ()
    headers: Annotated[tuple[str, ...], msgspec.Meta(description="Names of headers whose value is masked.")] = ()
    values: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Regular expressions; what they match in a message's value is masked."),
    ] = ()
    mask: Annotated[str, msgspec.Meta(description="What is put there instead.")] = "***"

    def __post_init__(self) -> None:
        """Raises ValueError where a regular expression is none, so that `linn check` can tell."""
        for number, pattern in enumerate(self.values):
            try:
                re.compile(pattern.encode())
            except re.error as error:
                raise ValueError(f"values[{number}] is no regular expression: {error}") from None
