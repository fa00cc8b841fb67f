"""Tables of a configuration file other than topics: one frozen struct each, with a default and help for every key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from linn.core.config.decoder import encode_settings
from linn.core.config.topic_settings import (
    DAY_MS,
    BindingSettings,
    Count,
    DeleteWhen,
    Replicas,
    Retention,
    Size,
    TopicSettings,
)
from linn.core.config.units import UNITS_MAX
from linn.core.env.secret import Secret
from linn.core.env.tls import ClientCertificate, Version
from linn.core.groups.assignor import DEFAULT_ASSIGNOR
from linn.core.security.quota import Limits
from linn.core.security.users import NO_LIMITS

MIB = 1 << 20
WORKERS_MAX = 128
"""Limit of the workers of one machine: as many as the metadata store of their supervisor serves."""
CATCH_UP_BYTES = 50_000_000
"""Half of what a network of 1 Gbit/s carries: a copy of 10 GB takes 200 s."""
NODE_MAX = 1_000_000
"""Limit of the number of a node: it is part of keys, and small in every format."""


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[broker]`: the broker as a whole, and its limits."""

    data_dir: Annotated[str, msgspec.Meta(min_length=1, description="Folder for all stored data; made if missing.")] = (
        "linn-data"
    )
    name: Annotated[str, msgspec.Meta(description="The broker's name in logs and to clients.")] = "linn"
    workers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=WORKERS_MAX)] | Literal["auto"] | None,
        msgspec.Meta(
            description='Processes of `linn serve` that share the work, the ports and the topics; "auto": one for each '
            "core that it may use. Default: one process alone. Not together with `[cluster]`."
        ),
    ] = None
    message_bytes_max: Annotated[
        Size, msgspec.Meta(description="The largest message, with key and headers; a topic may ask for less.")
    ] = MIB
    batch_bytes_max: Annotated[
        Size, msgspec.Meta(description="The largest record batch, as sent and when decompressed.")
    ] = 8 * MIB
    frame_bytes_max: Annotated[
        Size, msgspec.Meta(description="The largest frame on the wire; a connection that sends a larger one is closed.")
    ] = 16 * MIB
    connections_max: Annotated[Count, msgspec.Meta(description="Connections at a time, over all listeners.")] = 10_000
    address_connections_max: Annotated[
        Count,
        msgspec.Meta(
            description="Connections at a time from one address, or from one IPv6 network of 64 bits. This machine has "
            "no such limit."
        ),
    ] = 1_000
    user_connections_max: Annotated[
        Count,
        msgspec.Meta(
            description="Connections at a time of one user that has logged in, unless `connections_max` in the user's "
            "`limits` says otherwise."
        ),
    ] = 1_000
    handshakes_max: Annotated[
        Count,
        msgspec.Meta(
            description="Connections at a time that have not finished TLS, hello and login. Beyond it slow ones make "
            "way for new ones."
        ),
    ] = 512
    connection_bytes_max: Annotated[
        Size, msgspec.Meta(description="Output that waits for one client; beyond it the broker stops reading from it.")
    ] = 32 * MIB
    inflight_requests_max: Annotated[
        Count, msgspec.Meta(description="Requests of one connection that may wait for their answers.")
    ] = 1_000
    memory_bytes_max: Annotated[
        Annotated[int, msgspec.Meta(ge=16 * MIB, le=UNITS_MAX)] | None,
        msgspec.Meta(
            description="Memory for waiting data: records of dram topics and indexes of orders (a half), output that "
            "clients have not taken, and publishes in progress (a quarter each); or "
            '"auto": half of the memory of the machine or cgroup.',
            extra={"none": "auto"},
        ),
    ] = None
    subscriptions_max: Annotated[Count, msgspec.Meta(description="Subscriptions of one connection.")] = 1_000
    drain_timeout_s: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            description="How long a stop waits for requests in progress before it closes connections; and before that, "
            "for services such as Spark pipelines.",
        ),
    ] = msgspec.field(default=10.0, name="drain_timeout")
    loop_held_max_ms: Annotated[
        Annotated[int, msgspec.Meta(ge=20, le=UNITS_MAX)] | None,
        msgspec.Meta(
            description="How long one step of `linn serve` may take before the log names the plugin that blocks the "
            'loop, or "unlimited".',
            extra={"none": "unlimited"},
        ),
    ] = msgspec.field(default=250, name="loop_held_max")
    default_storage: Annotated[str, msgspec.Meta(description="Storage of topics that name none.")] = "segmented-log"
    transaction_storage: Annotated[
        str | None,
        msgspec.Meta(
            description="Storage of the decisions of transactions; one that survives no restart keeps them in memory. "
            "Default: `default_storage`."
        ),
    ] = None
    default_delivery: Annotated[str, msgspec.Meta(description="Delivery of topics that name none.")] = "at-least-once"
    default_assignor: Annotated[
        str,
        msgspec.Meta(
            description="The assignor of consumer groups that name none: sticky, range, round-robin, or a plugin's."
        ),
    ] = DEFAULT_ASSIGNOR
    authorizer: Annotated[
        str | None,
        msgspec.Meta(
            description="The authorizer, a plugin that is asked for rights that no role gives: its name, or that of an "
            "`[authorizers.NAME]` table. Default: none."
        ),
    ] = None
    auto_create_topics: Annotated[
        bool, msgspec.Meta(description="Whether using an unknown topic makes it, with all defaults.")
    ] = False

    def __post_init__(self) -> None:
        """Check the limits against each other, and the folder. Raises ValueError."""
        if not self.message_bytes_max <= self.batch_bytes_max <= self.frame_bytes_max:
            raise ValueError("message_bytes_max <= batch_bytes_max <= frame_bytes_max does not hold")
        if "\0" in self.data_dir:
            raise ValueError("data_dir holds a NUL character")


LoginSetting = Literal["none", "required"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "human", "json"]


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: the log of `linn serve` on stderr. For a broker inside a program, the program configures logging."""

    level: Annotated[LogLevel, msgspec.Meta(description="The lowest level that is written.")] = "info"
    format: Annotated[
        LogFormat,
        msgspec.Meta(description="Lines for people, or one JSON object a line; auto: for people on a terminal."),
    ] = "auto"


class PluginSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[plugins]`: installed plugins are found automatically; this adds and blocks some."""

    load: Annotated[
        tuple[str, ...], msgspec.Meta(description="Modules to load as plugins, in addition to the installed ones.")
    ] = ()
    block: Annotated[tuple[str, ...], msgspec.Meta(description="Names of plugins not to load.")] = ()


class ListenerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[listeners.NAME]`: where clients connect. A file without any has one, `native`, with these defaults."""

    protocol: Annotated[
        str, msgspec.Meta(description="The protocol of the listener. Its settings are the table's other keys.")
    ] = "capnp"
    address: Annotated[
        str, msgspec.Meta(description='"HOST:PORT", "[V6]:PORT" or "unix:PATH"; port 0 takes a free one.')
    ] = "127.0.0.1:5466"
    advertise: Annotated[
        str | None,
        msgspec.Meta(
            description='"HOST:PORT" under which others reach the listener, as the cluster tells it. Default: the '
            "address to which it is bound."
        ),
    ] = None
    socket_mode: Annotated[
        str,
        msgspec.Meta(
            pattern="^0?[0-7]{3}$",
            description="The mode of the file of a Unix socket: who may connect. By default only the user that runs "
            'the broker; "0660" lets the file\'s group in.',
        ),
    ] = "0600"
    tls: Annotated[
        str | None, msgspec.Meta(description="The `[tls.NAME]` table with which the listener speaks only TLS.")
    ] = None
    plaintext: Annotated[
        bool,
        msgspec.Meta(
            description="Whether an address that other machines can reach may be without TLS. Everybody on the way can "
            "then read and change what is sent."
        ),
    ] = False
    login: Annotated[
        LoginSetting | None,
        msgspec.Meta(
            description="required: clients say who they are before anything else; none: they need not. Default: none, "
            "for an address that only this machine reaches; others must say it."
        ),
    ] = None
    methods: Annotated[
        tuple[str, ...] | None,
        msgspec.Meta(
            description="Ways to log in: peer (the user id at the other end of a Unix socket), certificate (of the "
            "client, in TLS), scram (a password), token, plain (a password that the broker sees), and names of "
            "authenticators, which see passwords or tokens; they are asked in this order. Tokens and plain passwords "
            "need TLS or a Unix socket. Default: all that the protocol has, but plain only where it has no scram, as "
            "metrics."
        ),
    ] = None


class TlsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tls.NAME]`: a certificate with its key, for the listeners that name it. The files are read again every 10
    seconds and at SIGHUP, for new connections."""

    certificate: Annotated[
        str,
        msgspec.Meta(min_length=1, description="File in PEM: the broker's certificate, then those that lead to it."),
    ]
    key: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="File in PEM: the certificate's private key. Only its owner may have rights to it.",
        ),
    ]
    client_ca: Annotated[
        str | None, msgspec.Meta(description="File in PEM: the authorities whose certificates clients may show.")
    ] = None
    client_certificate: Annotated[
        ClientCertificate,
        msgspec.Meta(
            description="Whether a client is asked for a certificate that `client_ca` has signed, and refused without "
            "one: none, optional or required."
        ),
    ] = "none"
    versions: Annotated[
        Version, msgspec.Meta(description='The lowest version of TLS: "1.3", or "1.2" for old clients.')
    ] = "1.3"
    handshake_timeout_s: Annotated[
        float, msgspec.Meta(gt=0, description="How long a new connection may take for the handshake.")
    ] = msgspec.field(default=10.0, name="handshake_timeout")

    def __post_init__(self) -> None:
        """Check that asking for certificates and `client_ca` go together. Raises ValueError."""
        if self.client_certificate != "none" and self.client_ca is None:
            raise ValueError(f'client_certificate = "{self.client_certificate}" needs client_ca')


class StorageTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[storage.NAME]`: a storage engine with its settings. Every engine's own name exists without a table."""

    engine: Annotated[
        str | None,
        msgspec.Meta(description="The engine. Default: the table's NAME. Its settings are the table's other keys."),
    ] = None


class DeliveryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[delivery.NAME]`: delivery semantics with settings. Every semantics' own name exists without a table."""

    semantics: Annotated[
        str | None,
        msgspec.Meta(description="The semantics. Default: the table's NAME. Its settings are the table's other keys."),
    ] = None


class InterceptorTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[interceptors.NAME]`: an interceptor with settings. Every interceptor's own name exists without a table."""

    interceptor: Annotated[
        str | None,
        msgspec.Meta(
            description="The interceptor. Default: the table's NAME. Its settings are the table's other keys."
        ),
    ] = None


class AuthenticatorTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[authenticators.NAME]`: a check of passwords or tokens, for listeners with this NAME in their `methods`. Every
    authenticator's own name exists without a table."""

    authenticator: Annotated[
        str | None,
        msgspec.Meta(
            description="The authenticator. Default: the table's NAME. Its settings are the table's other keys."
        ),
    ] = None


class AuthorizerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[authorizers.NAME]`: an authorizer with settings, for `authorizer` in `[broker]`. Every authorizer's own name
    exists without a table."""

    authorizer: Annotated[
        str | None,
        msgspec.Meta(description="The authorizer. Default: the table's NAME. Its settings are the table's other keys."),
    ] = None


ExchangeLifetime = Literal["kept", "broker"]


class ExchangeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[exchanges.NAME]`: an exchange, to which topics and other exchanges bind."""

    type: Annotated[
        str,
        msgspec.Meta(
            description="direct, fanout, topic, headers, content, consistent-hash, or a plugin's. Its settings are the "
            "table's other keys."
        ),
    ] = "direct"
    alternate: Annotated[
        str | None, msgspec.Meta(description="The exchange for messages that match no binding of this one.")
    ] = None
    bindings: Annotated[
        tuple[BindingSettings, ...],
        msgspec.Meta(description="Bindings of other exchanges to this one, as an array of tables."),
    ] = ()
    internal: Annotated[
        bool,
        msgspec.Meta(description="Refuse what clients publish to it: messages come from other exchanges alone."),
    ] = False
    delete_when: Annotated[
        DeleteWhen,
        msgspec.Meta(description="Delete the exchange with its last binding, and not before there was one, or never."),
    ] = "never"
    lifetime: Annotated[
        ExchangeLifetime,
        msgspec.Meta(
            description="Keep the exchange over restarts, or as long as the broker runs that made it. Only for "
            "exchanges that are made live."
        ),
    ] = "kept"

    @property
    def is_transient(self) -> bool:
        """Whether the exchange ends with the broker that made it."""
        return self.lifetime != "kept"

    @property
    def further(self) -> dict[str, Any]:
        """The keys that are stored and shown only where they are set: brokers below level 3 do not know them."""
        encoded = encode_settings(self)
        return {key: encoded[key] for key in _FURTHER if encoded[key] != _FURTHER[key]}

    def encoded(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The whole table, with the settings of its type."""
        table = encode_settings(self)
        return {key: table[key] for key in table if key not in _FURTHER} | self.further | dict(own)


_FURTHER = {"internal": False, "delete_when": "never", "lifetime": "kept"}
"""With their defaults."""


class GroupTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[groups.NAME]`: a consumer group. Groups without a table exist as well, as soon as they have a member."""

    assignor: Annotated[
        str | None,
        msgspec.Meta(description="The assignor, which divides partitions. Default: the broker's `default_assignor`."),
    ] = None


Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"]


class TokensTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tokens]`: JSON Web Tokens with which users log in. Needs `linn[tokens]`. The file is read again every 10
    seconds, and at SIGHUP."""

    keys: Annotated[
        str | None,
        msgspec.Meta(description="File with the public keys of the issuer, a JSON Web Key Set. Default: no tokens."),
    ] = None
    issuer: Annotated[str, msgspec.Meta(description="The `iss` that a token must have.")] = ""
    audience: Annotated[str, msgspec.Meta(description="The `aud` that a token must have.")] = ""
    algorithms: Annotated[
        tuple[Algorithm, ...], msgspec.Meta(description="Algorithms of signatures that are taken.")
    ] = ("RS256", "ES256", "Ed25519")
    user_claim: Annotated[str, msgspec.Meta(description="The claim with the user's name.")] = "sub"
    roles_claim: Annotated[
        str,
        msgspec.Meta(
            description="The claim with a list of roles, which the user has besides those of `[users]` for as long as "
            "the token lives; unknown ones, and `administrator`, are ignored. With it, users need not be known to the "
            "broker. Default: none."
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Check that keys come with an issuer and an audience. Raises ValueError."""
        if self.keys is not None and not (self.issuer and self.audience):
            raise ValueError("keys need an issuer and an audience")


class AuditTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[audit]`: the stream `__audit`, in which the broker writes logins, refusals and changes with their users."""

    enabled: Annotated[
        bool | None,
        msgspec.Meta(description="Whether it is written. Default: if the file has roles, users or logins."),
    ] = None
    storage: Annotated[
        str | None, msgspec.Meta(description="Its storage. Default: the broker's `default_storage`.")
    ] = None
    retention_ms: Annotated[
        Retention | None,
        msgspec.Meta(description="Age at which records are dropped.", extra={"none": "forever"}),
    ] = msgspec.field(default=365 * DAY_MS, name="retention")
    retention_bytes: Annotated[
        Size | None,
        msgspec.Meta(description="Size beyond which the oldest records are dropped.", extra={"none": "unlimited"}),
    ] = 1024 * MIB


class RoleTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[roles.NAME]`: what users with this role may do. The role `administrator` exists without a table, and may do
    everything."""

    rules: Annotated[
        Mapping[str, Any],
        msgspec.Meta(
            description='Each key is a resource: "KIND:NAME", "KIND:PREFIX*" or "broker"; its value names the '
            'operations that are allowed on it, such as ["see", "publish"].',
            extra={"rest": True},
        ),
    ] = {}


class UserTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[users.NAME]`: a user. Others are made by `linn users create`. The user `anonymous` stands for all clients
    without a login."""

    roles: Annotated[tuple[str, ...], msgspec.Meta(description="The user's roles.")] = ()
    scram: Annotated[
        str | Secret,
        msgspec.Meta(
            description="The verifier of the user's password, as `linn users verifier` prints it, or where it is: "
            '`{ file = "PATH" }`, `{ env = "NAME" }` or `{ credential = "NAME" }`. Default: no password.'
        ),
    ] = ""
    certificate: Annotated[
        str,
        msgspec.Meta(description="The URI or DNS name in the certificate with which the user logs in. Default: none."),
    ] = ""
    uid: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        msgspec.Meta(description="The user id on this machine that logs in over a Unix socket. Default: none."),
    ] = None
    limits: Annotated[
        Limits,
        msgspec.Meta(
            description="Limits over all connections of the user: `receive_bytes_per_s`, `send_bytes_per_s` and "
            "`requests_per_s`, which the broker keeps by reading and delivering later; the same with `client_` in "
            "front, for each client name; and `connections_max`, beyond which it refuses connections. Default: none."
        ),
    ] = NO_LIMITS


class ClusterTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[cluster]`: makes the broker one of several. Without the table it is alone."""

    name: Annotated[
        str,
        msgspec.Meta(description="The cluster's name in the metadata store, the same for all of its brokers."),
    ]
    node: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=NODE_MAX,
            description="This broker's number, of no other broker of the cluster. A broker that replaces another one "
            "has its number, and an empty data folder.",
        ),
    ]
    store: Annotated[
        str,
        msgspec.Meta(
            description="The metadata store, on which all brokers of the cluster agree. Its settings are the table's "
            "other keys."
        ),
    ]
    listener: Annotated[
        str | None,
        msgspec.Meta(
            description='The name of a listener with `protocol = "peers"`, at which other brokers reach this one. '
            "Default: none; nothing is replicated or passed on then."
        ),
    ] = None
    secret: Annotated[
        Secret | None,
        msgspec.Meta(
            description="Where the secret is with which the brokers of the cluster know each other: "
            '`{ file = "PATH" }`, `{ env = "NAME" }` or `{ credential = "NAME" }`. Default: none.'
        ),
    ] = None
    rack: Annotated[
        str,
        msgspec.Meta(
            max_length=255, description="The name of what may fail as a whole; replicas go to different racks."
        ),
    ] = ""
    session_timeout_s: Annotated[
        float,
        msgspec.Meta(
            ge=1,
            le=3600,
            description="How long the metadata store waits for a sign of this broker before the cluster gives it up.",
        ),
    ] = msgspec.field(default=6.0, name="session_timeout")
    replicas: Annotated[
        Replicas, msgspec.Meta(description="Number of brokers that hold a topic which sets no `replicas` of its own.")
    ] = 3
    min_in_sync: Annotated[
        Replicas | None,
        msgspec.Meta(description="`min_in_sync` of topics that set none. Default: all of their replicas but one."),
    ] = None
    catch_up_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=1024,
            le=UNITS_MAX,
            description="The most that this broker copies each second of topics with which it is not in sync, all "
            "together. What keeps it in sync with others is never held back.",
        ),
    ] = msgspec.field(default=CATCH_UP_BYTES, name="catch_up_rate")


TABLES: Mapping[str, type[msgspec.Struct]] = {
    "broker": BrokerSettings,
    "log": LogSettings,
    "listeners": ListenerTable,
    "tls": TlsTable,
    "plugins": PluginSettings,
    "storage": StorageTable,
    "delivery": DeliveryTable,
    "exchanges": ExchangeTable,
    "interceptors": InterceptorTable,
    "authenticators": AuthenticatorTable,
    "authorizers": AuthorizerTable,
    "topics": TopicSettings,
    "groups": GroupTable,
    "audit": AuditTable,
    "tokens": TokensTable,
    "roles": RoleTable,
    "users": UserTable,
    "cluster": ClusterTable,
}
"""The top-level tables; all except `broker`, `log`, `plugins`, `audit`, `tokens` and `cluster` hold tables with a
NAME."""
