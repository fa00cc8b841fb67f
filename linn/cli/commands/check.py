"""`linn check`: check a configuration file, and show its meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.options import Json

if TYPE_CHECKING:
    from linn.core.config.config import Config
    from linn.core.config.problem import Problems
    from linn.core.plugins.manager import PluginManager

File = Annotated[str, typer.Argument(metavar="FILE", help="Configuration file.")]
Strict = Annotated[bool, typer.Option("--strict", help="End with 3 for warnings as well.")]


def check(file: File, strict: Strict = False, as_json: Json = False) -> None:
    """Check a configuration file, and show its meaning. Prints each problem with line, key and the nearest valid key.

    Errors keep a broker from starting: ends with 3. Warnings point out settings that have no effect or a surprising
    one, or need more than this machine has; hints point out settings that may well be intended. Both end with 0.
    """
    from linn.cli.render.config_report import print_report

    config, problems = _examine(file)
    print_report(file, config, problems, as_json=as_json)
    warned = any(problem.severity == "warning" for problem in problems.found)
    if config is None or (strict and warned):
        raise typer.Exit(3)


def _examine_certificates(config: Config, problems: Problems) -> None:
    """Read the files of the TLS tables, as a broker does at its start."""
    from linn.core.connections.certificates import read_table
    from linn.core.env.real.disk import RealDisk
    from linn.core.env.real.env import RealClock
    from linn.core.errors.tls import TlsInvalid

    for name, table in config.tls.items():
        try:
            read_table(name, table, RealDisk(), RealClock().now_ms())
        except TlsInvalid as error:
            text = error.text.removeprefix(f"tls.{name}.{error.key}: ")
            problems.add(("tls", name, error.key), text, error=TlsInvalid)


def _examine_secrets(config: Config, problems: Problems) -> None:
    """Read the secrets, as a broker does at its start; only a file is sure to be the broker's too."""
    from linn.cli.exposure import unusable_secrets
    from linn.core.errors.tree import SecretUnusable

    for place, text, is_file in unusable_secrets(config):
        if is_file:
            problems.add(place, text, error=SecretUnusable)
        else:
            problems.warn(place, f"{text}: the broker needs it where it runs")


def _examine_workers(config: Config, plugins: PluginManager, problems: Problems) -> None:
    """Check the workers, as a supervisor does at its start."""
    from linn.cli.workers.order import check, count_of
    from linn.core.errors.tree import LinnError

    if config.broker.workers is not None and config.cluster is None:
        try:
            check(config, plugins, count_of(config.broker.workers))
        except LinnError as error:
            problems.add(("broker", "workers"), error.text, error=type(error))


def _examine(file: str) -> tuple[Config | None, Problems]:
    """Read a file and collect all problems; the configuration is None if it has errors. Raises ConfigUnreadable."""
    from linn.cli.config_lint import lint
    from linn.cli.doctor.listener_trial import unmade_listeners
    from linn.cli.installed_plugins import loadable
    from linn.core.config.checks import plugin_table
    from linn.core.config.config import examine_config, read_toml
    from linn.core.config.problem import Problems

    source = read_toml(file)
    plugins, failed = loadable(plugin_table(source.data, Problems(source)))
    examined, problems = examine_config(source, plugins)
    for error in failed:
        problems.add(("plugins",), error.text, error=type(error))
    _examine_certificates(examined, problems)
    _examine_secrets(examined, problems)
    for name, reason in unmade_listeners(examined, plugins):
        problems.add(("listeners", name, "protocol"), reason.text, error=type(reason))
    _examine_workers(examined, plugins, problems)
    config = None if problems.error_count else examined
    if config is not None:
        lint(config, problems)
    return config, problems
