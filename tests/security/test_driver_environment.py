"""A Spark driver gets the listed variables of the broker's environment, which may hold secrets, and no others."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from raw_client import connected

from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.env import RealEnv
from linn.core.plugins.manager import PluginManager, installed

JAVA = "echo 'openjdk version \"17.0.9\" 2023-10-17' >&2"
SECRET = ("LINN_PASSWORD", "LINN_TOKEN_FILE", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "HTTPS_PROXY")
NEEDED = ("SPARK_LOCAL_DIRS", "PYSPARK_PYTHON", "HADOOP_CONF_DIR", "PYTHONPATH", "LC_TIME", "TZ", "JAVA_HOME", "PATH")


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("listed", "passed"), [((), ()), (("DATABASE_URL", "AWS_*"), ("DATABASE_URL", "AWS_SECRET_ACCESS_KEY"))]
)
async def test_what_is_not_listed_is_not_in_the_environment_of_a_driver_or_of_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: tuple[str, ...], passed: tuple[str, ...]
) -> None:
    for name in (*SECRET, *NEEDED):
        monkeypatch.setenv(name, os.environ["PATH"] if name == "PATH" else str(tmp_path))
    told = tmp_path / "told"
    _program(tmp_path / "bin" / "java", JAVA)
    _program(tmp_path / "driver", f"env > {told}; exec cat")
    text = f"""
        [broker]
        data_dir = "{tmp_path}/data"
        [listeners.local]
        address = "unix:{tmp_path}/s"
        [spark]
        python = "{tmp_path}/driver"
        environment = {[*listed]}
        [topics.orders]
        kind = "stream"
        spark_sink = {{ path = "lake" }}
    """
    source = TomlSource(text, "test.toml")
    plugins = PluginManager(plugin_settings(source), installed())
    async with (
        _variables(told) as of_driver,
        running_broker(load_config(source, plugins), RealEnv(), plugins) as broker,
    ):
        assert await of_driver() & {*SECRET, *NEEDED} == {*NEEDED, *passed}
        client = await connected(RealEnv(), broker.addresses["local"])
        arguments = {"service": "spark", "action": "files", "arguments": {"pipeline": "orders"}}
        async with _variables(told) as of_listing:
            assert await client.administer("service.perform", **arguments) == {"files": []}
            assert await of_listing() & {*SECRET, *NEEDED} == {*NEEDED, *passed}
        state = [tmp_path / "data" / "__services", tmp_path / "data" / "__services" / "spark"]
        assert [stat.S_IMODE(path.stat().st_mode) for path in state] == [0o700, 0o700], "before a driver makes them"
        await client.stream.aclose()


@asynccontextmanager
async def _variables(path: Path) -> AsyncIterator[Callable[[], Awaitable[set[str]]]]:
    """Make a pipe; the result waits for the names of variables that a program writes into it."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    reads = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    async def names() -> set[str]:
        text = b""
        with trio.fail_after(60):
            await trio.lowlevel.wait_readable(reads)
            while chunk := os.read(reads, 4096):
                text += chunk
                await trio.lowlevel.wait_readable(reads)
        return {line.partition("=")[0] for line in text.decode().splitlines()}

    try:
        yield names
    finally:
        os.close(reads)
