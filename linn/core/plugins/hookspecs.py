"""All hooks of linn. This file is the plugin reference; `docs/reference/hooks.md` is made from it.

A plugin is a module (or any object) with functions marked `hookimpl`:

    from linn.api import EngineKind, hookimpl

    @hookimpl
    def linn_register_engine() -> EngineKind:
        return EngineKind("paper-tape", PaperTapeSettings, PaperTapeEngine)

It is found by the entry-point group `linn` of an installed distribution, or by naming its module in TOML:

    [plugins]
    load = ["my_company.paper_tape"]
    block = ["dram"]

Laws: hooks bind, objects run. A hook is called once, while the broker starts, is synchronous and does no I/O; no hook
is ever called per batch or per message. It returns one kind or a list of them; None registers nothing. A module that
can't be imported, a name that is taken, a wrong type, a hook or a factory that raises and a hook that does not exist
stop the start with a `PluginError` that names the plugin and its distribution. Exceptions that a plugin raises later
are handled by its hook's failure policy. A plugin that blocks the loop for longer than `loop_held_max` is named in the
log of `linn serve`, with the place in its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from linn.core.batch.format import FormatKind
    from linn.core.gateway.protocol import ProtocolKind
    from linn.core.groups.assignor import AssignorKind
    from linn.core.log.storage import EngineKind
    from linn.core.ports.interceptor import InterceptorKind
    from linn.core.ports.observer import Observer
    from linn.core.ports.service import ServiceKind
    from linn.core.queue.semantics import SemanticsKind
    from linn.core.routing.exchange import ExchangeKind
    from linn.core.routing.partitioner import PartitionerKind

hookspec = pluggy.HookspecMarker("linn")
hookimpl = pluggy.HookimplMarker("linn")
"""Marks a plugin's function as the implementation of the hook of the same name."""


@hookspec
def linn_register_engine() -> EngineKind | Sequence[EngineKind] | None:
    """Bring storage engines: `engine =` in `[storage.NAME]`, or `storage = NAME` in a topic.

    The kind's settings are the keys of its `[storage.NAME]` table; `make` is called once for each table in use.

    Failure policy: an engine that raises a `StorageError` fails the operation with it; one that fails a sync stops the
    broker. Any other exception is logged with the plugin's name. It fails a request with `linn.internal` and ends a
    delivery together with its connection; in a chore that nobody waits for, such as retention, it stops the broker.
    """


@hookspec
def linn_register_semantics() -> SemanticsKind | Sequence[SemanticsKind] | None:
    """Bring delivery semantics: `semantics =` in `[delivery.NAME]`, or `delivery = NAME` in a topic.

    The kind's settings are the keys of its `[delivery.NAME]` table; `make` is called once for each topic.

    Failure policy: a semantics that raises a `DeliveryError` fails the operation with it, and nothing is settled by an
    operation that failed. Any other exception is logged with the plugin's name. It fails a request with `linn.internal`
    and ends a delivery together with its connection; in a chore, such as the end of a lease, it stops the broker.
    """


@hookspec
def linn_register_exchange() -> ExchangeKind | Sequence[ExchangeKind] | None:
    """Bring exchange types: `type =` in `[exchanges.NAME]`.

    The kind's settings are the other keys of the `[exchanges.NAME]` table; `make` is called once for each exchange.
    It is asked once per distinct (routing key, labels) of a batch, and where its bindings look at more, once per
    distinct tuple of that; its answers are cached until a binding changes.

    Failure policy: an exchange that raises fails the publish, with its `TopicError`, or else with `topic.invalid`,
    which names the exchange and its type. Nothing of that publish is stored; all others go on.
    """


@hookspec
def linn_register_partitioner() -> PartitionerKind | Sequence[PartitionerKind] | None:
    """Bring partitioners: `partitioner =` in a topic.

    The kind has no settings; `make` is called once for each topic that names it, and again when the topic is made
    anew. It is asked once per batch that comes without a partition, for topics that have more than one. Clients choose
    partitions themselves where the partitioner is `murmur2` or `sticky`, and leave it to the broker elsewhere.

    Failure policy: a partitioner that raises, or names no partition, fails the publish with `topic.invalid`, which
    names it and the topic; nothing of that publish is stored.
    """


@hookspec
def linn_register_assignor() -> AssignorKind | Sequence[AssignorKind] | None:
    """Bring assignors: `assignor =` in `[groups.NAME]`, or the broker's `default_assignor`.

    The kind has no settings; `make` is called once while the broker starts, if a group or the default names it. It is
    asked when members of a group come and go, and when a topic that they read gets partitions.

    Failure policy: an assignor that raises, or whose answer leaves a partition out or gives it to a member that does
    not read its topic, is logged with the plugin's name. Partitions then stay with their owners, and those that have
    none are dealt out in turn, until the group changes again.
    """


@hookspec
def linn_register_format() -> FormatKind | Sequence[FormatKind] | None:
    """Bring formats of a batch's body: the number in `format` of a batch, from 1 to 255.

    The kind has no settings; `make` is called once. Its codec is asked once for each batch of the format that is
    published, and otherwise only where the records of one must be told apart, or for a reader that does not take it.
    Numbers are chosen by the plugins: two that bring the same one do not start together.

    Failure policy: a codec that raises when a batch is published refuses that publish with `batch.malformed`, which
    names format and plugin. One that raises later makes of that batch one that can't be decoded: a reader gets it as it
    is, a queue makes dead letters of its records. All other batches go on.
    """


@hookspec
def linn_register_protocol() -> ProtocolKind | Sequence[ProtocolKind] | None:
    """Bring protocols: `protocol =` in `[listeners.NAME]`.

    The kind's settings are the other keys of the `[listeners.NAME]` table; `make` is called once for each listener.

    Failure policy: a protocol that raises closes that one connection, with the reason in the log, and where it is no
    LinnError, with the plugin's name. An error reply is the protocol's own affair. The listener and all other
    connections go on.
    """


@hookspec
def linn_register_interceptor() -> InterceptorKind | Sequence[InterceptorKind] | None:
    """Bring interceptors: `interceptor =` in `[interceptors.NAME]`, or a name in a topic's `interceptors`.

    The kind's settings are the keys of its `[interceptors.NAME]` table; `make` is called once for each topic that names
    it, and again when the topic is altered. It sees each batch before it is stored; topics without any pay nothing.

    Failure policy: an interceptor that raises fails that publish, in all topics that it would have gone to, with
    `interceptor.failed`, which names interceptor, topic and plugin; a LinnError that it raises reaches the producer as
    it is. Nothing of that publish is stored; the topic and all other publishes go on. A LinnError that names records
    (`error.of_messages(indexes)`) refuses these alone, and the rest of the batch comes again without them.
    """


@hookspec
def linn_register_observer() -> Observer | Sequence[Observer] | None:
    """Bring observers, which hear of topics, connections and the broker's start and stop.

    Failure policy: an observer that raises is logged with its plugin's name, counted and isolated: nothing else
    notices.
    """


@hookspec
def linn_register_service() -> ServiceKind | Sequence[ServiceKind] | None:
    """Bring services: work that runs beside the broker, such as a supervised program.

    The kind's settings are the keys of the top-level table `[NAME]`, and of one table that each topic may have,
    `[topics.TOPIC.TABLE]`, which may change live. `make` is called once, and only if a file or a topic has one of these
    tables: what nothing configures costs nothing. A service runs once clients can connect, and is drained before they
    are sent away; `linn spark` is the command line of one. Programs are run through `host.env.programs`.

    Failure policy: a service that raises is logged with its plugin's name and is marked failed until the next start;
    its verbs get `service.failed`. The broker, its topics and all other services go on.
    """
