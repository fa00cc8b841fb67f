"""The cluster lines run from end to end, and are left out without etcd. Their figures are no test's business."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.cluster import lines as cluster_group
from benchmarks.cluster.work import Case
from benchmarks.plan import quick_plan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder with a short path, which the sockets of workers need."""
    with TemporaryDirectory(prefix="linn-", dir="/tmp") as path:
        yield Path(path)


@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd: apt install etcd-server")
def test_the_lines_are_measured_and_judged(tmp_path: Path, work: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks", "cluster", "--quick"]
    command += ["--json", str(result), "--folder", str(work)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [*work.iterdir()] == []
    lines = {line["name"]: line for line in json.loads(result.read_text())["lines"]}
    assert all((line["met"] is None) == (line["target"] is None) for line in lines.values())
    assert len([line for line in lines.values() if line["target"]]) == 2 + 2 + 2 + 1
    for role in ("leader", "follower", "client", "etcd"):
        assert lines[f"queue, 128 B, os, 3 x, all, CPU {role}"]["value"] > 0
    # The leader alone has all records of a topic with one replica.
    assert "stream, 128 B, os, 1 x, all, CPU follower" not in lines


def test_without_etcd_the_group_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert [*cluster_group.cluster_lines(quick_plan(tmp_path))] == []
    (said,) = capsys.readouterr().err.splitlines()
    assert said.strip() == "cluster is skipped: etcd is not installed: apt install etcd-server"


def test_all_combinations_are_measured_on_request_alone(tmp_path: Path) -> None:
    plan = quick_plan(tmp_path).cluster
    usual, every = cluster_group.cases_of(plan), cluster_group.cases_of(dataclasses.replace(plan, is_whole=True))
    assert len(every) == len(set(every)) == 2 * 2 * 2 * 4 * 3
    assert len(usual) < len(every) / 2
    assert set(usual) < set(every)
    assert Case("queue", "always", 1024, 2, "none") in every
