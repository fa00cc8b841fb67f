"""`linn bench latency` and `soak`: what they measure and check, and what they leave behind."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from linn.bench.coordinator import is_well
from linn.bench.saturation import Sample, first_saturated, utilization
from linn.bench.soak import SoakTest
from linn.client.consume.message import Batch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.testing.process import BrokerProcess

WELL_UNDER_WAY_BYTES = 20_000
UNDER_WAY_RECORDS = 200


def topics(quick) -> list[str]:
    return [topic["name"] for topic in json.loads(quick("topics", "--json").stdout)]


def test_latency_measures_both_ways_and_leaves_no_topic(quick) -> None:
    before = topics(quick)
    found = json.loads(quick("bench", "latency", "--count", "50", "--json").stdout)
    assert (found["messages"], found["delivered"]) == (50, 50)
    for way in ("confirmed_ms", "delivered_ms"):
        shares = list(found[way].values())
        assert shares == sorted(shares)
        assert shares[0] > 0
    assert "delivered" in quick("bench", "latency", "--count", "5", "--setting", "kind=stream").stdout
    assert topics(quick) == before


def test_a_soak_without_trouble_finds_all_of_it(quick) -> None:
    before = topics(quick)
    found = json.loads(quick("bench", "soak", "--duration", "500ms", "--rate", "2000/s", "--json").stdout)
    assert found["ok"]
    assert found["published"] == found["confirmed"] == found["delivered"] > 100
    assert (found["unknown"], found["lost"], found["duplicates"], found["errors"]) == (0, 0, 0, {})
    assert "nothing was lost" in quick("bench", "soak", "--duration", "100ms", "--rate", "100/s").stdout
    assert topics(quick) == before


def test_a_soak_without_confirmations_reports_it(quick) -> None:
    command = ("bench", "soak", "--duration", "200ms", "--setting", "message_bytes_max=1KiB", "--size", "2000")
    done = quick(*command)
    assert done.returncode == 1
    assert "nothing was confirmed" in done.stdout
    assert "message.too_large" in done.stdout


def test_a_soak_goes_on_over_a_broker_that_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        command = [sys.executable, "-m", "linn", "bench", "soak", "--duration", "6s", "--rate", "500/s", "--json"]
        with subprocess.Popen(
            command, env=os.environ | {"LINN_URL": broker.url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as soaking:
            size, deadline = 0, time.monotonic() + 20
            while size < WELL_UNDER_WAY_BYTES and time.monotonic() < deadline:
                size = sum(file.stat().st_size for file in (tmp_path / "data").rglob("*.log"))
            broker.kill()
            broker.start()
            out, errors = soaking.communicate(timeout=300)
        assert (errors, soaking.returncode) == (b"", 0)
        found = json.loads(out)
    assert found["ok"]
    assert found["lost"] == 0
    assert found["confirmed"] > 0
    assert found["errors"], "the broker was away"


def until_under_way(quick) -> None:
    """Wait until a load has stored so much that some of it was confirmed."""
    deadline, records = time.monotonic() + 20, 0
    while records < UNDER_WAY_RECORDS and time.monotonic() < deadline:
        loaded = [topic for topic in json.loads(quick("topics", "--json").stdout) if "bench-soak" in topic["name"]]
        records = sum(partition["end"] for topic in loaded for partition in topic["partitions"])


def test_ctrl_c_deletes_the_topic_and_prints_the_results_so_far(quick, broker: BrokerProcess) -> None:
    before = topics(quick)
    command = [sys.executable, "-m", "linn", "bench", "soak", "--duration", "1h", "--rate", "1000/s", "--json"]
    with subprocess.Popen(
        [*command, "--url", broker.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as soaking:
        until_under_way(quick)
        soaking.send_signal(signal.SIGINT)
        out, errors = soaking.communicate(timeout=300)
    assert (errors, soaking.returncode) == ("", 130)
    found = json.loads(out)
    assert 0 < found["confirmed"] <= found["published"]
    assert found["confirmed"] / found["seconds"] == pytest.approx(found["messages_per_s"], abs=5)
    assert found["damaged"] == 0
    assert {"lost", "ok"}.isdisjoint(found)
    assert topics(quick) == before


@pytest.mark.parametrize("load", ["publish", "consume", "latency"])
def test_ctrl_c_prints_the_figures_so_far(quick, broker: BrokerProcess, load: str) -> None:
    """A consumer that has read everything waits for more: 10 seconds, in which it is interrupted."""
    before = topics(quick)
    topic = f"interrupted-{load}"
    quick("topics", "create", topic)
    quick("bench", "publish", topic, "--count", "1000")
    command = [sys.executable, "-m", "linn", "bench", load, *([topic] if load != "latency" else [])]
    with subprocess.Popen(
        [*command, "--count", str(10**12), "--json", "--url", broker.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            until_loaded(quick, topic, load)
        finally:
            running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=30)
    assert (errors, running.returncode) == ("", 130)
    found = json.loads(out)
    assert found["messages"] > 0
    assert found["seconds"] > 0
    if load != "latency":
        assert found["what"].endswith(f"{topic}, interrupted")
    quick("topics", "delete", topic, "--yes")
    assert topics(quick) == before


def until_loaded(quick, topic: str, load: str) -> None:
    """Wait until the load is in its second call at least, or has acked all that there was."""
    first_call = 1000 + {"publish": 10_000, "latency": 1, "consume": 0}[load]
    deadline, counts = time.monotonic() + 20, (0, 1)
    while time.monotonic() < deadline and not (counts[1] == 0 if load == "consume" else counts[0] > first_call):
        found = json.loads(quick("topics", "--json").stdout)
        ends = [each for each in found if each["name"] == topic or (load == "latency" and "bench" in each["name"])]
        end = sum(partition["end"] for each in ends for partition in each["partitions"])
        counts = end, ends[0]["queue"]["unsettled"]


def test_many_producers_say_which_share_was_reached_and_leave_nothing(quick) -> None:
    before = topics(quick)
    command = ("bench", "soak", "--producers", "20", "--processes", "2", "--rate", "500/s", "--duration", "1s")
    found = json.loads(quick(*command, "--json").stdout)
    assert found["target_per_s"] == 10_000
    assert found["confirmed"] == pytest.approx(10_000 * found["share"])
    assert found["share"] > 0.5
    assert (found["errors"], found["lost_connections"], found["processes"]) == ({}, 0, 2)
    assert 0 < found["confirmed_ms"]["p50"] <= found["confirmed_ms"]["max"]
    assert "full first:" in quick("bench", "soak", "--producers", "2", "--duration", "200ms").stdout
    assert topics(quick) == before


@pytest.mark.parametrize(
    ("confirmed", "errors", "lost", "well"),
    [(9, {}, 0, True), (0, {}, 0, False), (9, {"topic.full": 1}, 0, False), (9, {}, 1, False)],
)
def test_a_load_of_which_nothing_was_confirmed_did_not_go_well(
    confirmed: int, errors: dict[str, int], lost: int, well: bool
) -> None:
    assert is_well({"confirmed": confirmed, "errors": errors, "lost_connections": lost}) is well


def test_too_few_descriptors_or_connections_are_reported_with_a_remedy(tmp_path: Path, within) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with BrokerProcess(tmp_path, "[broker]\nconnections_max = 5\n") as broker:
        refused = within("bench", "soak", "--producers", "10", "--duration", "1s", url=broker.url)
        assert refused.returncode == 1
        assert "connections_max" in refused.stderr
        assert "[bench.load_failed]" in refused.stderr
        command = [sys.executable, "-m", "linn", "bench", "soak", "--producers", "5000", "--url", broker.url]
        limited = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=300,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), min(256, hard))),
        )
    assert limited.returncode == 1
    assert "ulimit -Hn" in limited.stderr
    assert "--processes" in limited.stderr


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_load_that_is_interrupted_takes_its_processes_with_it(quick, broker: BrokerProcess, by) -> None:  # type: ignore[no-untyped-def]
    command = [sys.executable, "-m", "linn", "bench", "soak", "--producers", "10", "--processes", "2", "--json"]
    with subprocess.Popen(
        [*command, "--duration", "1h", "--url", broker.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as load:
        deadline = time.monotonic() + 20
        while not any("bench-soak" in topic for topic in topics(quick)) and time.monotonic() < deadline:
            pass
        children = psutil.Process(load.pid).children()
        while len(children) < 2 and time.monotonic() < deadline:
            children = psutil.Process(load.pid).children()
        until_under_way(quick)
        load.send_signal(by)
        out, errors = load.communicate(timeout=300)
        assert (errors, load.returncode) == (b"", 130 if by == signal.SIGINT else -9)
    if by == signal.SIGINT:
        found = json.loads(out)
        assert found["confirmed"] > 0
        assert found["confirmed_ms"]["p50"] > 0
        assert 0 < found["seconds"] < 60
        rounded_s = 0.0005  # Either way: a load that ends at once has taken some hundredths of a second.
        slowest, fastest = (found["confirmed"] / (found["seconds"] + more) for more in (rounded_s, -rounded_s))
        assert slowest - 1 <= found["confirmed_per_s"] <= fastest + 1
    _, alive = psutil.wait_procs(children, timeout=300)
    assert len(children) == 2
    assert alive == []
    for topic in topics(quick):
        if by == signal.SIGKILL and "bench-soak" in topic:
            quick("topics", "delete", topic, "--yes")
    assert not any("bench-soak" in topic for topic in topics(quick))


def sampled(at_s: float, processor_s: float | None, load_s: float = 0.0) -> Sample:
    broker = {} if processor_s is None else {"processor_s": processor_s, "descriptors": 10, "descriptors_max": 100}
    return Sample(at_s, broker, load_s, None, None)


def test_the_first_limit_is_told_apart_from_later_ones() -> None:
    heard = [sampled(0, 0), sampled(1, 0.5), sampled(2, 1.45), sampled(3, 2.45)]
    seen = [sampled(0, None), sampled(3, None, 2.9)]
    assert first_saturated((heard, seen), None) == ("broker_processor", 2)
    assert first_saturated((heard[:2], seen), None) == ("load_processor", 3)
    assert first_saturated((heard[:2], seen[:1]), None) is None
    assert utilization(heard[0], heard[-1], None)["broker_descriptors"] == 0.1


@pytest.fixture
def soak() -> SoakTest:
    return SoakTest(duration_s=1, rate_per_s=None, size=20, consumers=1, settings={})


async def test_lost_damaged_and_duplicate_messages_are_found(soak: SoakTest) -> None:
    soak._published = 4
    soak._confirmed.add(0, 3)
    damaged = bytearray(soak._value(3))
    damaged[0] ^= 1
    values = [soak._value(0), soak._value(0), soak._value(2), bytes(damaged), b"short"]
    soak._take(Batch("t", 0, build_from_records([Record(value=value) for value in values], base_id=1)))
    found = soak.data()
    assert (found["lost"], found["duplicates"], found["damaged"], found["unknown"], found["ok"]) == (1, 1, 2, 1, False)
