"""Files, folders and sockets of a broker are for its user alone, whatever the umask of whoever started it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_client import connected

from linn.cli.doctor.diagnosis import disk_findings
from linn.core.broker.broker import running_broker
from linn.core.config.config import Config, load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.disk import RealDisk
from linn.core.env.real.env import RealEnv
from linn.core.env.real.net import RealNet
from linn.core.errors.tree import ConfigError
from linn.core.plugins.manager import PluginManager, installed

UMASKS = (0o000, 0o022, 0o027, 0o777)
"""Everything for everybody, two common ones, and nothing even for the owner."""
TABLES = """
[topics.jobs]
dead_letter = "dead"
[topics.dead]
[topics.visits]
kind = "stream"
[topics.brief]
storage = "dram"
"""


@pytest.fixture(params=UMASKS, ids=lambda mask: f"umask-{mask:03o}", autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run the test under each umask."""
    before = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(before)


def configured(tmp_path: Path, text: str, data: Path | None = None) -> tuple[Config, PluginManager]:
    """A broker that listens at a Unix socket alone; `text` begins with further keys of the listener."""
    listener = f'[listeners.local]\naddress = "unix:{tmp_path}/s"\n'
    source = TomlSource(f'[broker]\ndata_dir = "{data or tmp_path / "data"}"\n{listener}{text}', "test.toml")
    plugins = PluginManager(plugin_settings(source), installed())
    return load_config(source, plugins), plugins


def mode(path: Path | str) -> int:
    """The rights that a path gives."""
    return stat.S_IMODE(os.lstat(path).st_mode)


# --- files and folders ---


async def test_a_broker_makes_folders_and_files_for_its_user_alone(tmp_path: Path) -> None:
    top = tmp_path / "made"
    config, plugins = configured(tmp_path, TABLES, data=top / "data")
    async with running_broker(config, RealEnv(), plugins) as broker:
        client = await connected(RealEnv(), broker.addresses["local"])
        await client.administer("topic.create", name="live", settings={"kind": "both"})
        for topic in ("jobs", "visits", "brief", "live"):
            await client.publish(topic, ["a", "b"])
        assert await client.taken("jobs") == ["a", "b"]
        await client.stream.aclose()
        assert mode(tmp_path / "s") == 0o600
    made = [top, *top.rglob("*")]
    assert {"metadata.json", "lock", "starts"} < {path.name for path in made}
    assert any(path.suffix == ".log" for path in made), [path.name for path in made]
    wrong = [f"{path}: {mode(path):04o}" for path in made if mode(path) != (0o700 if path.is_dir() else 0o600)]
    assert wrong == []


def test_a_file_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    path.chmod(0o640)
    RealDisk().open(str(path), create=True).close()
    assert mode(path) == 0o640


def test_a_folder_that_exists_keeps_its_mode_and_those_that_are_missing_are_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    RealDisk().make_dir(f"{tmp_path}/a/b/c/")
    RealDisk().make_dir(f"{tmp_path}/a/b")
    assert [mode(tmp_path / name) for name in (".", "a", "a/b", "a/b/c")] == [0o755, 0o700, 0o700, 0o700]


# --- sockets ---


async def test_a_socket_has_its_mode_as_soon_as_it_has_its_name(
    tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2023-45145 in Redis: others connected before the file had the mode of the configuration."""
    if umask != 0o777:  # Which takes the owner's rights: to give them back later lets nobody else in.
        monkeypatch.delattr(os, "chmod")
    path = f"{tmp_path}/s"
    listener = await RealNet().listen(f"unix:{path}")
    assert mode(path) == 0o600
    await (await RealNet().connect(f"unix:{path}")).aclose()
    await listener.aclose()


async def test_a_listener_may_let_in_more(tmp_path: Path) -> None:
    config, plugins = configured(tmp_path, 'socket_mode = "0660"\n')
    async with running_broker(config, RealEnv(), plugins):
        assert mode(tmp_path / "s") == 0o660


@pytest.mark.parametrize("wrong", ['"rw"', '"0888"', '"01777"', "660"])
def test_a_socket_mode_is_octal_digits_in_quotes(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"listeners\.local\.socket_mode"):
        configured(tmp_path, f"socket_mode = {wrong}\n")


# --- commands ---


def test_doctor_names_a_data_folder_that_others_may_use(tmp_path: Path) -> None:
    def found(bits: int) -> tuple[str, str]:
        folder = tmp_path / "my data"
        folder.mkdir(exist_ok=True)
        folder.chmod(bits)
        finding = next(finding for finding in disk_findings(str(folder)) if finding.name == "data folder")
        return finding.state, finding.advice

    remedy = f"chmod -R go= '{tmp_path}/my data'"
    assert [found(bits) for bits in (0o755, 0o750, 0o701, 0o720)] == [("warning", remedy)] * 4
    assert found(0o700) == ("ok", "")
    assert "data folder" not in {finding.name for finding in disk_findings(f"{tmp_path}/none")}
