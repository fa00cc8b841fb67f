"""The benchmarks run from end to end, and their ratios are of one run. What they measure is no test's business."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest
import trio

from benchmarks import __main__ as benchmarks
from benchmarks import exactly_once
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import LoadFailed, cargo, cpu_s, publish
from benchmarks.servers import DiskTooFull, broker, check_room, floor, target_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The JSON of one tiny run, after which nothing is left in its folder."""
    folder = tmp_path_factory.mktemp("quick")
    result = folder / "result.json"
    work = folder / "work"
    work.mkdir()
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(result), "--folder", str(work)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert list(work.iterdir()) == []
    assert "segmented-log, 64 KiB" in done.stdout
    found: dict[str, object] = json.loads(result.read_text())
    return found


def test_every_group_is_measured_and_every_target_judged(quick: dict[str, list[dict[str, object]]]) -> None:
    lines = quick["lines"]
    groups = [group for group in benchmarks.GROUPS if group not in benchmarks.ON_REQUEST]
    assert list(dict.fromkeys(line["group"] for line in lines)) == groups
    assert all((line["met"] is None) == (line["target"] is None) for line in lines)
    assert len([line for line in lines if line["target"]]) >= 2 + 2 + 4 + 2 + 2 + 4 + 3


def test_a_target_of_transactions_is_that_of_one_name_and_no_sum(quick: dict[str, list[dict[str, object]]]) -> None:
    lines = [line for line in quick["lines"] if str(line["name"]).startswith("transactions of ")]
    assert {str(line["name"]) for line in lines if line["target"]} == {
        "transactions of 1,000, 1 name",
        "transactions of 10, 1 name",
    }
    assert all("sum of" in str(line["name"]) for line in lines if "8 names" in str(line["name"]))


async def test_the_database_has_each_record_once_when_the_clock_stops(tmp_path: Path) -> None:
    with broker(tmp_path, exactly_once.CONFIG) as process:
        assert await exactly_once.apply(process.url, tmp_path, 2 * exactly_once.RANGE) > 0
    with closing(sqlite3.connect(tmp_path / exactly_once.DATABASE)) as database:
        assert database.execute("SELECT count(*) FROM payments").fetchone() == (2 * exactly_once.RANGE,)


def test_a_ratio_is_of_the_two_runs_of_its_round(quick: dict[str, list[dict[str, float]]]) -> None:
    ratios = [line for line in quick["lines"] if line["unit"] == "x floor"]
    assert ratios
    for line in ratios:
        # One round: the ratio must be that of the figures beside it.
        assert line["value"] == pytest.approx(line["linn"] / line["floor"])
        if line["cpu_ratio"] is not None:
            assert line["cpu_ratio"] == pytest.approx(line["floor_cpu_us_per_batch"] / line["linn_cpu_us_per_batch"])


def test_the_machine_and_the_versions_are_named(quick: dict[str, dict[str, object]]) -> None:
    assert quick["machine"]["cpus"]
    assert {"linn", "python", "trio", "pycapnp"} <= set(quick["versions"])


def test_the_median_of_the_pairs_ratios_counts_not_the_ratio_of_the_medians() -> None:
    pairs = [Pair(1.0, 0.9), Pair(10.0, 5.0), Pair(4.0, 2.8)]
    line = line_of_pairs("publish", "any", Bound(0.6), pairs, "GB/s")
    assert line.value == pytest.approx(median([0.9, 0.5, 0.7]))
    assert line.best == pytest.approx(0.9)
    assert line.is_met


@pytest.mark.parametrize(("bound", "met"), [(Bound(2.0), True), (Bound(2.1), False), (Bound(1.9, at_most=True), False)])
def test_a_target_is_judged_by_the_median(bound: Bound, met: bool) -> None:
    assert Line("start", "any", "s", bound, [1.0, 2.0, 9.0]).is_met is met


def test_a_full_disk_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.servers.FREE_BYTES_MIN", 1 << 60)
    with pytest.raises(DiskTooFull):
        check_room(tmp_path)
    assert benchmarks.main(["start", "--quick", "--folder", str(tmp_path)]) == benchmarks.FAILED
    assert f"{tmp_path} has" in capsys.readouterr().err.splitlines()[-1]


async def test_a_server_that_refuses_is_not_taken_for_a_fast_one(tmp_path: Path) -> None:
    with broker(tmp_path, "") as process:
        with pytest.raises(LoadFailed, match=r"topic\.unknown"):
            await publish(target_of(process), cargo("any", 64), 1 << 20)


async def test_the_floor_replies_to_each_batch_and_keeps_its_file_no_longer_than_the_connection(tmp_path: Path) -> None:
    goods = cargo("any", 64)
    with floor("publish", file=tmp_path / "log") as bare:
        assert cpu_s(bare.pid) > 0
        run = await publish(bare, goods, 3 * goods.count * goods.batch_bytes)
        assert run.batches == 3 * goods.count
        with trio.fail_after(5):
            while (tmp_path / "log").exists():
                await trio.lowlevel.checkpoint()
