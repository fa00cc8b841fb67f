"""Real brokers of an earlier version beside a real etcd, upgraded one after the other under load, as
docs/how-to/operate-a-cluster.md says.

The earlier version comes from the history of this repository: the last one that knew no level above 2. Each broker runs
from an installation of its own, a link that an upgrade replaces.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster_load import QUEUE, STREAM, TABLES, Load
from cluster_processes import RealCluster, real_cluster, until

import linn
import linn.sync
from linn.core.metadata.levels import LEVEL, LEVEL_MIN
from linn.testing.process import BrokerNotReady

pytestmark = pytest.mark.system

EARLIER = "2e5d82fd"
"""The last commit whose brokers know no level above 2."""
ROOT = Path(linn.__file__).parents[1]
GROUP = "billing"
COMMAND_S = 60.0


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The earlier version; skips the test where the history is not at hand."""
    command = ["git", "-C", str(ROOT), "archive", EARLIER, "linn", "schema", "pyproject.toml"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"there is no git, or no commit {EARLIER}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    _name_plugins(folder)
    return folder


def _name_plugins(folder: Path) -> None:
    """Write what an installation says of its plugins: those of this version have others."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = folder / f"linn-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: linn\nVersion: {project['version']}\n")
    lines = [f"{name} = {module}" for name, module in project["entry-points"]["linn"].items()]
    (about / "entry_points.txt").write_text("\n".join(["[linn]", *lines, ""]))


class Installations:
    """The installation of each broker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(self, number: int, version: Path) -> None:
        """Install a version for a broker, from its next start on."""
        link = self._link(number)
        link.unlink(missing_ok=True)
        link.symlink_to(version, target_is_directory=True)

    def environment(self, number: int) -> dict[str, str]:
        """The variables by which a broker runs from its installation, and not from the working directory."""
        return {"PYTHONPATH": str(self._link(number)), "PYTHONSAFEPATH": "1"}

    def _link(self, number: int) -> Path:
        return self._folder / f"installation-{number}"


@pytest.fixture
def installations(tmp_path: Path) -> Installations:
    return Installations(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, earlier: Path, installations: Installations) -> Iterator[RealCluster]:
    """Three brokers of the earlier version that are in sync, and a fourth one that is not started."""
    environments = {number: installations.environment(number) for number in (1, 2, 3, 4)}
    # The status of the cluster is asked for when all brokers are of this version: the command has another argument now.
    with real_cluster(tmp_path, 0, tables=TABLES, environments=environments) as cluster, ExitStack() as stack:
        for number in (1, 2, 3):
            installations.install(number, earlier)
            cluster.brokers[number] = stack.enter_context(cluster.broker(number))
        cluster.until_whole(QUEUE, STREAM)
        yield cluster


def run(cluster: RealCluster, *arguments: str, at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "linn", *arguments, "--url", cluster.brokers[at].url]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)


def read_in_group(cluster: RealCluster, count: int, at: int) -> list[bytes]:
    """Read so many records as the only member of a group, and commit their offsets."""
    found = list[bytes]()
    with (
        linn.sync.connect(cluster.brokers[at].url) as client,
        client.consumer(STREAM, group=GROUP, start="earliest") as member,
    ):
        for message in member:
            found.append(message.value or b"")
            message.ack()
            if len(found) == count:
                return found
    raise AssertionError("a consumer goes on until it is left")


def test_brokers_of_the_earlier_version_are_upgraded_one_after_the_other_under_load(
    cluster: RealCluster, earlier: Path, installations: Installations
) -> None:
    addresses = [broker.address for broker in cluster.brokers.values()]
    urls = [",".join([*addresses[at:], *addresses[:at]]) for at in range(len(addresses))]
    with Load(cluster, [f"linn://{url}" for url in urls]) as load:
        at_s = time.monotonic()
        in_group = read_in_group(cluster, 30, at=1)
        for number, installed in ((1, ROOT), (2, ROOT), (1, earlier), (1, ROOT), (3, ROOT)):
            assert cluster.brokers[number].stop() == 0
            installations.install(number, installed)
            cluster.brokers[number].start()
            cluster.until_whole(QUEUE, STREAM)
            load.longest_gap(time.monotonic())
            in_group += read_in_group(cluster, 30, at=number)
            if number < 3 and installed == ROOT:
                refused = run(cluster, "cluster", "upgrade", at=number)
                assert refused.returncode == 1, refused.stdout
                assert "an older version, which does not know level 3" in refused.stderr
        status = json.loads(run(cluster, "cluster", "status", "--json", at=1).stdout)
        assert (status["level"], [node["levels"] for node in status["nodes"]]) == (2, [[LEVEL_MIN, LEVEL]] * 3)
        assert "the cluster has level 2, and all nodes know level 3" in run(cluster, "doctor", "--json", at=1).stdout
        upgraded = run(cluster, "cluster", "upgrade", at=3)
        assert upgraded.stdout == "the cluster has level 3; it had 2\n", upgraded.stderr
        until(lambda: all(cluster.status(number)["level"] == LEVEL for number in cluster.brokers))
        load.longest_gap(time.monotonic())
        with linn.sync.connect(cluster.brokers[2].url) as client, client.transaction("billing") as tx:
            tx.publish(QUEUE, b"in a transaction")
    assert load.failures() == []
    load.check()
    assert b"in a transaction" in [value for _, value in load.taken]
    assert in_group == [value for _, value in load.read][: len(in_group)]
    count = sum(len(outcomes) for outcomes in load.sent.values())
    print(f"{count} confirmations, the longest wait was {load.longest_gap_until_now(at_s):.2f} s")
    installations.install(4, earlier)
    with pytest.raises(BrokerNotReady, match="has level 3, and this version of linn knows up to level 2"):
        cluster.broker(4).start()
    assert 4 not in cluster.states(1)
