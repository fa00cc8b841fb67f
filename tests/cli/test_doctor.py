"""`linn doctor`: what it finds, and what it says to do."""

import json
import os
import resource
import socket
import time
from pathlib import Path

import pytest

import linn.sync
from linn.cli.doctor import capacity, diagnosis
from linn.cli.doctor.machine import DiskSpace, memory_bytes
from linn.core.env.real.file_limits import FileLimits
from linn.testing.process import BrokerProcess


def examined(
    within, tmp_path: Path, text: str, url: str = "linn://127.0.0.1:1", options: tuple[str, ...] = ()
) -> tuple[int, dict[str, dict[str, str]]]:
    file = tmp_path / "linn.toml"
    file.write_text(f'[broker]\ndata_dir = "{tmp_path}/data"\n{text}')
    done = within("doctor", str(file), "--json", *options, url=url)
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "every client may do everything: there are no roles, users or logins"),
        (
            '[users.anonymous]\nroles = ["r"]\n[users.ada]\n[roles.r]\nbroker = ["see"]\n',
            "2 users and 1 role in the file; a client without a login may do what r may",
        ),
        (
            '[listeners.n]\nlogin = "required"\n',
            "0 users and 0 roles in the file; a client without a login may do nothing",
        ),
        ("[users.ada]\n", "1 user and 0 roles in the file; a client without a login may do nothing"),
    ],
)
def test_what_is_open_to_every_client(within, tmp_path: Path, text: str, said: str) -> None:
    _, found = examined(within, tmp_path, text)
    assert (found["rights"]["state"], found["rights"]["found"]) == ("ok", said)
    assert bool(found["rights"]["advice"]) == (not text)


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


def test_every_address_of_a_broker_that_answers_is_its_own(within, tmp_path: Path) -> None:
    """Metrics speak HTTP: doctor learns from the broker's answer elsewhere that the port is the broker's."""
    (tmp_path / "broker").mkdir()
    metrics = '[listeners.m]\nprotocol = "metrics"\naddress = "127.0.0.1:{}"\n'
    native = '[listeners.n]\naddress = "127.0.0.1:{}"\n'
    config = metrics.format(0) + native.format(0)
    with BrokerProcess(tmp_path / "broker", config, listen=()) as broker, linn.sync.connect(broker.url) as client:
        ports = {name: where.rpartition(":")[2] for name, where in client.admin.broker()["listeners"].items()}
        port, listeners = ports["m"], native.format(ports["n"])
        for host in ("127.0.0.1", "localhost"):
            _, found = examined(within, tmp_path, metrics.replace("127.0.0.1", host).format(port) + listeners)
            said = found["listener m"]["state"], found["listener m"]["found"]
            assert said == ("ok", f"the broker linn listens at {host}:{port}")
        _, found = examined(within, tmp_path, metrics.format(port))
        assert found["listener m"]["state"] == "warning", "nothing says whose port it is"


def test_an_address_of_another_machine_and_a_file_in_the_way(within, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    elsewhere = '[listeners.a]\naddress = "192.0.2.1:5466"\nplaintext = true\nlogin = "none"\n'
    listeners = f'{elsewhere}[listeners.b]\naddress = "unix:{tmp_path}/file"\n'
    returncode, found = examined(within, tmp_path, listeners)
    assert returncode == 1
    assert {found["listener a"]["state"], found["listener b"]["state"]} == {"error"}


def test_too_few_descriptors(within, tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, found = examined(within, tmp_path, f"connections_max = {hard}\n")
    assert found["descriptors"]["state"] == "warning"
    assert "LimitNOFILE" in found["descriptors"]["advice"]


def test_a_disk_that_is_nearly_full(within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "disk_space", lambda path: DiskSpace(100 << 30, 1 << 29))
    _, found = examined(within, tmp_path, "")
    assert found["disk space"]["state"] == "warning"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_can_not_be_written(within, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        state = next(diagnosis.disk_findings(str(tmp_path / "data")))
    finally:
        tmp_path.chmod(0o755)
    assert state.state == "error"


def holds(within, tmp_path: Path, text: str, *options: str) -> dict[str, float]:
    file = tmp_path / "linn.toml"
    file.write_text(f'[broker]\ndata_dir = "{tmp_path}/data"\n{text}')
    found: dict[str, float] = json.loads(within("doctor", str(file), "--json", *options).stdout)["holds"]
    return found


def test_capacity_is_bounded_by_the_scarcest_resource(within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert holds(within, tmp_path, "connections_max = 7\n")["connections"] == 7
    monkeypatch.setattr(capacity, "memory_bytes", lambda: 16 << 20)
    found = holds(within, tmp_path, "")
    assert (found["connections"], found["connections_bound"]) == (102, "memory")
    monkeypatch.setattr(capacity, "file_limits", lambda: FileLimits(50, 50))
    found = holds(within, tmp_path, "")
    assert (found["connections"], found["connections_bound"]) == (0, "descriptors")
    monkeypatch.setattr(capacity, "file_limits", lambda: FileLimits(4096, 4096))
    monkeypatch.setattr(capacity, "memory_bytes", lambda: 1 << 40)
    found = holds(within, tmp_path, "")
    assert (found["connections"], found["connections_bound"]) == (4096 - 4096 // 16, "descriptors")


def test_remaining_disk_time_depends_on_rate_and_record_size(
    within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "disk_space", lambda path: DiskSpace(100 << 30, 50 << 30))
    slow = holds(within, tmp_path, "", "--rate", "1000/s", "--size", "1000")["kept_s"]
    assert slow == pytest.approx(50 * (1 << 30) / 1e6, rel=0.1)
    assert holds(within, tmp_path, "", "--rate", "2000/s", "--size", "1000")["kept_s"] == pytest.approx(slow / 2, abs=1)
    options = ("--rate", "1000/s", "--size", "1000")
    stream = '[topics.t]\nkind = "stream"\nretention = "14d"\n'
    _, found = examined(within, tmp_path, stream, options=options)
    assert found["holds records"]["state"] == "warning"
    assert "for 14 days" in found["holds records"]["advice"]
    _, found = examined(within, tmp_path, stream + 'retention_bytes = "1GiB"\n', options=options)
    assert found["holds records"]["state"] == "ok"


def test_a_measurement_has_figures_and_leaves_nothing_behind(
    within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "TRIAL_S", 0.3)
    found = holds(within, tmp_path, "", "--measure")
    assert min(found["published_per_s"], found["consumed_per_s"], found["one_by_one_per_s"]) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["linn.toml"]


def test_a_kernel_that_lets_few_wait_and_a_clock_that_is_behind(
    within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "somaxconn"
    small.write_text("128\n")
    monkeypatch.setattr(diagnosis, "_SOMAXCONN", small)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata").write_text("")
    ahead = time.time() + 86_400
    os.utime(tmp_path / "data" / "metadata", (ahead, ahead))
    _, found = examined(within, tmp_path, "")
    assert "sysctl net.core.somaxconn" in found["backlog"]["advice"]
    assert found["clock"]["state"] == "warning"
    assert "behind" in found["clock"]["found"]


def test_a_memory_budget_that_leaves_nothing_for_the_rest(within, tmp_path: Path) -> None:
    _, found = examined(within, tmp_path, f"memory_bytes_max = {memory_bytes()}\n")
    assert found["memory"]["state"] == "warning"
    assert 'memory_bytes_max = "auto"' in found["memory"]["advice"]


def test_people_get_a_table(within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = within("doctor").stdout
    assert "descriptors" in shown
    assert "what to do" in shown


def test_workers_are_compared_with_the_cores(tmp_path: Path) -> None:
    def found(text: str) -> diagnosis.Finding:
        (tmp_path / "linn.toml").write_text(text)
        config, plugins, _ = diagnosis._configuration(str(tmp_path / "linn.toml"))
        assert config is not None
        assert plugins is not None
        (one,) = diagnosis._workers(config, plugins)
        return one

    assert found("[broker]\nworkers = 1\n").state == "ok"
    assert found("[broker]\nworkers = 128\n").state == "warning"
    assert found(f'[broker]\nworkers = 1\ndata_dir = "{"a" * 120}"\n').state == "error"


def test_each_extra_that_a_broker_may_need_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise diagnosis.PackageNotFoundError(package)

    monkeypatch.setattr(diagnosis, "version", missing)
    found = {finding.name: finding for finding in diagnosis._versions() if finding.name.startswith("extra ")}
    assert found["extra cluster"].found == "not installed: h11"
    assert found["extra cluster"].advice.endswith("-m pip install 'linn[cluster]'")
    assert "extra metrics" in found
