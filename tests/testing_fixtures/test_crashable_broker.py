from __future__ import annotations

from pathlib import Path

import pytest

import linn
import linn.sync
from linn.core.errors.tree import ConnectFailed, RequestTimeout
from linn.testing import CrashableBroker

TOPICS = {"orders": {"kind": "queue"}}


def test_a_producer_goes_on_over_a_crash(tmp_path: Path) -> None:
    with CrashableBroker(tmp_path, topics=TOPICS) as broker:
        url = broker.url
        with linn.sync.connect(url) as client, client.producer("orders") as producer:
            producer.publish(b"coffee")
            broker.crash()
            assert broker.url == url
            producer.publish(b"tea")
            fetched = client.fetch("orders", 0, 0)
            assert [value for batch in fetched.batches for value in batch.values] == [b"coffee", b"tea"]
    with pytest.raises(ConnectFailed):
        linn.sync.connect(url)


def test_a_paused_broker_is_slow_and_not_gone(tmp_path: Path) -> None:
    with CrashableBroker(tmp_path, topics=TOPICS) as broker:
        with linn.sync.connect(broker.url, request_timeout_s=0.2) as client:
            broker.pause()
            with pytest.raises(RequestTimeout):
                client.describe("orders")
            broker.resume()
            client.describe("orders")
            broker.pause()
    # Leaving the block has killed it, paused as it was.
