"""The service port: a plugin's work that runs beside the broker, such as a supervised program.

Laws: a service exists only if something configures it: its own table, or its table in a topic. It runs once clients can
connect, and is drained before they are disconnected. A service that fails is logged with its plugin's name and marked
failed: the broker, its topics and other services go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from linn.core.config.service_tables import Report
from linn.core.config.service_tables import ServiceTopic as ServiceTopic
from linn.core.env.env import Env
from linn.core.ports.principal import Principal
from linn.rights import Need


class ServiceListener(NamedTuple):
    """A bound listener of the broker."""

    name: str
    protocol: str
    address: str
    """The address as bound, with the real port."""
    has_tls: bool = False
    """Whether it speaks only TLS."""
    needs_login: bool = False
    """Whether clients have to log in."""
    takes_login: bool = True
    """Whether a program with a `ServiceLogin` can do so."""


class ServiceLogin(NamedTuple):
    """The login of a program that a service runs. Not to be put into arguments, environments and logs."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"ServiceLogin({self.user!r}, ***)"


class ServiceHost(Protocol):
    """The broker, as a service sees it."""

    @property
    def env(self) -> Env: ...
    @property
    def broker_name(self) -> str: ...
    @property
    def in_cluster(self) -> bool:
        """Whether the broker is one of a cluster, in which other brokers may lead topics."""

    @property
    def state_dir(self) -> str:
        """The folder for the service's state, in the broker's data folder. The service creates it."""

    def listeners(self) -> list[ServiceListener]:
        """The bound listeners."""

    def topics(self) -> Mapping[str, ServiceTopic]:
        """All topics, by name."""

    def topic(self, name: str) -> ServiceTopic | None:
        """One topic; None if there is no topic of this name."""

    def records_behind(self, topic: str, offsets: Mapping[int, int]) -> int:
        """The number of a topic's records that can be read from these offsets on, by partition.

        Without an offset, or with one that the partition has not reached, all its records count. 0 if there is no such
        topic, or another broker leads it.
        """

    def login(
        self, program: str, rights: Mapping[str, Sequence[str]]
    ) -> AbstractAsyncContextManager[ServiceLogin | None]:
        """Let a program log in inside the block, with rights of its own, and end its rights with the block.

        Args:
            program: a name among the service's programs; the user is `service:SERVICE/PROGRAM`.
            rights: the rules of a role: `{"topic:orders": ["consume"]}`.

        The result is None where every client may do everything without a login. Other brokers of a cluster know
        neither the login nor the rights. Raises ConfigError: a rule is malformed.
        """


Sample = tuple[tuple[str, ...], int | float]
"""(values of the labels in the metric's order, value)."""


class Service(Protocol):
    """A service of one broker. Its methods are called from the broker's loop, and must not block it."""

    async def run(self) -> None:
        """Do the work until cancelled. Called once, when clients can connect.

        Returning early means that the service has finished. An exception means that it failed: it is not run again.
        Cancellation: everything that it has started must end before it returns.
        """

    async def drain(self) -> None:
        """Bring the work to an orderly end, and begin no more; the broker stops.

        Cancelled after the broker's `drain_timeout`. `run` is cancelled afterwards.
        """

    def topic_changed(self, name: str, topic: ServiceTopic | None) -> None:
        """A topic was made or altered, this broker leads it now or no longer, or (None) it was deleted. Synchronous;
        work that waits belongs into `run`."""

    def describe(self) -> Any:
        """The service's state as a JSON value, for `service.list`."""

    async def perform(self, action: str, arguments: Mapping[str, Any], caller: Principal) -> Any:
        """Carry out one of the service's actions, requested by `service.perform`; returns a JSON value.

        Raises RequestUnknown: there is no such action. LinnError: documented by the action.
        """

    def metrics(self) -> Mapping[str, Iterable[Sample]]:
        """The samples of the kind's metrics, by name. Omitted metrics have none."""


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    """A metric of a service. Its name includes `linn_` and the unit, like the broker's own metrics."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class ServiceKind:
    """A service, as a plugin registers it."""

    name: str
    """The service's top-level table: `[NAME]`."""
    settings: type[Any]
    """A frozen msgspec.Struct with a default and a help text for each field of that table."""
    make: Callable[[Any, ServiceHost], Service]
    """(settings, host) -> service. Does no I/O. Called once, and only if the service is configured."""
    topic_table: str | None = None
    """The name of an optional table of the service in each topic: `[topics.TOPIC.NAME]`."""
    topic_settings: type[Any] | None = None
    """The struct of that table."""
    check: Callable[[Any, Mapping[str, ServiceTopic], Report], None] | None = None
    """(settings, topics, report): reports contradictions in the tables. Called for a configuration, and for a topic
    that is created or altered over the wire. Does no I/O."""
    check_live: Callable[[Any, Any], str | None] | None = None
    """(settings, table) -> why a request may not give a topic this table, worded as the end of a line; None if it may.
    By default none may: what a table makes a service do is done with the rights of the broker's user. Does no I/O."""
    needs: Callable[[str, Any], Iterable[Need]] | None = None
    """(topic, table) -> the rights, beside `run`, that a caller needs to give the topic this table: to do now the work
    that the service will do, with this topic and others. Does no I/O."""
    metrics: tuple[ServiceMetric, ...] = ()
