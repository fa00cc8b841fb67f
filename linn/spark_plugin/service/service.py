"""The Spark service: all drivers of a broker, and the actions of `linn spark`.

Laws: the set of pipelines follows from the tables alone; starts and stops by an operator are remembered only while the
broker runs them. In a cluster the broker that leads a pipeline's first topic runs it; its checkpoint is where all
brokers reach it, so that the next leader goes on there.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
import trio

from linn.api import (
    LimitExceeded,
    Principal,
    ProgramEnded,
    RequestUnknown,
    Secret,
    ServiceHost,
    ServiceListener,
    ServiceLogin,
    ServiceTopic,
    did_you_mean,
    without,
)
from linn.core.env.env import Disk, Program, Programs
from linn.core.errors.tree import ConfigError, ServiceFailed, StorageError
from linn.spark_plugin.errors import SparkPipelineUnknown
from linn.spark_plugin.service.committed_offsets import CommittedOffsets, Offsets
from linn.spark_plugin.service.driver_group import DriverGroup, Reason, State
from linn.spark_plugin.service.driver_log import LINES_MAX
from linn.spark_plugin.service.driver_run import DriverRun, due_in
from linn.spark_plugin.service.pipeline import Pipeline, asked_for, driver_rights, revealed
from linn.spark_plugin.service.progress import Progress
from linn.spark_plugin.service.requirements import missing_java, missing_package
from linn.spark_plugin.service.settings import SparkSettings
from linn.spark_plugin.spec import DriverSpec, PipelineSpec, checkpoint_of

logger = logging.getLogger("linn.spark")

Sample = tuple[tuple[str, ...], int | float]

NATIVE = "capnp"
"""The protocol that drivers speak with the broker."""
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  No address to bind.
"""Addresses that mean every interface, and the one to connect to."""
INHERITED = ("JAVA_HOME", "PYTHON*", "SPARK_*", "PYSPARK_*", "HADOOP_*")
"""Variables of the broker's environment that drivers get beside `linn.core.env.env.INHERITED`."""
COMMITTED_FOLDER = "__committed"
"""Folder of the committed offsets, beside the folders of the pipelines; no pipeline can have this name."""
LOGINS_FOLDER = "__logins"
"""Folder of the drivers' logins, likewise."""
_DISABLED = Reason("Spark is turned off", "set enabled = true in [spark]")


def bootstrap_url(listeners: Sequence[ServiceListener]) -> str | None:
    """The URL of the native listener for drivers; None if there is none that takes them.

    It is one where they log in, if there is one: elsewhere they are anonymous. TCP comes before a Unix socket, and a
    Unix socket before TLS, which needs a certificate for the address.
    """
    native = [listener for listener in listeners if listener.protocol == NATIVE and listener.takes_login]
    if not native:
        return None
    best = min(native, key=lambda listener: (not listener.needs_login, _rank(listener)))
    if best.address.startswith("unix:"):
        return f"linn+unix://{quote(best.address.removeprefix('unix:'))}"
    host, _, port = best.address.rpartition(":")
    return f"{'linns' if best.has_tls else 'linn'}://{_ANY.get(host, host)}:{port}"


def _rank(listener: ServiceListener) -> int:
    return 1 if listener.address.startswith("unix:") else 2 if listener.has_tls else 0


class SparkService:
    """The pipelines of one broker; a `linn.api.Service`."""

    def __init__(self, settings: SparkSettings, host: ServiceHost) -> None:
        self._settings = settings
        self._host = host
        self._drivers: dict[str, DriverRun] = {}
        self._asked: dict[str, Pipeline] = {}
        self._blocked: dict[str, Reason] = {}
        """Pipelines that can't run on the present topics, with the reasons."""
        self._elsewhere: set[str] = set()
        """Pipelines that another broker of the cluster runs."""
        self._nursery: trio.Nursery | None = None
        self._closed = False
        self._python = settings.python or sys.executable
        command = (self._python, "-m", "linn.spark_plugin.driver.committed_files")
        self._inherits = (*INHERITED, *settings.environment)
        self._files = FileListing(host.env.programs, command, self._inherits)
        self._state_dir = settings.state_dir or host.state_dir
        self._committed = CommittedOffsets(host.env.disk, f"{host.state_dir}/{COMMITTED_FOLDER}")

    # --- life ---

    async def run(self) -> None:
        """Run all drivers until cancelled."""
        await self._committed.load()
        with contextlib.suppress(StorageError):  # Drivers make what is missing, with the mode that the umask leaves.
            self._host.env.disk.make_dir(self._host.state_dir)
        async with trio.open_nursery() as self._nursery:
            self._configure()
            await trio.sleep_forever()

    async def drain(self) -> None:
        """Let every driver finish its micro-batch and exit."""
        self._closed = True
        for driver in self._drivers.values():
            driver.act(driver.group.close(driver.now_s))
        for driver in self._drivers.values():
            await driver.wait_ended()

    def topic_changed(self, name: str, topic: ServiceTopic | None) -> None:
        """Start, restart or stop the pipelines that read the topic, as it is now and is led now."""
        if topic is None:
            self._committed.forget_topic(name)
        before = self._asked.get(name)
        is_read = any(name in pipeline.spec.topics for pipeline in self._asked.values())
        if is_read or before is not None or (topic is not None and topic.own is not None):
            self._configure()

    def _configure(self) -> None:
        """Configure each driver with the pipelines of the present tables."""
        if self._closed or self._nursery is None:
            return
        topics = self._host.topics()
        self._asked, self._blocked, self._elsewhere = asked_for(self._settings, topics), {}, set()
        specs: dict[str, dict[str, PipelineSpec]] = {name: {} for name in self._drivers}
        for name, pipeline in self._asked.items():
            problem = pipeline.problem(topics) or self._unshared(pipeline)
            if problem is not None:
                self._blocked[name] = Reason(*problem)
            elif pipeline.elsewhere(topics.get) is not None:
                self._elsewhere.add(name)
            else:
                specs.setdefault(pipeline.driver, {})[name] = pipeline.spec
        for group, wanted in specs.items():
            driver = self._drivers.get(group) or self._new_driver(group, self._nursery)
            driver.act(driver.group.configure(wanted, driver.now_s))
            for name in [name for name in driver.progress if name not in wanted]:
                del driver.progress[name]

    def _unshared(self, pipeline: Pipeline) -> tuple[str, str] | None:
        """Return why the next leader would not find a pipeline's checkpoint, and the remedy; None if it would."""
        if not self._host.in_cluster or pipeline.spec.checkpoint is not None or self._settings.state_dir is not None:
            return None
        why = "any broker of the cluster may have to run it, and its checkpoint would be on the disk of this one"
        return why, "set state_dir in [spark] to a folder or URL that all brokers reach"

    def _new_driver(self, name: str, nursery: trio.Nursery) -> DriverRun:
        settings, env = self._settings, self._host.env
        group = DriverGroup(
            name,
            uniform=env.rng.uniform,
            start_timeout_s=settings.start_timeout_s,
            drain_timeout_s=settings.drain_timeout_s,
        )
        if not settings.enabled:
            group.close(0.0)
        command = (self._python, "-m", "linn.spark_plugin.driver")
        specified = partial(self._specified, name)
        driver = DriverRun(group, env, command, self._inherits, specified, self._missing, self._note_committed)
        self._drivers[name] = driver
        nursery.start_soon(driver.run)
        return driver

    @asynccontextmanager
    async def _specified(
        self, group: str, pipelines: tuple[PipelineSpec, ...]
    ) -> AsyncIterator[tuple[DriverSpec, tuple[str, ...]]]:
        """Make the specification of a process that runs inside the block, and the values of the secrets in it.

        Raises SecretUnusable, StorageError.
        """
        settings, env, bootstrap = self._settings, self._host.env, self._bootstrap() or ""
        hidden = {name: value.reveal(env) for name, value in settings.conf.items() if isinstance(value, Secret)}
        plain = {name: value for name, value in settings.conf.items() if not isinstance(value, Secret)}
        given = [revealed(pipeline, env) for pipeline in pipelines]
        secrets = (*hidden.values(), *(value for _, values in given for value in values))
        async with self._login(group, pipelines) as (credentials, of_login):
            spec = DriverSpec(
                group=group,
                bootstrap=bootstrap,
                credentials=credentials,
                ca=settings.ca if bootstrap.lower().startswith("linns://") else None,
                master=settings.master,
                # A query could read any file: SELECT * FROM text.`/etc/passwd`.
                conf=({"spark.sql.runSQLOnFiles": "false"} if settings.live else {}) | plain | hidden,
                state_dir=self._state_dir,
                pipelines=tuple(pipeline for pipeline, _ in given),
            )
            yield spec, (*secrets, *of_login)

    @asynccontextmanager
    async def _login(
        self, group: str, pipelines: tuple[PipelineSpec, ...]
    ) -> AsyncIterator[tuple[str | None, tuple[str, ...]]]:
        """Make a file with a driver's login, which ends with the block, and the values of the secrets in it.

        Raises StorageError.
        """
        if self._settings.credentials is not None:
            yield self._settings.credentials, ()
            return
        async with self._host.login(group, driver_rights(pipelines)) as login:
            if login is None:
                yield None, ()
                return
            disk, folder = self._host.env.disk, f"{self._host.state_dir}/{LOGINS_FOLDER}"
            path = f"{folder}/{group}.toml"
            try:
                _write_login(disk, folder, path, login)
                yield path, (login.password,)
            finally:
                with contextlib.suppress(StorageError):  # The login ends all the same.
                    disk.unlink(path)

    def _bootstrap(self) -> str | None:
        return self._settings.bootstrap or bootstrap_url(self._host.listeners())

    @property
    def _asks_login(self) -> bool:
        """Whether a native listener requires a login."""
        return any(listener.needs_login for listener in self._host.listeners() if listener.protocol == NATIVE)

    async def _missing(self) -> str | None:
        """Return the line that says what a driver lacks; None if it can be started."""
        # Another Python has packages of its own: its driver checks them.
        missing = missing_package() if self._python == sys.executable else None
        if missing is None and self._bootstrap() is None:
            missing = f"there is no listener of the protocol {NATIVE} that takes passwords, or requires no login, and"
            missing += " no certificate: add one, or set bootstrap in [spark]"
        if missing is None and self._host.in_cluster and self._settings.credentials is None and self._asks_login:
            missing = "other brokers of the cluster do not know the logins that this one gives to drivers: make a user"
            missing += " for them, and name the file with its password as credentials in [spark]"
        return missing or await missing_java(self._host.env.programs)

    # --- looking ---

    def describe(self) -> Any:
        """Describe all pipelines and drivers as JSON."""
        return {
            "pipelines": [self._described(name) for name in sorted(self._asked)],
            "drivers": [self._driver_data(driver) for _, driver in sorted(self._drivers.items())],
        }

    def _described(self, name: str) -> dict[str, Any]:
        pipeline = self._asked[name]
        state, reason = self._state(name)
        driver = self._drivers.get(pipeline.driver)
        progress = driver.progress_of(name) if driver is not None else Progress()
        known = driver.group.pipelines.get(name) if driver is not None else None
        return {
            "name": name,
            "topics": list(pipeline.spec.topics),
            "format": pipeline.spec.format,
            "path": pipeline.spec.path,
            "driver": pipeline.driver,
            "state": state.value,
            "reason": reason.text if reason is not None else None,
            "remedy": reason.remedy or None if reason is not None else None,
            "restarts": max(0, known.starts - 1) if known is not None else 0,
            "progress": progress.data() | {"lag": self._lag(pipeline), "offsets": self._offsets(pipeline) or {}},
        }

    def _lag(self, pipeline: Pipeline) -> int | None:
        """Return the number of records not in the sink yet; None: another broker leads a topic, or the start is not
        known before the first run.
        """
        offsets, topics = self._offsets(pipeline), map(self._host.topic, pipeline.spec.topics)
        if any(topic is not None and topic.led_elsewhere for topic in topics):
            return None
        if offsets is None and not pipeline.starts_at_earliest:
            return None
        return sum(self._host.records_behind(topic, (offsets or {}).get(topic, {})) for topic in pipeline.spec.topics)

    def _offsets(self, pipeline: Pipeline) -> Offsets | None:
        return self._committed.of(pipeline.spec.name, checkpoint_of(self._state_dir, pipeline.spec))

    def _note_committed(self, spec: PipelineSpec, offsets: Offsets) -> None:
        self._committed.note(spec.name, checkpoint_of(self._state_dir, spec), offsets)

    def _state(self, name: str) -> tuple[State, Reason | None]:
        if name in self._blocked:
            return State.FAILED, self._blocked[name]
        if not self._settings.enabled:
            return State.STOPPED, _DISABLED
        if name in self._elsewhere:
            leader = self._asked[name].elsewhere(self._host.topic)
            return State.ELSEWHERE, Reason(leader) if leader is not None else None
        return self._drivers[self._asked[name].driver].group.state_of(name)

    @staticmethod
    def _driver_data(driver: DriverRun) -> dict[str, Any]:
        group, session = driver.group, driver.session
        return {
            "name": group.name,
            "state": group.state.value,
            "failures": group.backoff.failures,
            "next_start_s": due_in(group, driver.now_s),
            "spark": session.spark if session is not None else None,
            "application": session.application if session is not None else None,
            "ui": session.ui if session is not None else None,
        }

    def metrics(self) -> Mapping[str, Iterable[Sample]]:
        """Return the samples of `plugin.METRICS`."""
        states: list[Sample] = []
        found: dict[str, list[Sample]] = {}
        for name, pipeline in self._asked.items():
            state, _ = self._state(name)
            states += [((name, known.value), int(known is state)) for known in State]
            driver = self._drivers.get(pipeline.driver)
            progress = driver.progress_of(name) if driver is not None else Progress()
            known = driver.group.pipelines.get(name) if driver is not None else None
            values: dict[str, int | float | None] = {
                "rows_total": progress.rows,
                "batches_total": progress.batches,
                "rows_per_second": progress.rows_per_s,
                "lag_records": self._lag(pipeline),
                "batch_seconds": None if progress.duration_ms is None else progress.duration_ms / 1000,
                "restarts_total": max(0, known.starts - 1) if known is not None else 0,
            }
            for metric, value in values.items():
                if value is not None:
                    found.setdefault(f"linn_spark_pipeline_{metric}", []).append(((name,), value))
        return {"linn_spark_pipeline_state": states, **found}

    # --- acting ---

    async def perform(self, action: str, arguments: Mapping[str, Any], caller: Principal) -> Any:
        """Perform an action of `linn spark`: start, stop, restart, logs, files."""
        match action:
            case "start" | "stop" | "restart":
                return self._change(action, arguments, caller)
            case "logs":
                return self._logs(arguments)
            case "files":
                name = arguments.get("pipeline")
                if not isinstance(name, str):
                    raise ConfigError('the argument "pipeline" must be a name')
                return {"files": await self._list_files(self._pipeline(name).spec)}
        actions = ("start", "stop", "restart", "logs", "files")
        raise RequestUnknown(f'Spark has no action "{action[:80]}"{did_you_mean(action, actions)}')

    async def _list_files(self, spec: PipelineSpec) -> list[str]:
        """List the files of a pipeline, with no secret in an error. Raises as `FileListing.of`, and SecretUnusable."""
        given, secrets = revealed(spec, self._host.env)
        try:
            return await self._files.of(given)
        except ServiceFailed as error:
            raise ServiceFailed(without(secrets, error.text)) from None

    def _change(self, action: str, arguments: Mapping[str, Any], caller: Principal) -> Any:
        names = arguments.get("pipelines")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ConfigError('the argument "pipelines" must be a list of names')
        by_driver: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            pipeline = self._pipeline(name)
            if action != "stop" and not self._settings.enabled:
                raise ConfigError(f"pipeline {name}: {_DISABLED.text}: {_DISABLED.remedy}")
            if action != "stop" and name in self._blocked:
                raise ConfigError(f"pipeline {name}: {self._blocked[name].text}: {self._blocked[name].remedy}")
            if name in self._elsewhere:
                _, leader = self._state(name)
                raise ConfigError(f"this broker does not run pipeline {name}: {leader.text if leader else 'ask again'}")
            if name not in self._blocked:
                by_driver.setdefault(pipeline.driver, []).append(name)
        about = {"action": action, "pipelines": ", ".join(names), "caller": caller.described()}
        logger.info("an operator, %(caller)s, asks for a %(action)s of Spark pipelines: %(pipelines)s", about)
        for group, chosen in by_driver.items():
            driver = self._drivers[group]
            change = {"start": driver.group.start, "stop": driver.group.stop, "restart": driver.group.restart}[action]
            driver.act(change(chosen, driver.now_s))
        return {"pipelines": [{"name": name, "state": self._state(name)[0].value} for name in dict.fromkeys(names)]}

    def _logs(self, arguments: Mapping[str, Any]) -> Any:
        lines = _whole(arguments, "lines", LINES_MAX)
        name, after = arguments.get("pipeline"), arguments.get("after", {})
        if not isinstance(after, dict) or not all(isinstance(number, int) for number in after.values()):
            raise ConfigError('the argument "after" must be an object of numbers')
        groups = sorted(self._drivers)
        if name is not None:
            groups = [self._pipeline(name).driver] if isinstance(name, str) else groups
        found, following = [], {}
        for group in groups:
            if group in self._drivers:
                log = self._drivers[group].log
                found += [{"driver": group, **line.data()} for line in log.last(lines, after.get(group))]
                following[group] = log.next
        found.sort(key=lambda line: (line["time_ms"], line["driver"], line["number"]))
        return {"lines": found[max(0, len(found) - lines) :], "next": following}

    def _pipeline(self, name: str) -> Pipeline:
        pipeline = self._asked.get(name)
        if pipeline is None:
            raise SparkPipelineUnknown(f'there is no Spark pipeline "{name[:80]}"')
        return pipeline


def _write_login(disk: Disk, folder: str, path: str, login: ServiceLogin) -> None:
    """Write a login into a new file for the broker's user alone. Raises StorageError."""
    disk.make_dir(folder)
    disk.unlink(path)
    file = disk.open(path, create=True)
    try:
        file.write([f'user = "{login.user}"\npassword = "{login.password}"\n'.encode()])
    finally:
        file.close()


def _whole(arguments: Mapping[str, Any], name: str, most: int) -> int:
    """Return an argument that is a whole number from 0 to `most`. Raises ConfigError."""
    value = arguments.get(name, most)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f'the argument "{name}" must be a whole number')
    return min(value, most)


FILES_MAX = 20_000
"""Maximum number of files: an answer with so many paths takes some megabytes."""
LISTING_S_MAX = 25.0
"""Time limit for a catalog or an object store: less than the 30 seconds that a client waits for an answer."""
STATUS_VARIABLE = "LINN_STATUS_FD"


class _Line(msgspec.Struct):
    event: str
    path: str = ""
    error: str = ""


class FileListing:
    """Lists files, for one caller at a time.

    Laws: one process runs at a time, for a bounded time, and the number of files is bounded.
    """

    def __init__(self, programs: Programs, command: Sequence[str], inherits: Sequence[str]) -> None:
        self._programs = programs
        self._command = command
        self._inherits = inherits
        self._turn = trio.Lock()

    async def of(self, pipeline: PipelineSpec) -> list[str]:
        """List the files of a pipeline. Raises ServiceFailed, LimitExceeded, ProgramNotStarted."""
        running = self._programs.run(self._command, inherits=self._inherits, status_variable=STATUS_VARIABLE)
        with trio.move_on_after(LISTING_S_MAX):
            async with self._turn, running as program:
                try:
                    await program.send_line(msgspec.json.encode(pipeline).decode())
                    program.close_input()
                except ProgramEnded:
                    pass  # The error says why, if the process gave a reason.
                return await _listed(program, pipeline.name)
        raise ServiceFailed(f"the files of {pipeline.name} were not listed within {LISTING_S_MAX:g} s")


async def _listed(program: Program, name: str) -> list[str]:
    found: list[str] = []
    while (text := await program.receive_status()) is not None:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError as error:
            raise ServiceFailed(f"the files of {name} can't be listed: a line that can't be read: {error}") from error
        if line.event != "file":
            raise ServiceFailed(f"the files of {name} can't be listed: {line.error}")
        found.append(line.path)
        if len(found) > FILES_MAX:
            what = f"{name} has more than {FILES_MAX:,} files"
            raise LimitExceeded(f"{what}: merge them, or read it with a library of its format")
    last = ""
    while (output := await program.receive_output()) is not None:
        last = output.strip() or last
    code = await program.wait()
    if code:
        raise ServiceFailed(f"the files of {name} can't be listed: {last or f'the process exited with code {code}'}")
    return found
