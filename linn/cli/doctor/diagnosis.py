"""Diagnosis of `linn doctor`: one finding per check, with advice where something is to be done.

Separate from the command, which has to load without the configuration, the client and Rich.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import stat
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import anyio
from rich.text import Text

from linn import __version__
from linn.bench.throughput import Throughput, measure_consume, measure_publish
from linn.cli.doctor.capacity import Capacity, Speed, capacity, capacity_findings
from linn.cli.doctor.cluster import cluster_findings, configured_findings
from linn.cli.doctor.finding import Finding
from linn.cli.doctor.listener_trial import certificate_findings, listener_findings
from linn.cli.doctor.machine import disk_space, existing_part, memory_bytes
from linn.cli.exposure import exposures, unusable_secrets
from linn.cli.render.console import console, print_json
from linn.cli.render.progress import progress
from linn.cli.render.table import WIDE, Cell, print_table
from linn.cli.server.server import configuration, descriptors_wanted
from linn.cli.session import with_client
from linn.cli.workers.order import check, cores, count_of
from linn.client.client import Client
from linn.core.broker.worker_folders import shared_folder
from linn.core.config.config import Config, check_config, plugin_settings
from linn.core.config.problem import dotted
from linn.core.env.real.file_limits import file_limits
from linn.core.env.real.net import BACKLOG
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError
from linn.core.plugins.manager import PluginManager, installed
from linn.core.ports.principal import ANONYMOUS
from linn.descriptions import TROUBLED_MAX, ClusterDescription
from linn.testing.process import BrokerProcess

_MEMORY_BYTES_MIN = 512 << 20
"""A broker takes 60 MiB and its buffers; below this limit little is left for the page cache, which readers need."""
_BUDGET_SHARE = 0.75
"""Largest part of the memory for buffered records that leaves enough for the rest."""
_UNKNOWN_CAPACITY: dict[str, Any] = dict.fromkeys(Capacity(0, "", 0, 0, None, None).data())
_DEPENDENCIES = ("trio", "anyio", "pycapnp", "msgspec", "crc32c", "zstandard")
_EXTRAS = {"metrics": ("h11", "prometheus-client"), "cluster": ("h11",)}
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def diagnose(file: str | None, url: str, *, rate_per_s: float, size: int, measures: bool, as_json: bool) -> bool:
    """Run all checks and print the findings; return whether there are no errors.

    `rate_per_s`, `size`: messages a second, and bytes of each, for the estimate of capacity. `measures`: start a
    temporary broker to measure its speed.
    """
    config, plugins, finding = _configuration(file)
    findings = [*_versions(), finding, *_surroundings(config, plugins), *_broker(url)]
    holds = _UNKNOWN_CAPACITY | {"rate_per_s": rate_per_s, "size": size}
    if config is not None:
        speed, failed = _measured(config, size) if measures else (None, None)
        found = capacity(config, rate_per_s, size, speed)
        findings += capacity_findings(config, found) if failed is None else [failed]
        holds = found.data()
    ok = all(finding.state != "error" for finding in findings)
    if as_json:
        shown = {"ok": ok, "findings": [finding._asdict() for finding in findings], "holds": holds}
        print_json(shown)
    else:
        _print(findings)
    return ok


def _surroundings(config: Config | None, plugins: PluginManager | None) -> Iterator[Finding]:
    """Check the machine against the configuration."""
    yield _memory(config)
    if config is not None and plugins is not None:
        yield from _workers(config, plugins)
        yield _openness(config)
        yield from exposure_findings(config)
        yield from configured_findings(config)
        yield _descriptors(config)
        yield from disk_findings(config.broker.data_dir)
        yield from kernel_findings(config.broker.data_dir)
        yield from listener_findings(config, plugins)
        yield from certificate_findings(config)


def _measured(config: Config, size: int) -> tuple[Speed | None, Finding | None]:
    """Measure the speed of a broker; return it, or the finding that it failed."""
    try:
        with progress("measuring", None):
            return measure(config.broker.data_dir, size), None
    except (LinnError, OSError) as error:
        text = f"could not be measured: {error}"
        return None, Finding("holds messages per second", "error", text, "see the findings above")


def _versions() -> Iterator[Finding]:
    found = [f"linn {__version__}", f"Python {platform.python_version()}", *map(_installed, _DEPENDENCIES)]
    system = f"{platform.system()} {platform.release()}"
    yield Finding("versions", "ok", ", ".join([*found, system]))
    for extra, packages in _EXTRAS.items():
        missing = [package for package in packages if _installed(package).endswith("missing")]
        if missing:
            advice = f"for that, {sys.executable} -m pip install 'linn[{extra}]'"
            yield Finding(f"extra {extra}", "ok", f"not installed: {', '.join(missing)}", advice)


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} missing"


def _configuration(file: str | None) -> tuple[Config | None, PluginManager | None, Finding]:
    try:
        source = configuration(file)
        plugins = PluginManager(plugin_settings(source), installed())
        config, problems = check_config(source, plugins)
    except LinnError as error:
        advice = "correct it; `linn plugins list` if it is a plugin"
        return None, None, Finding("configuration", "error", str(error), advice)
    if config is None:
        text = f"{counted(problems.error_count, 'error')}, such as {problems.describe(problems.in_order()[0])}"
        return None, plugins, Finding("configuration", "error", text, f"linn check {source.file}")
    if problems.found:
        text = counted(len(problems.found), "warning")
        return config, plugins, Finding("configuration", "warning", text, f"linn check {source.file}")
    topics = counted(len(config.topics), "topic")
    return config, plugins, Finding("configuration", "ok", f"{source.file}: {topics}")


def _openness(config: Config) -> Finding:
    """Say what clients without a login may do."""
    logs_in = any(listener.login.is_required for listener in config.listeners.values())
    if not (config.roles or config.users or logs_in):
        advice = 'give it users, and its listeners login = "required", before others can reach it'
        return Finding("rights", "ok", "every client may do everything: there are no roles, users or logins", advice)
    anonymous = config.users.get(ANONYMOUS)
    allowed = f"may do what {', '.join(anonymous.roles)} may" if anonymous and anonymous.roles else "may do nothing"
    users, roles = counted(len(config.users), "user"), counted(len(config.roles), "role")
    return Finding("rights", "ok", f"{users} and {roles} in the file; a client without a login {allowed}")


def exposure_findings(config: Config) -> Iterator[Finding]:
    """Report what the configuration leaves open, and secrets that can't be used."""
    for path, text in exposures(config):
        yield Finding("exposed", "warning", f"{dotted(path)}: {text}", "docs/how-to/secure-a-broker.md closes it")
    for place, text, is_file in unusable_secrets(config):
        advice = "docs/how-to/keep-secrets.md says how" if is_file else "the broker needs it where it runs"
        yield Finding("secret", "error" if is_file else "warning", f"{dotted(place)}: {text}", advice)


def _memory(config: Config | None) -> Finding:
    memory = memory_bytes()
    found = f"{memory >> 20:,} MiB"
    budget = None if config is None else config.broker.memory_bytes_max
    if budget is not None:
        found += f"; the broker may fill {budget >> 20:,} MiB with what waits"
        if budget > _BUDGET_SHARE * memory:
            advice = 'memory_bytes_max = "auto", or less: the broker itself and the page cache need the rest'
            return Finding("memory", "warning", found, advice)
    if memory < _MEMORY_BYTES_MIN:
        return Finding("memory", "warning", found, f"give it {_MEMORY_BYTES_MIN >> 20} MiB or more")
    return Finding("memory", "ok", found)


def _workers(config: Config, plugins: PluginManager) -> Iterator[Finding]:
    """Compare the workers with the machine."""
    if (setting := config.broker.workers) is None or config.cluster is not None:
        return
    count, known = count_of(setting), cores()
    found = f"{counted(count, 'worker')} on {counted(known, 'core')}"
    try:
        check(config, plugins, count)
    except LinnError as error:
        yield Finding("workers", "error", error.text, "docs/how-to/use-all-cores.md says what workers can do")
        return
    if count > known:
        yield Finding("workers", "warning", found, 'workers = "auto": more of them only take turns')
    else:
        yield Finding("workers", "ok", found)


def _descriptors(config: Config) -> Finding:
    limit, needed = file_limits().hard, descriptors_wanted(config)
    found = f"{limit:,} files may be open"
    if limit >= needed:
        return Finding("descriptors", "ok", found)
    of = f"connections_max = {config.broker.connections_max} and the topics' files want {needed:,}"
    advice = f"ulimit -Hn {needed}, or LimitNOFILE={needed} in systemd; or a smaller connections_max"
    return Finding("descriptors", "warning", f"{found}; {of}", advice)


def _broker(url: str) -> Iterator[Finding]:
    async def ask(client: Client) -> tuple[str, list[str], ClusterDescription]:
        shown = await client.admin.broker()
        text = f"{shown['name']} answers at {url}: {counted(shown['topics'], 'topic')}, "
        text += counted(shown["connections"], "connection")
        damaged = dict.fromkeys(queue["topic"] for queue in await client.admin.subscriptions() if queue["damaged"])
        return text, list(damaged), await client.admin.cluster(troubled_max=TROUBLED_MAX)

    try:
        text, damaged, cluster = with_client(url, ask)
    except LinnError as error:
        yield Finding("broker", "warning", str(error), "linn serve starts one; --url or LINN_URL say where it is")
        return
    yield Finding("broker", "ok", text)
    for topic in damaged:
        advice = (
            f"linn queues or linn subscriptions describe {topic} says which; restore the topic's folder from a backup"
        )
        yield Finding("damaged records", "error", f"records of {topic} can't be read from the disk", advice)
    yield from cluster_findings(cluster)


def _print(findings: list[Finding]) -> None:
    """Print findings; on a narrow terminal the advice, which may be a command to type, is below the finding."""
    narrow = console().width < WIDE
    rows: list[list[Cell]] = []
    for finding in findings:
        text = [finding.found, finding.advice]
        if narrow:
            text = [finding.found]
        rows.append([Text(finding.state, _COLOURS[finding.state]), finding.name, *text])
        if narrow and finding.advice:
            rows.append(["", "", finding.advice])
    print_table(["", "", "found, and what to do"] if narrow else ["", "", "found", "what to do"], rows)


TRIAL_S = 2.0
"""Duration of each of the three measurements."""
_BOUND_S = 30.0
"""Time limit for all of them."""
_BATCH = 5_000
_BYTES_MAX = 1 << 30
"""Maximum size of the trial file, so that a small disk is not filled."""
_CONFIG = '[topics.trial]\nkind = "stream"\n'


def measure(data_dir: str, size: int) -> Speed:
    """Start a broker beside the data folder, load it for some seconds, stop it, and remove its data.

    Raises LinnError; OSError where the folder can't be written.
    """
    with tempfile.TemporaryDirectory(prefix="linn-trial-", dir=existing_part(data_dir)) as folder:
        with BrokerProcess(Path(folder), _CONFIG, listen=[f"unix:{folder}/socket"]) as broker:
            return with_client(broker.url, partial(_measure, size))


async def _measure(size: int, client: Client) -> Speed:
    publish = partial(measure_publish, size=size, count=_BYTES_MAX // max(size, 1))
    with anyio.fail_after(_BOUND_S):
        one_by_one = await _timed(client, partial(publish, batch=1))
        published = await _timed(client, partial(publish, batch=_BATCH))
        consumed = await _timed(client, partial(measure_consume, count=published.messages))
    return Speed(*(found.data()["messages_per_s"] for found in (published, consumed, one_by_one)))


async def _timed(client: Client, measure: Callable[..., Awaitable[None]]) -> Throughput:
    measured = Throughput()
    with anyio.move_on_after(TRIAL_S):
        await measure(client, "trial", measured, advance=lambda _: None)
    return measured


FREE_BYTES_MIN = 1 << 30
FREE_SHARE_MIN = 0.05
"""Free share of the disk below which many file systems become slow, and a growing topic soon fills it."""
SLOW_SYNC_MS = 20.0
"""Time of a sync from which `fsync = "always"` is felt; disks take 1 to 5 ms, network volumes 10."""
_SYNCS = 20
_WRITE_BYTES = 4096


def disk_findings(data_dir: str) -> Iterator[Finding]:
    """Run the checks. Writes a small file beside the data, and removes it."""
    yield _room(data_dir)
    yield _speed(data_dir)
    yield from _data_folder(Path(data_dir))
    yield from _cut_logs(data_dir)


def _data_folder(data_dir: Path) -> Iterator[Finding]:
    """Warn of a folder of messages and settings that others may use: its files may be older, and theirs to read."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(data_dir.stat().st_mode)
        found = f"{data_dir} has the mode {mode:04o}"
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            text = f"{found}: other users may get at messages and settings"
            yield Finding("data folder", "warning", text, f"chmod -R go= {shlex.quote(str(data_dir))}")
        else:
            yield Finding("data folder", "ok", found)


def _cut_logs(data_dir: str) -> Iterator[Finding]:
    """Warn of logs that recoveries have cut off and set aside."""
    logs = "*/*/*/*.cut*"
    found = sorted([*Path(data_dir).glob(logs), *Path(shared_folder(data_dir)).glob(f"*/{logs}")])
    if found:
        size = sum(path.stat().st_size for path in found)
        text = f"{counted(size, 'byte')} cut off damaged logs, in {counted(len(found), 'file')}, such as {found[0]}"
        yield Finding("cut logs", "warning", text, "look at what they hold, then delete them")


def _room(data_dir: str) -> Finding:
    space = disk_space(data_dir)
    if space is None:
        return Finding("disk space", "error", f"the disk of {data_dir} can't be asked", "check broker.data_dir")
    free = f"{space.free_bytes / (1 << 30):,.1f} GiB of {space.total_bytes / (1 << 30):,.1f} GiB free for {data_dir}"
    if space.free_bytes < max(FREE_BYTES_MIN, FREE_SHARE_MIN * space.total_bytes):
        advice = "make room, or give topics bytes_max, retention or retention_bytes"
        return Finding("disk space", "warning", free, advice)
    return Finding("disk space", "ok", free)


def _speed(data_dir: str) -> Finding:
    place = existing_part(data_dir)
    try:
        took_ms = sorted(_sync_ms(str(place)))
    except OSError as error:
        found = f"{place} can't be written: {error.strerror}"
        return Finding("disk sync", "error", found, f"give the user that runs the broker the folder {data_dir}")
    median, slowest = took_ms[len(took_ms) // 2], took_ms[-1]
    found = f"a sync takes {median:.2f} ms, at most {slowest:.2f} ms, in {place}"
    if median > SLOW_SYNC_MS:
        advice = 'fsync = "always" waits so long for each group of publishes: take a faster disk, or fsync = "interval"'
        return Finding("disk sync", "warning", found, advice)
    return Finding("disk sync", "ok", found)


def _sync_ms(folder: str) -> list[float]:
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(b"\0" * _WRITE_BYTES)
            file.flush()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return took


PAGE_CACHE_BYTES_MIN = 256 << 20
"""Readers that lag by more than the page cache read from the disk; below this size nearly all do."""
_SOMAXCONN = Path("/proc/sys/net/core/somaxconn")
_MEMINFO = Path("/proc/meminfo")


def kernel_findings(data_dir: str) -> Iterator[Finding]:
    """Run the checks, without the checks that this system does not support."""
    with contextlib.suppress(OSError, ValueError):
        yield _backlog(int(_SOMAXCONN.read_text()))
    with contextlib.suppress(OSError, ValueError, IndexError):
        yield _page_cache(int(_MEMINFO.read_text().split("MemAvailable:")[1].split()[0]) << 10)
    yield _clock(data_dir, time.time())


def _backlog(somaxconn: int) -> Finding:
    found = f"{min(somaxconn, BACKLOG):,} connections may wait to be let in"
    if somaxconn < BACKLOG:
        return Finding("backlog", "warning", found, f"sysctl net.core.somaxconn={BACKLOG}: a fleet comes back at once")
    return Finding("backlog", "ok", found)


def _page_cache(available_bytes: int) -> Finding:
    found = f"{available_bytes >> 20:,} MiB: readers that are behind by less read from memory"
    if available_bytes < PAGE_CACHE_BYTES_MIN:
        return Finding("page cache", "warning", found, "end other programs, or give the machine more memory")
    return Finding("page cache", "ok", found)


def _clock(data_dir: str, now_s: float) -> Finding:
    """Warn of a clock that is behind the newest file, as retention and delays depend on it."""
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    newest_s = max((_modified_s(place) for place in Path(data_dir).glob("*")), default=0.0)
    if newest_s > now_s + 1:
        found = f"{text}, {newest_s - now_s:,.0f} s behind what is in {data_dir}"
        return Finding("clock", "warning", found, "set it, and keep it with NTP: retention and delays go by it")
    return Finding("clock", "ok", text)


def _modified_s(place: Path) -> float:
    with contextlib.suppress(OSError):
        return place.stat().st_mtime
    return 0.0
