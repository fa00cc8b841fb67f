"""A bit that flips under a running broker: what it costs, and who says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lost_consumer import decide_and_leave

import linn.sync
from linn.testing.process import BrokerProcess


def test_a_bit_that_flips_under_a_running_broker_costs_one_batch_and_is_named(tmp_path: Path, run: Any) -> None:
    with BrokerProcess(tmp_path, "[topics.jobs]\n") as broker:
        with linn.sync.connect(broker.url) as client:
            for number in range(5):
                with client.producer("jobs") as producer:
                    producer.publish_many([b"%d.%d" % (number, index) for index in range(4)])
            (log,) = (broker.data_dir / "segmented-log" / "jobs" / "0").glob("*.log")
            with log.open("r+b") as file:
                at = log.stat().st_size // 5 * 3 - 20
                file.seek(at)
                (byte,) = file.read(1)
                file.seek(at)
                file.write(bytes([byte ^ 4]))
            with client.consumer("jobs") as consumer:
                got = []
                for _ in range(16):
                    message = consumer.get(timeout_s=10)
                    assert message is not None
                    got.append(message.value)
                    message.ack()
                assert consumer.get(timeout_s=0.3) is None
        assert got == [b"%d.%d" % (number, index) for number in (0, 1, 3, 4) for index in range(4)]
        assert broker.log_text().count("are damaged, and are not delivered") == 1
        described = run("queues", "describe", "jobs", url=broker.url)
        assert "partition 0: the records from 8 to 11 are damaged" in described.stdout
        doctor = run("doctor", "--json", url=broker.url, cwd=tmp_path)
        found = [each for each in json.loads(doctor.stdout)["findings"] if each["name"] == "damaged records"]
        assert [each["state"] for each in found] == ["error"]
        assert "jobs" in found[0]["found"]
        assert doctor.returncode == 1


def test_a_decided_delivery_that_can_not_be_read_is_shown_without_its_records(tmp_path: Path, run: Any) -> None:
    with BrokerProcess(tmp_path, '[topics.ledgers]\ndelivery = "exactly-once"\n') as broker:
        with linn.sync.connect(broker.url) as client, client.producer("ledgers") as producer:
            producer.publish(b"coin")
        delivery = str(decide_and_leave(broker.url, "ledgers", "ledger-1", tmp_path))
        (log,) = (broker.data_dir / "segmented-log" / "ledgers" / "0").glob("*.log")
        with log.open("r+b") as file:
            file.seek(log.stat().st_size - 12)
            (byte,) = file.read(1)
            file.seek(log.stat().st_size - 12)
            file.write(bytes([byte ^ 4]))
        shown = run("deliveries", "describe", "ledgers", "0", delivery, "--json", url=broker.url)
        described = json.loads(shown.stdout)
        assert [row["consumer"] for row in described["deliveries"]] == ["ledger-1"]
        assert described["records"] == []
        assert "[log.corrupt]" in shown.stderr
        assert shown.returncode == 0
