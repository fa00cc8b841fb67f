"""All hooks of linn. This file is the plugin reference; `docs/reference/hooks.md` is generated from it.

A plugin is a module (or any object) with functions marked `hookimpl`:

    from linn.api import EngineKind, hookimpl

    @hookimpl
    def linn_register_engine() -> EngineKind:
        return EngineKind("paper-tape", PaperTapeSettings, PaperTapeEngine)

It is found by the entry-point group `linn` of an installed distribution, or by naming its module in TOML:

    [plugins]
    load = ["my_company.paper_tape"]
    block = ["dram"]

Laws: hooks register objects, and the objects do the work. A hook is called once, while the broker starts; it is
synchronous and does no I/O. No hook is called per batch or per message. It returns one kind or a list of them; None
registers nothing. A module that can't be imported, a name that is taken, a wrong type, an unknown hook, or a hook or
factory that raises stops the start with a `PluginError` that names the plugin and its distribution. Exceptions that a
plugin raises later are handled by its hook's failure policy. A plugin that blocks the loop for longer than
`loop_held_max` is named in the log of `linn serve`, with the place in its code.
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
    from linn.core.metadata.store import MetadataStoreKind
    from linn.core.ports.authenticator import AuthenticatorKind
    from linn.core.ports.authorizer import AuthorizerKind
    from linn.core.ports.interceptor import InterceptorKind
    from linn.core.ports.observer import Observer
    from linn.core.ports.service import ServiceKind
    from linn.core.queue.dispatch_order import OrderKind
    from linn.core.queue.semantics import SemanticsKind
    from linn.core.routing.exchange import ExchangeKind
    from linn.core.routing.partitioner import PartitionerKind

hookspec = pluggy.HookspecMarker("linn")
hookimpl = pluggy.HookimplMarker("linn")
"""Marks a plugin's function as the implementation of the hook of the same name."""


@hookspec
def linn_register_engine() -> EngineKind | Sequence[EngineKind] | None:
    """Register storage engines: `engine =` in `[storage.NAME]`, or `storage = NAME` in a topic.

    The kind's settings are the keys of its `[storage.NAME]` table; `make` is called once for each table in use.

    Failure policy: an engine that raises a `StorageError` fails the operation with it; one that fails a sync stops the
    broker. Any other exception is logged with the plugin's name. It fails a request with `linn.internal` and ends a
    delivery together with its connection; in a background task, such as retention, it stops the broker.
    """


@hookspec
def linn_register_semantics() -> SemanticsKind | Sequence[SemanticsKind] | None:
    """Register delivery semantics: `semantics =` in `[delivery.NAME]`, or `delivery = NAME` in a topic.

    The kind's settings are the keys of its `[delivery.NAME]` table; `make` is called once for each topic.

    Failure policy: a semantics that raises a `DeliveryError` fails the operation with it, and nothing is settled by an
    operation that failed. Any other exception is logged with the plugin's name. It fails a request with `linn.internal`
    and ends a delivery together with its connection; in a background task, such as the end of a lease, it stops the
    broker.
    """


@hookspec
def linn_register_order() -> OrderKind | Sequence[OrderKind] | None:
    """Register dispatch orders, which choose the next of a queue's ready records: `order =` in a topic.

    The kind has no settings of its own; it says which of `order_by`, `weights` and `levels` it takes. `make` is called
    once for each partition of each queue, and again when the order is changed or its index is built anew. The order
    classifies each batch once, by its header columns, and is asked for each delivery.

    Failure policy: records that an order takes are checked, and skipped if they are not ready; a record that it loses
    is delivered after the next start. An order that raises while a consumer asks ends that delivery together with its
    connection, with the plugin's name in the log; one that raises in a background task, as a classification is, stops
    the broker.
    """


@hookspec
def linn_register_exchange() -> ExchangeKind | Sequence[ExchangeKind] | None:
    """Register exchange types: `type =` in `[exchanges.NAME]`.

    The kind's settings are the other keys of the `[exchanges.NAME]` table; `make` is called once for each exchange. It
    is called once per distinct (routing key, labels) pair of a batch, or per distinct tuple of all fields that its
    bindings read; its answers are cached until a binding changes.

    Failure policy: an exchange that raises fails the publish with its `TopicError`, or with `topic.invalid` for any
    other exception, naming the exchange and its type. Nothing of that publish is stored; other publishes go on.
    """


@hookspec
def linn_register_partitioner() -> PartitionerKind | Sequence[PartitionerKind] | None:
    """Register partitioners: `partitioner =` in a topic.

    The kind has no settings; `make` is called once for each topic that names it, and again when the topic is created
    again. It is called once per batch without a partition, for topics with several partitions. Clients choose
    partitions themselves if the partitioner is `murmur2` or `sticky`; otherwise the broker does.

    Failure policy: a partitioner that raises, or returns an invalid partition, fails the publish with `topic.invalid`,
    naming the partitioner and the topic; nothing of that publish is stored.
    """


@hookspec
def linn_register_assignor() -> AssignorKind | Sequence[AssignorKind] | None:
    """Register assignors: `assignor =` in `[groups.NAME]`, or the broker's `default_assignor`.

    The kind has no settings; `make` is called once while the broker starts, if a group or the default names it. It is
    called when members join or leave a group, and when a topic that they read gets more partitions.

    Failure policy: an assignor that raises, or whose answer leaves a partition out or gives it to a member that does
    not read its topic, is logged with the plugin's name. Partitions then stay with their owners, and partitions without
    an owner are distributed in turn, until the group changes again.
    """


@hookspec
def linn_register_format() -> FormatKind | Sequence[FormatKind] | None:
    """Register formats of a batch's body: the number in `format` of a batch, from 1 to 255.

    The kind has no settings; `make` is called once. Its codec is called once for each published batch of the format,
    and otherwise only to separate the records of a batch, or for a reader that does not accept the format. Plugins
    choose the numbers: a broker with two plugins that use the same number does not start.

    Failure policy: a codec that raises when a batch is published refuses that publish with `batch.malformed`, naming
    format and plugin. If it raises later, that batch can't be decoded: a reader gets it unchanged, and a queue
    dead-letters its records. Other batches are not affected.
    """


@hookspec
def linn_register_protocol() -> ProtocolKind | Sequence[ProtocolKind] | None:
    """Register protocols: `protocol =` in `[listeners.NAME]`.

    The kind's settings are the other keys of the `[listeners.NAME]` table; `make` is called once for each listener.

    Failure policy: a protocol that raises closes that connection, with the reason in the log; for an exception other
    than a LinnError, the log also names the plugin. Error replies are up to the protocol. The listener and other
    connections go on.
    """


@hookspec
def linn_register_interceptor() -> InterceptorKind | Sequence[InterceptorKind] | None:
    """Register interceptors: `interceptor =` in `[interceptors.NAME]`, or a name in a topic's `interceptors`.

    The kind's settings are the keys of its `[interceptors.NAME]` table; `make` is called once for each topic that names
    it, and again when the topic is altered. It sees each batch before it is stored; topics without interceptors have no
    overhead.

    Failure policy: an interceptor that raises fails that publish in all its topics with `interceptor.failed`, naming
    interceptor, topic and plugin; a LinnError reaches the producer unchanged. Nothing of that publish is stored; the
    topic and all other publishes go on. A LinnError that names records (`error.of_messages(indexes)`) refuses only
    these, and the interceptor gets the batch again without them.
    """


@hookspec
def linn_register_authenticator() -> AuthenticatorKind | Sequence[AuthenticatorKind] | None:
    """Register authenticators: `authenticator =` in `[authenticators.NAME]`, or a name in a listener's `methods`.

    The kind's settings are the keys of its `[authenticators.NAME]` table; `make` is called once for each that a
    listener names. It is asked about each login with a password (PLAIN) or a token (OAUTHBEARER) over TLS or a Unix
    socket, and answers with the user's name, perhaps with roles and an end, or denies. `authenticate` is a coroutine,
    which waits with `await` and computes in threads.

    Failure policy: an authenticator that raises, answers with another type, or takes longer than 5 seconds refuses that
    login with `auth.failed`, as a wrong password does. The log names the reason once for each login, without the
    exception's text, and the audit trail has the refusal. The next one in `methods` is asked. At most 16 logins are
    with one authenticator at a time; others wait, and count their time.
    """


@hookspec
def linn_register_authorizer() -> AuthorizerKind | Sequence[AuthorizerKind] | None:
    """Register authorizers: `authorizer =` in `[broker]`, which may name an `[authorizers.NAME]` table.

    A broker has at most one. The kind's settings are the keys of its `[authorizers.NAME]` table; `make` is called once.
    It is asked for each right of a user that no role gives, and answers whether the user has it and for how long that
    holds, from a second to an hour. The answer is kept for that time, while the user has a connection; a right that a
    consumer needs is asked for again before its end. The request waits for the answer, and the later ones of its
    connection behind it; other connections go on.

    Failure policy: an authorizer that raises, answers with another type, or takes longer than 5 seconds denies that
    right for a second, with `auth.forbidden`; a consumer that was allowed until then ends. The log names the reason, at
    most once a minute while it stays the same.
    """


@hookspec
def linn_register_metadata_store() -> MetadataStoreKind | Sequence[MetadataStoreKind] | None:
    """Register metadata stores: `store =` in `[cluster]`.

    A metadata store holds the small values on which all brokers of a cluster agree: nodes, topics, leaders. The kind's
    settings are further keys of `[cluster]`; `make` is called once. Safety relies on its conditions and revisions,
    which `linn.testing.metadata_stores` checks.

    Failure policy: a store that raises `metadata.unavailable` or loses a watch is asked again; meanwhile the broker
    serves, and nothing changes. Any other exception is logged with the plugin's name, and counts as unavailable.
    """


@hookspec
def linn_register_observer() -> Observer | Sequence[Observer] | None:
    """Register observers, which are notified of topics, connections, and the broker's start and stop.

    Failure policy: an observer that raises is logged with its plugin's name and counted; nothing else is affected.
    """


@hookspec
def linn_register_service() -> ServiceKind | Sequence[ServiceKind] | None:
    """Register services: work that runs beside the broker, such as a supervised program.

    The kind's settings are the keys of the top-level table `[NAME]`, and of an optional table in each topic,
    `[topics.TOPIC.TABLE]`, which a request may change within the limits of the kind's `check_live`, and with the
    rights that its `needs` names. `make` is called once, and only if a file or a topic has one of these tables. A
    service runs once clients can connect, and is drained before they are sent away; `linn spark` is the command line of
    one. Programs are run through `host.env.programs`; of the broker's environment a program gets the variables that its
    service names. A program that is a client of the broker logs in with a `host.login` of its own, which has the rights
    that the service names, and ends with its block.

    Failure policy: a service that raises is logged with its plugin's name and marked failed until the next start; its
    verbs fail with `service.failed`. The broker, its topics and other services go on.
    """
