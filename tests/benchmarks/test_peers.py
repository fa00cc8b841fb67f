"""Peers are loaded with records that are proven to come back, and load tools are read right. No peer is needed here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as runner
from benchmarks.peers import tool_output
from benchmarks.peers.cargo import COUNT, Cargo, RecordsLost, Supply
from benchmarks.peers.peer import WORKS, Durability, Facts, Kind, PeerMissing
from benchmarks.peers.plan import Plan
from benchmarks.peers.result import read
from benchmarks.peers.rounds import TOOL_WORKS, TRIALS, Rounds, minutes, trials_of
from benchmarks.peers.server_process import program
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.systems import ALONE, SYSTEMS, peer
from benchmarks.peers.tool import Reading, ToolFailed, ToolRun, run_tool

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
NATS = """\
NATS JetStream asynchronous publisher stats: 100,325 msgs/sec ~ 12 MiB/sec ~ min: 87,388us ~ avg: 98,944.02us
"""
REDIS = """\
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"XADD t * v vvvv","187969.92","0.518","0.104","0.167","1.100","5.191","5.191"
"""


def test_each_load_tool_is_read_as_it_speaks() -> None:
    bench = 'linn, some line\n{"what": "publish", "messages": 7, "messages_per_s": 123}\n'
    assert tool_output.linn_bench(bench) == Reading(123.0, 7)
    assert tool_output.producer_performance(PRODUCED) == Reading(164867.4, 500000, 404_000.0, 1_143_000.0)
    assert tool_output.consumer_performance(CONSUMED) == Reading(316506.3, 500080)
    assert tool_output.perf_test(PERF_TEST, "sending") == Reading(45678.0)
    assert tool_output.nats_bench(NATS) == Reading(100325.0)
    assert tool_output.redis_benchmark(REDIS) == Reading(187969.92, None, 167.0, 5191.0)


@pytest.mark.parametrize("text", ["", "{}", "no route to the broker\n", "rps\n1\n"])
def test_a_load_tool_that_says_something_else_is_an_error_and_no_figure(text: str) -> None:
    for reads in (
        tool_output.linn_bench,
        tool_output.producer_performance,
        tool_output.consumer_performance,
        lambda said: tool_output.perf_test(said, "receiving"),
        tool_output.nats_bench,
        tool_output.redis_benchmark,
    ):
        with pytest.raises(ToolFailed, match="nothing that can be read"):
            reads(text)


def test_a_failing_load_tool_is_reported_with_its_last_output() -> None:
    with pytest.raises(ToolFailed, match="ended with 3: out of luck"):
        run_tool([sys.executable, "-c", "print('out of luck'); raise SystemExit(3)"])
    text, seconds, cpu_s = run_tool([sys.executable, "-c", "print(sum(range(10)))"])
    assert (text, seconds > 0, cpu_s > 0) == ("45\n", True, True)


def test_what_is_supplied_is_what_is_expected_to_come_back() -> None:
    cargo = Cargo(64)
    supply = Supply(cargo, 60.0, COUNT + 1_000)
    received = [value for chunk in supply.chunks(1_000) for value in chunk]
    cargo.check(received, supply.taken)
    assert supply.taken == COUNT + 1_000
    assert all(len(value) == 64 for value in cargo.values)
    assert len(set(cargo.values)) == COUNT


def test_supply_ends_with_its_time() -> None:
    supply = Supply(Cargo(16), 0.0, COUNT)
    assert (list(supply.singles()), supply.taken) == ([], 0)


def test_a_record_that_is_lost_doubled_changed_or_late_is_found() -> None:
    cargo = Cargo(16)
    first, second, third, *_ = cargo.values
    with pytest.raises(RecordsLost, match="3 records were confirmed and 2 were consumed"):
        cargo.check([first, second], 3)
    with pytest.raises(RecordsLost, match="3 records were confirmed and 4 were consumed"):
        cargo.check([first, second, third, third], 3)
    for received in ([first, third, second], [first, second, second], [first, second[:-1] + b"?", third]):
        with pytest.raises(RecordsLost, match="of 3 is not the one that was published there"):
            cargo.check(received, 3)


# --- the rounds ------------------------------------------------------------------------------------------------------


class ListServer:
    """A whole system in a list per topic; `loses` is the topic of which it loses the last record."""

    version = "1"

    def __init__(self, loses: str | None) -> None:
        self.pids: list[int] = []
        self._topics: dict[str, list[bytes]] = {}
        self._loses = loses

    def create(self, topic: str, kind: Kind) -> None:
        self._topics[topic] = []

    def delete(self, topic: str) -> None:
        del self._topics[topic]

    def publish_one_at_a_time(self, topic: str, supply: Supply, watch: Stopwatch) -> list[float]:
        with watch:
            self._topics[topic] += supply.singles()
        return [float(number) for number in range(supply.taken + 1)]

    def publish_calls(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        with watch:
            for values in supply.chunks(1_000):
                self._topics[topic] += values

    publish_bulk = publish_calls

    def publish_transactions(self, topic: str, supply: Supply, watch: Stopwatch) -> None:
        self.publish_calls(topic, "stream", supply, watch)

    def _consume(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        with watch:
            return self._topics[topic][: expected - (topic == self._loses)]

    work_records = work_bulk = read_records = read_bulk = _consume

    def _tool(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        return ToolRun(Reading(1e6, count), 0.1, 0.1)

    tool_publish = tool_read = _tool


class ListPeer:
    """Counts how many of its servers run."""

    running = 0

    def __init__(self, name: str, loses: str | None = None) -> None:
        works = [work for work in WORKS if work != "publish to a queue in bulk"]
        self.facts = Facts(name, "a list", {"page cache": "none"}, dict.fromkeys(works, "a list"))
        self._loses = loses

    def check(self) -> None:
        pass

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[ListServer]:
        self.running += 1
        yield ListServer(self._loses)
        self.running -= 1


def measured(folder: Path, *peers: ListPeer) -> Rounds:
    plan = Plan(folder, rounds=3, seconds=0.001, record_bytes=(16,), warm_up_s=0.001, warm_up_s_max=0.0, idle_s=0.0)
    rounds = Rounds(peers, plan)
    rounds.run()
    return rounds


NAMES = ("one", "two")


def test_each_round_has_a_turn_of_every_system_at_every_work_that_it_offers(tmp_path: Path) -> None:
    peers = [ListPeer(name) for name in NAMES]
    rounds = measured(tmp_path, *peers)
    turns = [(sample.work, sample.round, sample.system) for sample in rounds.samples]
    offered = {trial.published for trial in TRIALS} | {trial.consumed for trial in TRIALS} | {*TOOL_WORKS}
    offered -= {None, "publish to a queue in bulk"}
    assert sorted(turns) == sorted((work, number, name) for work in offered for number in (1, 2, 3) for name in NAMES)
    singles = [name for work, _, name in turns if work == TRIALS[0].published]
    assert all({*singles[first : first + 2]} == {*NAMES} for first in (0, 2, 4))
    assert [peer.running for peer in peers] == [0, 0]


def test_a_system_that_loses_a_record_has_no_figures_and_the_others_have_theirs(tmp_path: Path) -> None:
    rounds = measured(tmp_path, ListPeer("one"), ListPeer("two", loses="turn-4"))
    assert {sample.system for sample in rounds.samples} == {"one"}
    assert "were confirmed and" in rounds.failed["two"]


def test_times_of_one_at_a_time_are_from_one_confirmation_to_the_next(tmp_path: Path) -> None:
    singles = [each for each in measured(tmp_path, ListPeer("one")).samples if each.work == TRIALS[0].published]
    assert [(each.p50_us, each.p99_us) for each in singles] == [(1e6, 1e6)] * 3


def test_the_whole_run_is_estimated_at_less_than_25_minutes() -> None:
    peers = [ListPeer(name) for name in ALONE]
    for each in peers:
        each.facts = Facts(each.facts.name, "", dict.fromkeys(("page cache", "fsync"), ""), each.facts.calls)
    assert len(trials_of("fsync")) < len(trials_of("page cache"))
    assert 15 < minutes(peers, Plan(Path())) < 25


# --- the command -----------------------------------------------------------------------------------------------------


def test_wrong_options_are_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--only", "linn,carrier-pigeon"], "no such system: carrier-pigeon"),
        (["--rounds", "0"], "0 is no number of rounds"),
        (["--rounds", "many"], "many is no number of rounds"),
        (["--docs", "--quick"], "--docs is for a whole run"),
        (["--docs", "--only", "linn"], "--docs is for a whole run"),
        (["--docs", "--rounds", "4"], "of 5 rounds or more"),
    ):
        with pytest.raises(SystemExit):
            runner.main(arguments)
        assert words in capsys.readouterr().err


@pytest.mark.system
def test_a_quick_run_of_linn_has_every_work_and_writes_its_page(tmp_path: Path) -> None:
    options = [
        "--only",
        "linn",
        "--quick",
        "--json",
        str(tmp_path / "peers.json"),
        "--page",
        str(tmp_path / "peers.md"),
    ]
    assert runner.main(options) == 0
    result = read(tmp_path / "peers.json")
    assert {sample.work for sample in result.samples} == {*WORKS}
    assert "its figures mean nothing" in " ".join((tmp_path / "peers.md").read_text().split())


def test_a_program_that_is_missing_is_named_with_how_to_install_it() -> None:
    with pytest.raises(PeerMissing, match="no-such-program is not installed: apt-get install it"):
        program("no-such-program", "apt-get install it")


def test_a_library_that_is_missing_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pika", "rstream", "confluent_kafka", "nats", "redis"):
        monkeypatch.setitem(sys.modules, library, None)
    for name, module in SYSTEMS.items():
        if not name.startswith("linn"):
            monkeypatch.delitem(sys.modules, f"benchmarks.peers.{module}", raising=False)
            with pytest.raises(PeerMissing, match=r"is not installed: pip install 'linn\[peers\]'"):
                peer(name)


@pytest.mark.system
def test_no_peers_library_is_imported_before_it_is_measured() -> None:
    libraries = {"pika", "nats", "redis", "confluent_kafka", "rstream"}
    code = f"import sys, benchmarks.peers.__main__; print(sorted({libraries!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr
