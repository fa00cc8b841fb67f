"""Diagnosis of `linn doctor`: one finding per check, with advice where something is to be done.

Separate from the command, which has to load without the configuration, the client and Rich.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.text import Text

from linn import __version__
from linn.cli.doctor.capacity import Capacity, Speed, capacity, capacity_findings
from linn.cli.doctor.capacity_trial import measure
from linn.cli.doctor.disk_trial import disk_findings
from linn.cli.doctor.finding import Finding
from linn.cli.doctor.kernel_trial import kernel_findings
from linn.cli.doctor.listener_trial import listener_findings
from linn.cli.doctor.machine import memory_bytes
from linn.cli.render.console import console, print_json
from linn.cli.render.progress import progress
from linn.cli.render.table import WIDE, Cell, print_table
from linn.cli.server.server import configuration, descriptors_wanted
from linn.cli.session import with_client
from linn.client.client import Client
from linn.core.config.config import Config, check_config, plugin_settings
from linn.core.env.real.file_limits import file_limits
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError
from linn.core.plugins.manager import PluginManager, installed

_MEMORY_BYTES_MIN = 512 << 20
"""A broker takes 60 MiB and its buffers; below this limit little is left for the page cache, which readers need."""
_BUDGET_SHARE = 0.75
"""Largest part of the memory for buffered records that leaves enough for the rest."""
_UNKNOWN_CAPACITY: dict[str, Any] = dict.fromkeys(Capacity(0, "", 0, 0, None, None).data())
_DEPENDENCIES = ("trio", "anyio", "pycapnp", "msgspec", "crc32c", "zstandard")
_EXTRAS = {"metrics": ("h11", "prometheus-client")}
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
        yield _descriptors(config)
        yield from disk_findings(config.broker.data_dir)
        yield from kernel_findings(config.broker.data_dir)
        yield from listener_findings(config, plugins)


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


def _descriptors(config: Config) -> Finding:
    limit, needed = file_limits().hard, descriptors_wanted(config)
    found = f"{limit:,} files may be open"
    if limit >= needed:
        return Finding("descriptors", "ok", found)
    of = f"connections_max = {config.broker.connections_max} and the topics' files want {needed:,}"
    advice = f"ulimit -Hn {needed}, or LimitNOFILE={needed} in systemd; or a smaller connections_max"
    return Finding("descriptors", "warning", f"{found}; {of}", advice)


def _broker(url: str) -> Iterator[Finding]:
    async def ask(client: Client) -> tuple[str, list[str]]:
        shown = await client.admin.broker()
        text = f"{shown['name']} answers at {url}: {counted(shown['topics'], 'topic')}, "
        text += counted(shown["connections"], "connection")
        damaged = dict.fromkeys(queue["topic"] for queue in await client.admin.subscriptions() if queue["damaged"])
        return text, list(damaged)

    try:
        text, damaged = with_client(url, ask)
    except LinnError as error:
        yield Finding("broker", "warning", str(error), "linn serve starts one; --url or LINN_URL say where it is")
        return
    yield Finding("broker", "ok", text)
    for topic in damaged:
        advice = (
            f"linn queues or linn subscriptions describe {topic} says which; restore the topic's folder from a backup"
        )
        yield Finding("damaged records", "error", f"records of {topic} can't be read from the disk", advice)


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
