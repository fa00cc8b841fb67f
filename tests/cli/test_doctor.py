"""`linn doctor`: what it finds, and what it says to do."""

import json
import os
import resource
import socket
from pathlib import Path

import pytest

from linn.cli import disk_trial
from linn.cli.machine import DiskSpace
from linn.testing.process import BrokerProcess


def examined(
    within, tmp_path: Path, text: str, url: str = "linn://127.0.0.1:1"
) -> tuple[int, dict[str, dict[str, str]]]:
    file = tmp_path / "linn.toml"
    file.write_text(f'[broker]\ndata_dir = "{tmp_path}/data"\n{text}')
    done = within("doctor", str(file), "--json", url=url)
    found = json.loads(done.stdout)
    assert found["ok"] == (done.returncode == 0)
    return done.returncode, {finding["name"]: finding for finding in found["findings"]}


def test_a_machine_that_is_fit_and_a_broker_that_answers(quick, within, tmp_path: Path, broker: BrokerProcess) -> None:
    returncode, found = examined(within, tmp_path, '[listeners.n]\naddress = "127.0.0.1:0"\n', broker.url)
    assert returncode == 0
    assert {name: finding["state"] for name, finding in found.items() if finding["state"] == "error"} == {}
    assert found["broker"]["found"].startswith("linn answers at")
    assert "Python 3." in found["versions"]["found"]
    assert "a sync takes" in found["disk sync"]["found"]
    assert not (tmp_path / "data").exists(), "it leaves nothing behind"


def test_no_broker_is_a_warning_with_a_way_out(within, tmp_path: Path) -> None:
    _, found = examined(within, tmp_path, '[listeners.n]\naddress = "127.0.0.1:0"\n')
    assert found["broker"]["state"] == "warning"
    assert "linn serve" in found["broker"]["advice"]


def test_a_configuration_that_is_wrong(within, tmp_path: Path) -> None:
    returncode, found = examined(within, tmp_path, "[topics.t]\nknid = 1\n")
    assert returncode == 1
    assert "topics.t.knid" in found["configuration"]["found"]
    assert "linn check" in found["configuration"]["advice"]


def test_an_address_that_another_program_has(within, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        returncode, found = examined(within, tmp_path, f'[listeners.n]\naddress = "{address}"\n')
    assert returncode == 1
    assert found["listener n"]["found"] == f"{address} is taken by another program"


def test_an_address_where_a_broker_listens_already(within, tmp_path: Path, broker: BrokerProcess) -> None:
    returncode, found = examined(within, tmp_path, f'[listeners.n]\naddress = "{broker.address}"\n')
    assert returncode == 0
    assert found["listener n"]["found"].startswith("the broker linn listens at")


def test_an_address_of_another_machine_and_a_file_in_the_way(within, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    listeners = f'[listeners.a]\naddress = "192.0.2.1:5466"\n[listeners.b]\naddress = "unix:{tmp_path}/file"\n'
    returncode, found = examined(within, tmp_path, listeners)
    assert returncode == 1
    assert {found["listener a"]["state"], found["listener b"]["state"]} == {"error"}


def test_too_few_descriptors(within, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        _, found = examined(within, tmp_path, "")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found["descriptors"]["state"] == "warning"
    assert "LimitNOFILE" in found["descriptors"]["advice"]


def test_a_disk_that_is_nearly_full(within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_trial, "disk_space", lambda path: DiskSpace(100 << 30, 1 << 29))
    _, found = examined(within, tmp_path, "")
    assert found["disk space"]["state"] == "warning"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_can_not_be_written(within, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        state = next(disk_trial.disk_findings(str(tmp_path / "data")))
    finally:
        tmp_path.chmod(0o755)
    assert state.state == "error"


def test_people_see_a_table(within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = within("doctor").stdout
    assert "descriptors" in shown
    assert "what to do" in shown
