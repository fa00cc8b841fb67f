"""The service port: a plugin's work that runs beside the broker, such as a supervised program.

Laws: a service exists only if something configures it: its own table, or its table in a topic. It runs from the moment
when clients can connect, and is drained before they are sent away. One that fails is logged with its plugin's name and
marked failed: the broker, its topics and all other services go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from linn.core.config.service_tables import Report
from linn.core.config.service_tables import ServiceTopic as ServiceTopic
from linn.core.env.env import Env
from linn.core.ports.principal import Principal


class ServiceListener(NamedTuple):
    """A bound listener of the broker."""

    name: str
    protocol: str
    address: str
    """The address as bound, with the real port."""


class ServiceHost(Protocol):
    """The broker, as a service sees it."""

    @property
    def env(self) -> Env: ...
    @property
    def broker_name(self) -> str: ...
    @property
    def state_dir(self) -> str:
        """The folder for the service's state, in the broker's data folder. It is made by the service."""

    def listeners(self) -> list[ServiceListener]:
        """The listeners that are bound."""

    def topics(self) -> Mapping[str, ServiceTopic]:
        """All topics, by name."""

    def topic(self, name: str) -> ServiceTopic | None:
        """One topic; None if there is none of that name."""

    def records_behind(self, topic: str, offsets: Mapping[int, int]) -> int:
        """The number of a topic's records that can be read from these offsets on, by partition.

        Without an offset, or with one that the partition has not reached, all records of it count. 0: there is no such
        topic.
        """


Sample = tuple[tuple[str, ...], int | float]
"""(the labels' values in the metric's order, the value)."""


class Service(Protocol):
    """A service of one broker. Its methods are called from the broker's loop, and must not block it."""

    async def run(self) -> None:
        """Do the work until cancelled. Called once, when clients can connect.

        Returning early is a service that has nothing more to do. An exception is its failure: it is not run again.
        Cancellation: whatever it has started has ended when it returns.
        """

    async def drain(self) -> None:
        """Bring the work to an orderly end, and begin no new one; the broker stops.

        Cancelled after the broker's `drain_timeout`. `run` is cancelled afterwards.
        """

    def topic_changed(self, name: str, topic: ServiceTopic | None) -> None:
        """A topic was made or altered, or (None) is gone. Synchronous; work that waits belongs into `run`."""

    def describe(self) -> Any:
        """The service's state as a JSON value, for `service.list`."""

    async def perform(self, action: str, arguments: Mapping[str, Any], caller: Principal) -> Any:
        """Carry out an action of the service's own, asked for by `service.perform`; returns a JSON value.

        Raises RequestUnknown: there is no such action. LinnError: as the action says.
        """

    def metrics(self) -> Mapping[str, Iterable[Sample]]:
        """The samples of the kind's metrics, by name. Those that are left out have none."""


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    """A metric of a service. `linn_` and the unit belong to its name as to those of the broker's own."""

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
    """(settings, host) -> service. Does no I/O. Called once, and only if something configures the service."""
    topic_table: str | None = None
    """The name of the table that each topic may have for the service: `[topics.TOPIC.NAME]`. It may change live."""
    topic_settings: type[Any] | None = None
    """The struct of that table."""
    check: Callable[[Any, Mapping[str, ServiceTopic], Report], None] | None = None
    """(settings, topics, report): reports what contradicts each other in the tables. Called for a configuration, and
    for a topic that is made or altered over the wire. Does no I/O.
    """
    metrics: tuple[ServiceMetric, ...] = ()
