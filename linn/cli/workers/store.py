"""The metadata store of a supervisor, as a plugin that only its workers load."""

from __future__ import annotations

from typing import Annotated

import msgspec

from linn import __version__
from linn.api import Env, hookimpl
from linn.core.metadata.served import ServedStore
from linn.core.metadata.store import MetadataStoreKind

NAME = "supervisor"


class SupervisorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place at which the supervisor serves the store."""

    address: Annotated[str, msgspec.Meta(description="The address of a Unix socket.")] = ""


def _make(name: str, settings: SupervisorSettings, env: Env) -> ServedStore:
    return ServedStore(settings.address, env.net, __version__)


@hookimpl
def linn_register_metadata_store() -> MetadataStoreKind:
    """Register the store."""
    return MetadataStoreKind(NAME, SupervisorSettings, _make)
