"""A plugin as a third party would write it: one of each kind, with settings of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from linn.core.errors.tree import BindingInvalid
from linn.core.gateway.protocol import ProtocolKind
from linn.core.groups.assignor import AssignorKind
from linn.core.log.storage import EngineKind
from linn.core.metadata.store import MetadataStoreKind
from linn.core.plugins.hookspecs import hookimpl
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.semantics import SemanticsKind
from linn.core.routing.exchange import Binding, ExchangeKind, Subject
from linn.core.routing.partitioner import PartitionerKind


class TapeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings with a unit in each key."""

    tape_bytes_max: Annotated[int, msgspec.Meta(ge=1, description="Length of a tape.")] = 1 << 20
    rewind_interval_s: Annotated[float, msgspec.Meta(ge=0, description="Time between rewinds.")] = 1.5
    colour: Annotated[str, msgspec.Meta(description="Colour of the tape.")] = "buff"


class TeletypeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A protocol's settings."""

    baud: Annotated[int, msgspec.Meta(ge=50, description="Bits a second.")] = 110


class Desk:
    """An exchange for one routing key a desk, which takes the argument `urgent`."""

    def __init__(self) -> None:
        self._bindings: list[Binding] = []

    def bind(self, binding: Binding) -> None:
        if set(binding.arguments) - {"urgent"}:
            raise BindingInvalid("a desk knows no argument but urgent")
        self._bindings.append(binding)

    def unbind(self, binding: Binding) -> None:
        self._bindings.remove(binding)

    def bindings(self) -> Sequence[Binding]:
        return self._bindings

    def fields(self) -> frozenset[str]:
        return frozenset()

    def match(self, subject: Subject) -> Sequence[Binding]:
        return [binding for binding in self._bindings if binding.key == subject.routing_key]


class CardIndexSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metadata store's settings."""

    drawers: Annotated[int, msgspec.Meta(ge=1, description="Number of drawers.")] = 1


def never_made(*args: Any) -> Any:
    """Reading a configuration makes no engine, semantics or server."""
    raise AssertionError("made while a configuration was read")


@hookimpl
def linn_register_engine() -> list[EngineKind]:
    return [EngineKind(name, TapeSettings, never_made) for name in ("segmented-log", "tape")]


@hookimpl
def linn_register_semantics() -> SemanticsKind:
    return SemanticsKind("at-least-once", LeaseSettings, never_made)


@hookimpl
def linn_register_exchange() -> ExchangeKind:
    return ExchangeKind("desk", None, lambda name, settings: Desk())


@hookimpl
def linn_register_partitioner() -> PartitionerKind:
    return PartitionerKind("murmur2", never_made)


@hookimpl
def linn_register_assignor() -> list[AssignorKind]:
    return [AssignorKind(name, never_made) for name in ("sticky", "by-weight")]


@hookimpl
def linn_register_protocol() -> list[ProtocolKind]:
    kinds = [ProtocolKind(name, TeletypeSettings, never_made) for name in ("capnp", "teletype")]
    return [*kinds, ProtocolKind("courier", TeletypeSettings, never_made, links=never_made)]


@hookimpl
def linn_register_metadata_store() -> MetadataStoreKind:
    return MetadataStoreKind("card-index", CardIndexSettings, never_made)
