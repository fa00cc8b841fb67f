"""`linn bench latency` and `soak`: what they measure and check, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linn.cli.soak import Soak
from linn.client.message import Batch
from linn.core.batch_builder import build_from_records
from linn.core.record import Record
from linn.testing.process import BrokerProcess

WELL_UNDER_WAY_BYTES = 20_000


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
            out, errors = soaking.communicate(timeout=60)
        assert (errors, soaking.returncode) == (b"", 0)
        found = json.loads(out)
    assert found["ok"]
    assert found["lost"] == 0
    assert found["confirmed"] > 0
    assert found["errors"], "the broker was away"


def test_ctrl_c_takes_the_topic_with_it(quick, broker: BrokerProcess) -> None:
    before = topics(quick)
    command = [sys.executable, "-m", "linn", "bench", "soak", "--duration", "1h", "--url", broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as soaking:
        deadline = time.monotonic() + 20
        while topics(quick) == before and time.monotonic() < deadline:
            pass
        soaking.send_signal(signal.SIGINT)
        assert soaking.wait(30) == 130
    assert topics(quick) == before


@pytest.fixture
def soak() -> Soak:
    return Soak(duration_s=1, rate=None, size=20, consumers=1, settings={})


async def test_what_is_lost_damaged_or_twice_is_found(soak: Soak) -> None:
    soak._published = 4
    soak._confirmed.add(0, 3)
    damaged = bytearray(soak._value(3))
    damaged[0] ^= 1
    values = [soak._value(0), soak._value(0), soak._value(2), bytes(damaged), b"short"]
    soak._take(Batch("t", 0, build_from_records([Record(value=value) for value in values], base_id=1)))
    found = soak._data()
    assert (found["lost"], found["duplicates"], found["damaged"], found["unknown"], found["ok"]) == (1, 1, 2, 1, False)
