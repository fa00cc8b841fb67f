"""`linn recover`, and starts over damaged logs: a broker that was killed, with the default fsync policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import linn.sync
from linn.cli.exit_code import ExitCode
from linn.testing.process import BrokerNotReady, BrokerProcess

CONFIG = """
[storage.small]
engine = "segmented-log"
segment_bytes_max = 65536
[topics.jobs]
storage = "small"
[topics.prices]
kind = "stream"
storage = "small"
[topics.trades]
kind = "stream"
storage = "small"
"""
COUNT = 600
VALUE = b"x" * 300


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Confirmed records in three topics, and a broker that is gone."""
    with BrokerProcess(tmp_path, CONFIG) as broker:
        with linn.sync.connect(broker.url) as client:
            for topic in ("jobs", "prices", "trades"):
                with client.producer(topic) as producer:
                    for _ in range(COUNT // 10):
                        producer.publish_many([VALUE] * 10)
        broker.kill()
        yield broker


def logs(broker: BrokerProcess, partition: str) -> list[Path]:
    return sorted((broker.data_dir / "small" / partition).glob("*.log"))


def content(broker: BrokerProcess) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file() and path.name != "lock"}


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def refused(broker: BrokerProcess) -> str:
    """The error of a start that changes nothing."""
    before = content(broker)
    with pytest.raises(BrokerNotReady) as raised:
        broker.start()
    assert raised.value.returncode == ExitCode.STORAGE
    assert content(broker) == before
    return broker.log_text()


def test_a_flipped_bit_loses_confirmed_records_only_if_the_operator_allows_it(
    killed: BrokerProcess, run, line_of
) -> None:
    flip(logs(killed, "jobs/0")[0], 20_000)
    said = refused(killed)
    assert "linn recover jobs/0" in said
    data = ("--config", str(killed.folder / "linn.toml"), "--data-dir", str(killed.data_dir))
    shown = run("recover", *data)
    assert shown.returncode == 1
    assert "jobs/0: " in shown.stdout
    assert "linn recover jobs/0 --cut" in shown.stdout
    (tail,) = json.loads(run("recover", "jobs/0", *data, "--json").stdout)
    refused(killed)

    cut = run("recover", "jobs/0", "--cut", *data)
    assert (cut.returncode, cut.stderr) == (0, "")
    assert run("recover", *data).returncode == 0
    killed.start()
    with linn.sync.connect(killed.url) as client:
        kept = client.admin.topic("jobs")["partitions"][0]["end"]
        assert kept == tail["offset"]
        assert 0 < COUNT - kept - tail["records"] <= 10
        assert client.admin.topic("trades")["partitions"][0]["end"] == COUNT
    aside = sum(path.stat().st_size for path in killed.data_dir.rglob("*.cut"))
    assert aside == tail["bytes"]
    busy = run("recover", *data)
    assert busy.returncode == ExitCode.STORAGE
    assert "[storage.locked]" in line_of(busy.stderr)


def test_every_damaged_log_is_named_and_the_others_are_as_they_were(killed: BrokerProcess) -> None:
    flip(logs(killed, "prices/0")[0], 20_000)
    logs(killed, "jobs/0")[0].unlink()
    # A torn tail, which a start that goes on would cut off.
    last = logs(killed, "trades/0")[-1]
    last.write_bytes(last.read_bytes()[:-5])
    said = refused(killed)
    assert "linn recover jobs/0" in said
    assert "linn recover prices/0" in said
    assert "trades/0" not in said


def test_first_segments_of_two_partitions_that_were_swapped_are_refused(killed: BrokerProcess) -> None:
    one, other = logs(killed, "prices/0")[0], logs(killed, "jobs/0")[0]
    flip(one, 100)  # They are alike, so that a swap alone would show nothing.
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes()[:-400])
    other.write_bytes(kept)
    assert "jobs/0" in refused(killed)


@pytest.mark.parametrize("folder", ["trades/0", "__s.jobs/0"])
def test_a_missing_folder_is_logged(killed: BrokerProcess, folder: str) -> None:
    (place,) = killed.data_dir.glob(f"*/{folder}")
    shutil.rmtree(place)
    killed.start()
    assert f"the folder of {folder} is gone" in killed.log_text()


def test_missing_names_are_reported_in_one_line(killed: BrokerProcess, run, line_of) -> None:
    data = ("--config", str(killed.folder / "linn.toml"), "--data-dir", str(killed.data_dir))
    done = run("recover", "job/0", *data)
    assert done.returncode == 1
    assert 'did you mean "jobs/0"?' in line_of(done.stderr)
    assert run("recover", "--cut", *data).returncode == 2
