"""The services of a broker: made when configured, run, drained, and isolated from each other.

Laws: a service without configuration is not made. An exception of a service is logged with its plugin's name and marks
the service failed; it has no other effect.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import trio

from linn.core.config.config import Config
from linn.core.config.service_tables import ServiceTopic, not_live, own_table
from linn.core.env.env import Env, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigNotLive, InternalError, LinnError, ServiceFailed, ServiceUnknown
from linn.core.log.partition import Partition
from linn.core.ports.principal import Principal
from linn.core.ports.service import Sample, Service, ServiceKind, ServiceListener, ServiceLogin
from linn.core.security.policy import Policy
from linn.core.security.rule import rules_of
from linn.core.security.sasl.scram import SALT_BYTES, make_verifier
from linn.core.security.users import SERVICE, ServiceUser
from linn.core.topics.topic import Topic
from linn.descriptions import ServiceDescription

logger = logging.getLogger("linn.service")

Samples = Callable[[ServiceKind, str], Iterable[Sample]]
"""Reads the samples of a service's metric."""
PASSWORD_BYTES = 32
"""Random bytes of a program's password, beyond any guess."""
STATE_FOLDER = "__services"
"""The folder of the services' state in the data folder; no storage can have this name."""


class Host:
    """The broker, as one service sees it."""

    def __init__(
        self,
        kind: ServiceKind,
        config: Config,
        env: Env,
        topics: Mapping[str, Topic],
        addresses: Callable[[], Any],
        policy: Policy,
    ) -> None:
        self.env = env
        self.broker_name = config.broker.name
        self.in_cluster = config.cluster is not None
        self.state_dir = f"{config.broker.data_dir}/{STATE_FOLDER}/{kind.name}"
        self._kind = kind
        self._config = config
        self._topics = topics
        self._addresses = addresses
        self._policy = policy

    def listeners(self) -> list[ServiceListener]:
        """The bound listeners."""
        bound: Mapping[str, str] = self._addresses()
        protocols = self._config.listeners
        found: list[ServiceListener] = []
        for name, address in bound.items():
            listener, login = protocols[name], protocols[name].login
            has_tls = listener.tls is not None
            asks = has_tls and self._config.tls[str(listener.tls)].client_certificate == "required"
            takes = not asks and (not login.is_required or "scram" in login.methods)
            found.append(ServiceListener(name, listener.protocol, address, has_tls, login.is_required, takes))
        return found

    @asynccontextmanager
    async def login(self, program: str, rights: Mapping[str, Sequence[str]]) -> AsyncIterator[ServiceLogin | None]:
        """Let a program log in inside the block. See `ServiceHost.login`."""
        if self._policy.is_open:
            yield None
            return
        rules, random_bytes = rules_of(rights), self.env.rng.bytes
        login = ServiceLogin(f"{SERVICE}{self._kind.name}/{program}", random_bytes(PASSWORD_BYTES).hex())
        salt = random_bytes(SALT_BYTES)
        verifier = await self.env.threads.run(lambda: make_verifier(login.password, salt))
        user = ServiceUser(login.user, verifier, rules)
        self._policy.begin_service(user)
        try:
            yield login
        finally:
            self._policy.end_service(user)

    def topics(self) -> dict[str, ServiceTopic]:
        """All topics, by name."""
        return {name: seen(topic, self._kind, self._config) for name, topic in self._topics.items()}

    def topic(self, name: str) -> ServiceTopic | None:
        """One topic; None if there is no topic of this name."""
        topic = self._topics.get(name)
        return seen(topic, self._kind, self._config) if topic is not None else None

    def records_behind(self, topic: str, offsets: Mapping[int, int]) -> int:
        """The number of a topic's records that can be read from these offsets on, by partition.

        Without an offset, or with one that the partition has not reached, all its records count. 0 if there is no such
        topic, or another broker leads it.
        """
        known = self._topics.get(topic)
        partitions = known.partitions if known is not None else {}
        return sum(_behind(partition, offsets.get(index, 0)) for index, partition in partitions.items())


def seen(topic: Topic, kind: ServiceKind, config: Config) -> ServiceTopic:
    """Return a topic as a service sees it: without a table that this broker's own file does not permit."""
    elsewhere = topic.led_by().text if topic.led_by is not None else None
    own = own_table(topic.settings, kind) if refusal(topic, kind, config) is None else None
    return ServiceTopic(topic.settings, own, elsewhere)


def refusal(topic: Topic, kind: ServiceKind, config: Config) -> ConfigNotLive | None:
    """Return why this broker's file does not permit a service's table that another broker gave the topic; None: it
    does.
    """
    if config.cluster is None:
        return None  # It was checked when the topic got it, and at the start.
    configured = config.topics.get(topic.name)
    in_file = configured.services if configured is not None else {}
    return next(iter(not_live(topic.name, topic.settings, in_file, [kind], config.services).values()), None)


def _behind(partition: Partition, offset: int) -> int:
    return partition.readable_count(offset if offset <= partition.high_watermark else 0)


@dataclass(slots=True)
class RunningService:
    """A service that was made."""

    kind: ServiceKind
    owner: str
    """A description of the plugin that registered it."""
    service: Service | None
    """None: its factory failed."""
    state: Literal["waiting", "running", "ended", "failed"] = "waiting"
    """A service waits until clients can connect."""
    error: str | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancel scope around its `run`."""
    ended: trio.Event = field(default_factory=trio.Event)


class Services:
    """All services of a broker, by name."""

    def __init__(
        self,
        kinds: Mapping[str, ServiceKind],
        config: Config,
        env: Env,
        topics: Mapping[str, Topic],
        addresses: Callable[[], Mapping[str, str]],
        policy: Policy,
        make: Callable[..., Any],
        owner_of: Callable[[ServiceKind], str],
        spawn: Spawn,
        add_metrics: Callable[[ServiceKind, Samples], None],
    ) -> None:
        self._kinds = kinds
        self._config = config
        self._env = env
        self._topics = topics
        self._addresses = addresses
        self._policy = policy
        self._make = make
        self._owner_of = owner_of
        self._spawn = spawn
        self._add_metrics = add_metrics
        self._running: dict[str, RunningService] = {}
        self._serving = False
        self._stopping = False

    @property
    def running(self) -> Iterable[RunningService]:
        """The services that were made."""
        return self._running.values()

    # --- life ---

    def start(self) -> None:
        """Make and run the configured services; clients can connect. Raises PluginError if a factory fails."""
        self._serving = True
        for name, kind in self._kinds.items():
            if name in self._config.services or self._has_table(kind):
                service = self._made(kind)
                self._running[name] = RunningService(kind, self._owner_of(kind), service)
        for running in self._running.values():
            self._begin(running)

    def _has_table(self, kind: ServiceKind) -> bool:
        return any(kind.topic_table in topic.settings.services for topic in self._topics.values())

    def _made(self, kind: ServiceKind) -> Service:
        host = Host(kind, self._config, self._env, self._topics, self._addresses, self._policy)
        settings = self._config.services.get(kind.name)
        service: Service = self._make(kind, settings if settings is not None else kind.settings(), host)
        return service

    def _begin(self, running: RunningService) -> None:
        running.state = "running"
        self._add_metrics(running.kind, self.samples)

        async def run() -> None:
            await self._run(running)

        self._spawn(run)

    async def _run(self, running: RunningService) -> None:
        assert running.service is not None
        try:
            with running.scope:
                await running.service.run()
            if running.state == "running":
                running.state = "ended"
        except BaseExceptionGroup as group:
            failed, rest = group.split(Exception)
            if failed is not None:
                self._failed(running, failed)
            if rest is not None:
                raise rest from None
        except Exception as error:
            self._failed(running, error)
        finally:
            running.ended.set()

    @staticmethod
    def _failed(running: RunningService, error: Exception) -> None:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        said = first.text if isinstance(first, LinnError) else f"{type(first).__name__}: {first}"
        running.state, running.error = "failed", one_line(said)
        about = {"service": running.kind.name, "plugin": running.owner, "error": running.error}
        about["code"] = getattr(first, "code", InternalError.code)
        text = 'service "%(service)s", of %(plugin)s, failed; everything else goes on: %(error)s'
        logger.error(text, about, exc_info=error)

    async def drain(self, timeout_s: float) -> None:
        """Drain the services for at most `timeout_s`, then cancel them. The broker still serves them."""
        self._stopping = True
        alive = [running for running in self._running.values() if running.state == "running"]
        if not alive:
            return
        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                for running in alive:
                    nursery.start_soon(self._drain, running)
        for running in alive:
            running.scope.cancel()
        for running in alive:
            await running.ended.wait()

    async def _drain(self, running: RunningService) -> None:
        assert running.service is not None
        try:
            await running.service.drain()
        except Exception as error:
            self._failed(running, error)

    # --- topics ---

    def topic_changed(self, name: str, topic: Topic | None) -> None:
        """Tell the services that a topic was made or altered, has another leader, or was deleted (None). Never raises.

        A service that this topic's table configures for the first time is made and run.
        """
        if not self._serving or self._stopping:
            return
        known = list(self._running.values())
        if topic is not None and topic.settings.services:
            for kind in self._kinds.values():
                if kind.name not in self._running and kind.topic_table in topic.settings.services:
                    self._make_late(kind)  # It finds the topic in the list of topics.
        for running in known:
            if running.state == "running" and running.service is not None:
                shown = self._shown(topic, running.kind) if topic is not None else None
                try:
                    running.service.topic_changed(name, shown)
                except Exception as error:
                    self._failed(running, error)
                    running.scope.cancel()

    def _shown(self, topic: Topic, kind: ServiceKind) -> ServiceTopic:
        if (refused := refusal(topic, kind, self._config)) is not None:
            logger.warning(
                "a table does nothing at this broker: %(error)s", {"topic": topic.name} | log_fields(refused)
            )
        return seen(topic, kind, self._config)

    def _make_late(self, kind: ServiceKind) -> None:
        running = self._running[kind.name] = RunningService(kind, self._owner_of(kind), None)
        try:
            running.service = self._made(kind)
        except Exception as error:
            self._failed(running, error)
        else:
            self._begin(running)

    # --- looking and acting ---

    def describe(self) -> list[ServiceDescription]:
        """All services that were made, as JSON."""
        return [self._describe(running) for running in self._running.values()]

    def _describe(self, running: RunningService) -> ServiceDescription:
        return {
            "name": running.kind.name,
            "plugin": running.owner,
            "state": running.state,
            "error": running.error,
            "status": self._status(running),
        }

    def _status(self, running: RunningService) -> Any:
        try:
            return running.service.describe() if running.service is not None and running.state != "failed" else None
        except Exception as error:
            self._failed(running, error)
            running.scope.cancel()
            return None

    async def perform(self, name: str, action: str, arguments: Mapping[str, Any], caller: Principal) -> Any:
        """Carry out an action of a service. Raises ServiceUnknown, ServiceFailed, and the action's LinnErrors."""
        running = self._running.get(name)
        if running is None and name in self._kinds:
            raise ServiceUnknown(f'nothing in the configuration or in a topic turns the service "{name}" on')
        if running is None:
            raise ServiceUnknown(f'there is no service "{name[:80]}"')
        if running.service is None or running.state != "running":
            raise ServiceFailed(f'the service "{name}" has {running.state}: {running.error or "it does no more"}')
        return await self._guarded(running, running.service.perform(action, arguments, caller))

    async def _guarded(self, running: RunningService, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except LinnError:
            raise
        except Exception as error:
            self._failed(running, error)
            running.scope.cancel()
            raise ServiceFailed(f'the service "{running.kind.name}" failed: {running.error}') from error

    def samples(self, kind: ServiceKind, metric: str) -> list[Sample]:
        """The samples of a service's metric; empty while the service does not run."""
        running = self._running.get(kind.name)
        if running is None or running.service is None or running.state == "failed":
            return []
        try:
            return list(running.service.metrics().get(metric, ()))
        except Exception as error:
            self._failed(running, error)
            running.scope.cancel()
            return []
