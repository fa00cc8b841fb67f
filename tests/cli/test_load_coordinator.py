"""The load of many producers, where the broker that it watches has no time for it."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import pytest

import linn
from linn.bench.coordinator import LoadCoordinator
from linn.core.errors.tree import RequestTimeout
from linn.testing.process import BrokerProcess

TIMEOUT_S = 0.1


async def test_a_broker_that_does_not_say_in_time_what_it_uses_is_asked_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        coordinator = LoadCoordinator(
            broker.url.removeprefix("linn://"),
            producers=1,
            processes=1,
            rate_per_s=1,
            size=1,
            linger_s=0,
            duration_s=1,
            settings={},
        )
        async with linn.connect(broker.url, request_timeout_s=TIMEOUT_S) as client:
            broker.signal(signal.SIGSTOP)
            try:
                with pytest.raises(RequestTimeout):
                    await client.admin.metrics()
                with anyio.move_on_after(5 * TIMEOUT_S) as watched:
                    await coordinator._watch_broker(client)
                assert watched.cancelled_caught
            finally:
                broker.signal(signal.SIGCONT)
