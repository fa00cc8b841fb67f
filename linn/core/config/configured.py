"""Checked tables of a configuration file that refer to plugins' kinds, or to one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linn.core.config.decoder import encode_settings
from linn.core.config.tables import ExchangeTable
from linn.core.config.topic_settings import BindingSettings
from linn.core.env.secret import Secret
from linn.core.metadata.levels import LEVEL
from linn.core.security.logins import NO_LOGIN, LoginRules


@dataclass(frozen=True, slots=True)
class Configured:
    """A table of a plugin's kind: `[storage.fast]` with `engine = "dram"` has the name "fast" and the kind "dram"."""

    name: str
    kind: str
    settings: Any
    """An instance of the kind's settings; None for a kind without settings."""


@dataclass(frozen=True, slots=True)
class ConfiguredExchange(Configured):
    """An `[exchanges.NAME]` table."""

    table: ExchangeTable
    """The keys that exchanges of all types have."""

    @property
    def alternate(self) -> str | None:
        """The exchange for messages that match no binding."""
        return self.table.alternate

    @property
    def bindings(self) -> tuple[BindingSettings, ...]:
        """Bindings of this exchange to other exchanges."""
        return self.table.bindings

    def encoded(self) -> dict[str, Any]:
        """The whole table."""
        return self.table.encoded(encode_settings(self.settings) if self.settings is not None else {})


@dataclass(frozen=True, slots=True)
class Listener:
    """A `[listeners.NAME]` table."""

    name: str
    address: str
    protocol: str
    settings: Any
    """An instance of the protocol's settings; None for a protocol without settings."""
    tls: str | None = None
    """The name of its `[tls.NAME]` table; None: it speaks no TLS."""
    socket_mode: int = 0o600
    """The mode of the file of a Unix socket."""
    login: LoginRules = NO_LOGIN
    advertise: str | None = None
    """The address under which others reach it; None: the address to which it is bound."""
    shares_port: bool = False
    """Whether other workers of this machine listen at the same port."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The `[cluster]` table."""

    name: str
    node: int
    """The broker's number: at least 1."""
    store: str
    """The kind of the metadata store."""
    store_settings: Any
    """An instance of the kind's settings."""
    listener: str | None
    """The listener for other brokers; None: there is none."""
    secret: Secret | None
    """Shared by all nodes; None: the node reaches no other one, and none reaches it."""
    rack: str
    session_timeout_s: float
    replicas: int
    min_in_sync: int | None
    catch_up_bytes: int
    """The most that is copied each second of topics with which this broker is not in sync."""
    are_workers: bool = False
    """Whether the nodes are workers of one broker: each start has another secret."""
    level: int = LEVEL
    """The greatest level of a cluster that this broker knows."""
