"""Every hook of linn. This file is the plugin reference; `docs/reference/hooks.md` is made from it.

A plugin is a module (or any object) with functions marked `hookimpl`:

    from linn.core.hookspecs import hookimpl
    from linn.core.storage import EngineKind

    @hookimpl
    def linn_register_engine() -> EngineKind:
        return EngineKind("paper-tape", PaperTapeSettings, PaperTapeEngine)

It is found by the entry-point group `linn` of an installed distribution, or by naming its module in TOML:

    [plugins]
    load = ["my_company.paper_tape"]
    block = ["dram"]

Laws: hooks bind, objects run. A hook is called once, while the broker starts, is synchronous and does no I/O; no hook
is ever called per batch or per message. It returns one kind or a list of them; None registers nothing. A name that is
taken, a wrong type, a hook that raises and a hook that does not exist stop the start with a `PluginError` that names
the plugin and its distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from linn.core.exchange import ExchangeKind
    from linn.core.observer import Observer
    from linn.core.protocol import ProtocolKind
    from linn.core.semantics import SemanticsKind
    from linn.core.storage import EngineKind

hookspec = pluggy.HookspecMarker("linn")
hookimpl = pluggy.HookimplMarker("linn")
"""Marks a plugin's function as the implementation of the hook of the same name."""


@hookspec
def linn_register_engine() -> EngineKind | Sequence[EngineKind] | None:
    """Bring storage engines: `engine =` in `[storage.NAME]`, or `storage = NAME` in a topic.

    The kind's settings are the keys of its `[storage.NAME]` table; `make` is called once for each table in use.

    Failure policy: an engine that raises fails the operation with its `StorageError`; one that fails a sync stops the
    broker. Any other exception is reported as `linn.internal` and closes the log.
    """


@hookspec
def linn_register_semantics() -> SemanticsKind | Sequence[SemanticsKind] | None:
    """Bring delivery semantics: `semantics =` in `[delivery.NAME]`, or `delivery = NAME` in a topic.

    The kind's settings are the keys of its `[delivery.NAME]` table; `make` is called once for each topic.

    Failure policy: a semantics that raises fails the operation with its `DeliveryError`; nothing is settled by an
    operation that failed.
    """


@hookspec
def linn_register_exchange() -> ExchangeKind | Sequence[ExchangeKind] | None:
    """Bring exchange types: `type =` in `[exchanges.NAME]`.

    The kind's settings are the other keys of the `[exchanges.NAME]` table; `make` is called once for each exchange.
    It routes distinct (routing key, labels) pairs, never single messages, and its answers are cached.

    Failure policy: an exchange that raises fails the publish with its `TopicError`; nothing of that batch is stored.
    """


@hookspec
def linn_register_protocol() -> ProtocolKind | Sequence[ProtocolKind] | None:
    """Bring protocols: `protocol =` in `[listeners.NAME]`.

    The kind's settings are the other keys of the `[listeners.NAME]` table; `make` is called once for each listener.

    Failure policy: a protocol that raises closes that one connection, after an error reply where it can be sent; the
    listener and all other connections go on.
    """


@hookspec
def linn_register_observer() -> Observer | Sequence[Observer] | None:
    """Bring observers, which hear of topics, connections and the broker's start and stop.

    Failure policy: an observer that raises is logged, counted and isolated: nothing else notices.
    """
