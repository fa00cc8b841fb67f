"""A stop takes bounded time whatever clients do, and takes nothing that was confirmed. With processes and signals."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from raw_client import RawClient, Refused, connected, records
from stopwatch import at_most

from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import ConnectionLost
from linn.testing.process import BrokerProcess
from linn.wire import messages as m

TEXT = (
    '[broker]\ndrain_timeout = "{}"\n[topics.q]\nlease = "1h"\n[topics.t]\nkind = "stream"\nretention_bytes = "1GiB"\n'
)
AT_ONCE_S = 3.0
"""Time for a process to end that only has to end, on a machine that does other things too."""
INTERRUPTED = 130


class Publishing:
    """A client that publishes numbers as fast as they are confirmed, until the broker is gone."""

    def __init__(self, client: RawClient) -> None:
        self.confirmed = 0
        self._client = client

    async def run(self) -> None:
        """Publish."""
        number = 0
        try:
            while True:
                correlations = [await self._client.send(m.Publish("t"), [records([str(number + i)])]) for i in range(8)]
                for correlation in correlations:
                    await self._client.answer(correlation)
                    self.confirmed += 1
                number += len(correlations)
        except (Refused, ConnectionLost, EOFError):
            return


async def come(broker: BrokerProcess) -> RawClient:
    """A client of the broker."""
    return await connected(RealEnv(), broker.address)


@asynccontextmanager
async def busy(broker: BrokerProcess) -> AsyncIterator[Publishing]:
    """Clients that hold leases, never read, and publish on."""
    holder, stalled, publisher = [await come(broker) for _ in range(3)]
    for _ in range(20):
        await publisher.publish("q", ["x" * 1000] * 100)
        await publisher.publish("t", ["x" * 1000] * 1000)
    await holder.call(m.Subscribe("q", credit=100))
    await holder.delivery()
    await stalled.tell(m.Subscribe("t", credit=1 << 30))
    for _ in range(20):
        await stalled.send(m.Fetch("t", 0, 0, bytes_max=1 << 20))
    publishing = Publishing(publisher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publishing.run)
        with trio.fail_after(20):
            while publishing.confirmed < 100:
                await trio.sleep(0.01)
        yield publishing
    for client in (holder, stalled, publisher):
        await client.stream.aclose()


async def ended(broker: BrokerProcess, after_s: float = 0.0) -> int:
    """The exit code, or -9 where it had to be killed, which is sooner than any drain here that nothing ends."""
    with at_most(wall_s=after_s + AT_ONCE_S):
        return await trio.to_thread.run_sync(broker.wait)


async def check_kept(broker: BrokerProcess, confirmed: int) -> None:
    """Check after a start that all confirmed records are there, in order, and that leased ones are ready again."""
    broker.start()
    client = await come(broker)
    offset = 20_000
    while offset < 20_000 + confirmed:
        found = await client.fetch("t", offset=offset, bytes_max=1 << 20)
        assert found == [str(offset - 20_000 + place) for place in range(len(found))]
        offset += len(found)
    worker = (await client.call(m.Subscribe("q"))).subscription
    assert (await client.pull(worker, 1, 5000)).batches[0].base_offset == 0
    await client.stream.aclose()


async def test_sigterm_ends_a_busy_broker_in_the_drains_time_and_keeps_what_was_confirmed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, TEXT.format("1s")) as broker:
        async with busy(broker) as publishing:
            broker.signal(signal.SIGTERM)
            code = await ended(broker, after_s=1)
        assert code == 0
        assert "Traceback" not in broker.log_text()
        await check_kept(broker, publishing.confirmed)


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)])
async def test_the_second_signal_ends_a_busy_broker_at_once(
    tmp_path: Path, signals: tuple[signal.Signals, signal.Signals]
) -> None:
    with BrokerProcess(tmp_path, TEXT.format("1h")) as broker:
        async with busy(broker) as publishing:
            broker.signal(signals[0])
            with trio.fail_after(20):
                while "once more stops at once" not in broker.log_text():
                    await trio.sleep(0.01)
            broker.signal(signals[1])
            code = await ended(broker)
        assert code == INTERRUPTED
        await check_kept(broker, publishing.confirmed)


async def test_a_hundred_publishers_that_go_on_do_not_hold_a_stop_up(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, TEXT.format("30s")) as broker:
        clients = [await come(broker) for _ in range(100)]
        publishings = [Publishing(client) for client in clients]
        async with trio.open_nursery() as nursery:
            for publishing in publishings:
                nursery.start_soon(publishing.run)
            with trio.fail_after(20):
                while min(publishing.confirmed for publishing in publishings) < 8:
                    await trio.sleep(0.01)
            broker.signal(signal.SIGTERM)
            code = await ended(broker)
        for client in clients:
            await client.stream.aclose()
        assert code == 0
        broker.start()
        client = await come(broker)
        kept = (await client.administer("topic.show", name="t"))["partitions"][0]["end"]
        await client.stream.aclose()
        assert kept >= sum(publishing.confirmed for publishing in publishings)


async def test_the_second_signal_ends_a_broker_whose_loop_a_plugin_holds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    text = '[broker]\nloop_held_max = "100ms"\n[plugins]\nload = ["stuck_plugin"]\n'
    with BrokerProcess(tmp_path, text) as broker:
        client = await come(broker)
        await client.send(m.Administer("topic.create", '{"name": "new"}'))
        with trio.fail_after(20):
            while "stuck_plugin" not in broker.log_text():
                await trio.sleep(0.01)
        broker.signal(signal.SIGTERM)
        broker.signal(signal.SIGINT)
        code = await ended(broker)
        await client.stream.aclose()
    assert code == INTERRUPTED
