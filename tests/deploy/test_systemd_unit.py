"""The unit for systemd: it is valid, what it starts is a broker, and its limits fit the broker's."""

from __future__ import annotations

import configparser
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from linn.cli.exit_code import exit_code_of
from linn.core.config.config import BrokerSettings
from linn.core.errors.tree import ConfigError, LinnError, LogCorrupt, SyncFailed

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "linn.service"
LINN = str(Path(sys.executable).parent / "linn")
TIMEOUT_S = 300


def section(name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return dict(parser[name])


SERVICE = section("Service")


def start_words(folder: Path) -> list[str]:
    """ExecStart, with this installation's `linn` and places of this test's."""
    places = {"/opt/linn/bin/linn": LINN, "/etc/linn/linn.toml": str(folder / "linn.toml")}
    places |= {f"/var/lib/{SERVICE['StateDirectory']}": str(folder / "data")}
    words = shlex.split(SERVICE["ExecStart"])
    assert places.keys() <= set(words)
    return [places.get(word, word) for word in words]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/linn/bin/linn", LINN))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_its_command_serves_and_its_signal_stops_it_in_order(tmp_path: Path) -> None:
    (tmp_path / "linn.toml").write_text('[listeners.native]\naddress = "127.0.0.1:0"\n')
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(start_words(tmp_path), stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready linn://"), (tmp_path / "log").read_text()
        process.send_signal(signal.Signals[SERVICE["KillSignal"]])
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_wrong_configuration_is_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "linn.toml").write_text("[topics.jobs]\nkindd = 'queue'\n")
    done = subprocess.run(start_words(tmp_path), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert str(done.returncode) in SERVICE["RestartPreventExitStatus"].split()


@pytest.mark.parametrize("error", [SyncFailed("can't sync"), LogCorrupt("damaged"), ConfigError("wrong")])
def test_an_error_that_a_restart_would_make_worse_causes_no_restart(error: LinnError) -> None:
    """A failed sync may leave records in the page cache that are not on the disk: a restart would believe them."""
    assert SERVICE["Restart"] == "on-failure"
    assert str(int(exit_code_of(error))) in SERVICE["RestartPreventExitStatus"].split()


def test_it_waits_for_the_drain_and_lets_in_the_connections() -> None:
    ours = tomllib.loads((ROOT / "deploy" / "linn.toml").read_text())["broker"]["drain_timeout"]
    drain_s = max(BrokerSettings().drain_timeout_s, float(ours.removesuffix("s")))
    assert int(SERVICE["TimeoutStopSec"]) > drain_s
    assert SERVICE["KillMode"] == "mixed"  # The signal goes to the broker alone; what is left at the end is killed.
    assert int(SERVICE["LimitNOFILE"]) > 2 * BrokerSettings().connections_max
