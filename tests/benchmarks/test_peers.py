"""The page of linn and its peers says what was measured, and load tools are read right. No peer is needed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as runner
from benchmarks.peers import tool_output
from benchmarks.peers.cargo import COUNT, Cargo, RecordsLost, Supply, Tally
from benchmarks.peers.figure import Figure, Sample, quantile
from benchmarks.peers.page import Result, page
from benchmarks.peers.peer import Durability, Facts, PeerMissing
from benchmarks.peers.server_process import program
from benchmarks.peers.systems import SYSTEMS, peer
from benchmarks.peers.tool import ToolFailed, run_tool

ROOT = Path(__file__).parents[2]
PRODUCED = """\
103921 records sent, 20784.2 records/sec (2.54 MB/sec), 12.1 ms avg latency, 300.0 ms max latency.
500000 records sent, 164867.4 records/sec (20.13 MB/sec), 390.12 ms avg latency, 1200.00 ms max latency, \
404 ms 50th, 1100 ms 95th, 1143 ms 99th, 1190 ms 99.9th.
"""
CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-01-01 10:00:00:000, 2026-01-01 10:00:02:100, 61.0352, 29.0, 500080, 238133.3, 520, 1580, 38.6, 316506.3
"""
PERF_TEST = """\
id: test-1, time 1.000 s, sent: 8100 msg/s, returned: 0 msg/s, confirmed: 7900 msg/s
test stopped (Producer reached message limit)
id: test-1, sending rate avg: 45678 msg/s
id: test-1, receiving rate avg: 0 msg/s
"""
REDIS = """\
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"XADD t * v vvvv","187969.92","0.518","0.104","0.167","1.100","5.191","5.191"
"""


def test_each_load_tool_is_read_as_it_speaks() -> None:
    bench = 'linn, some line\n{"what": "publish", "messages": 7, "messages_per_s": 123}\n'
    assert tool_output.linn_bench(bench) == tool_output.Reading(123.0, 7)
    assert tool_output.producer_performance(PRODUCED) == tool_output.Reading(164867.4, 500000, 404_000.0, 1_143_000.0)
    assert tool_output.consumer_performance(CONSUMED) == tool_output.Reading(316506.3, 500080)
    assert tool_output.perf_test(PERF_TEST, "sending") == tool_output.Reading(45678.0)
    assert tool_output.redis_benchmark(REDIS) == tool_output.Reading(187969.92, None, 167.0, 5191.0)


@pytest.mark.parametrize("text", ["", "{}", "no route to the broker\n", "rps\n1\n"])
def test_unexpected_output_of_a_load_tool_is_an_error_and_no_figure(text: str) -> None:
    for read in (
        tool_output.linn_bench,
        tool_output.producer_performance,
        tool_output.consumer_performance,
        lambda said: tool_output.perf_test(said, "receiving"),
        tool_output.redis_benchmark,
    ):
        with pytest.raises(ToolFailed, match="nothing that can be read"):
            read(text)


def test_a_failing_load_tool_is_reported_with_its_last_output() -> None:
    with pytest.raises(ToolFailed, match="ended with 3: out of luck"):
        run_tool([sys.executable, "-c", "print('out of luck'); raise SystemExit(3)"])
    text, seconds, cpu_s = run_tool([sys.executable, "-c", "print(sum(range(10)))"])
    assert (text, seconds > 0, cpu_s > 0) == ("45\n", True, True)


def test_a_supply_gives_what_a_tally_expects() -> None:
    cargo = Cargo(64)
    supply = Supply(cargo, 60.0, COUNT + 1_000)
    tally = Tally(cargo, COUNT + 1_000)
    for chunk in supply.chunks(1_000):
        tally.add(chunk)
    tally.check()
    assert (supply.taken, tally.is_full, tally.left) == (COUNT + 1_000, True, 0)
    assert all(len(value) == 64 for value in cargo.values)
    assert len(set(cargo.values)) == COUNT


def test_supply_ends_with_its_time() -> None:
    supply = Supply(Cargo(16), 0.0, COUNT)
    assert (list(supply.singles()), supply.taken) == ([], 0)


def test_a_record_that_is_lost_doubled_changed_or_late_is_found() -> None:
    cargo = Cargo(16)
    values = cargo.values
    lost = Tally(cargo, 3)
    lost.add(values[:2])
    with pytest.raises(RecordsLost, match="3 records were confirmed and 2 were consumed"):
        lost.check()
    for wrong in ([values[1]], [values[0], values[0]], [values[0][:-1] + b"?"], [values[0], b"", values[2]], [b""]):
        with pytest.raises(RecordsLost):
            Tally(cargo, 3).add(wrong)
    doubled = Tally(cargo, 3)
    doubled.add(values[:4])
    with pytest.raises(RecordsLost, match="3 records were confirmed and 4 were consumed"):
        doubled.check()


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile(list(range(100)), share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert quantile([7.0], 0.99) == 7.0


# --- the page --------------------------------------------------------------------------------------------------------


def facts(name: str, *durabilities: Durability) -> Facts:
    return Facts(
        name, "a client", "a tool", dict.fromkeys(durabilities, "a setting"), "acks", "pipelines", ("A note.",)
    )


def samples(*rates: float) -> list[Sample]:
    return [Sample(int(rate), 1.0, 0.5, 0.25, rate, 100.0, 20_000.0) for rate in rates]


def result() -> Result:
    figures = [
        Figure("linn", "publish one at a time", "page cache", 128, samples(900, 1000, 4000)),
        Figure("Faster", "publish one at a time", "page cache", 128, samples(2000, 2500, 2600)),
        Figure("linn", "publish one at a time", "fsync", 128, samples(10, 10, 10)),
        Figure("linn", "load tool publishes", "page cache", 1024, samples(5, 6, 7)),
    ]
    return Result(
        facts=[facts("linn", "page cache", "fsync"), facts("Faster", "page cache"), facts("Gone", "page cache")],
        versions={"linn": "1.0", "Faster": "2.0"},
        figures=figures,
        missing={"Gone": "it ended", "absent": "apt-get install absent"},
        measured_at="2026-01-02T03:04:05+00:00",
        seconds=600.0,
        repetition_s=1.5,
        repetitions=3,
        stock_bytes_max=512 << 20,
        is_apart=False,
        machine={"cpus": 2, "memory_bytes": 8 << 30, "system": "Linux", "load_average": [0.1, 0.2, 0.3]},
    )


def rows_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    lines = text.partition(f"### {heading}\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_row_has_the_median_its_share_of_linns_and_the_cpu_of_both_sides() -> None:
    linn, faster, *_ = rows_of(page(result()), "Publish one at a time: 128 bytes")
    cpu = ["500.00 us (0.50)", "250.00 us (0.25)"]
    assert linn == ["linn", "page cache", "1,000", "1.00", "100 us", "20.0 ms", *cpu]
    assert faster[:4] == ["Faster", "page cache", "**2,500**", "2.50"]


def test_missing_features_of_a_system_are_stated_and_not_omitted() -> None:
    rows = rows_of(page(result()), "Publish one at a time: 128 bytes")
    assert [row[:3] for row in rows[2:]] == [["linn", "fsync", "10"], ["Faster", "fsync", "not offered"]]
    assert "- fsync: not offered" in page(result())


def test_a_load_tools_processor_time_is_not_reported_as_cores() -> None:
    (row,) = rows_of(page(result()), "Load tool publishes: 1,024 bytes")
    assert row[0] == "linn"
    assert all("(" not in cell for cell in row)


def test_systems_that_were_not_measured_are_on_the_page_with_the_reason() -> None:
    text = page(result())
    assert "### Gone\n\nNot measured: it ended\n" in text
    assert "- absent: apt-get install absent\n" in text


def test_every_table_of_the_page_is_whole() -> None:
    width = 0
    for line in page(result()).splitlines():
        if line.startswith("|"):
            width = width or line.count("|")
            assert line.count("|") == width


def test_the_json_has_every_repetition() -> None:
    data = json.loads(json.dumps(result().data()))
    first = data["figures"][0]
    assert [sample["records_per_s"] for sample in first["samples"]] == [900, 1000, 4000]
    assert (first["records_per_s"], first["p99_us"], first["server_cores"]) == (1000, 20_000.0, 0.5)
    assert data["missing"]["absent"] == "apt-get install absent"


# --- the command -----------------------------------------------------------------------------------------------------


def test_wrong_options_are_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--only", "linn,carrier-pigeon"], "no such system: carrier-pigeon"),
        (["--seconds", "0"], "0 is no number of seconds"),
        (["--seconds", "soon"], "soon is no number of seconds"),
        (["--seconds", "nan"], "nan is no number of seconds"),
    ):
        with pytest.raises(SystemExit):
            runner.main(arguments)
        assert words in capsys.readouterr().err


def test_a_program_that_is_missing_is_named_with_how_to_install_it() -> None:
    with pytest.raises(PeerMissing, match="no-such-program is not installed: apt-get install it"):
        program("no-such-program", "apt-get install it")


def test_a_library_that_is_missing_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pika", "confluent_kafka", "nats", "redis"):
        monkeypatch.setitem(sys.modules, library, None)
    for name, module in SYSTEMS.items():
        if not name.startswith("linn"):
            monkeypatch.delitem(sys.modules, f"benchmarks.peers.{module}", raising=False)
            with pytest.raises(PeerMissing, match=r"is not installed: pip install 'linn\[peers\]'"):
                peer(name)


def test_no_peers_library_is_imported_before_it_is_measured() -> None:
    libraries = {"pika", "nats", "redis", "confluent_kafka"}
    code = f"import sys, benchmarks.peers.__main__; print(sorted({libraries!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr
