"""`[storage.sqlite]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class SqliteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When batches are put on stable storage."""

    fsync: Annotated[
        Literal["os", "always"],
        msgspec.Meta(
            description="os: the operating system decides; survives a crash of the broker, not of the machine. "
            "always: before a publish is confirmed."
        ),
    ] = "os"
