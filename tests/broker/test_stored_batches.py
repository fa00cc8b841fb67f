"""Streams whose batches go from their files to the connection: what arrives, and what damage becomes."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from raw_client import RawClient, broker_on, connected, records, served

from linn.core.batch.batch import RecordBatch
from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config
from linn.core.config.tables import PluginSettings
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import BatchCorrupt
from linn.core.plugins.manager import PluginManager, installed
from linn.protocols.capnp.outbox import READ_AHEAD_BYTES_MAX
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

STREAM = '[storage.segmented-log]\nsegment_bytes_max = 200_000\n[topics.t]\nkind = "stream"\n'
LOG = "data/segmented-log/t/0/00000000000000000000.log"


async def fill(client: RawClient, seed: int) -> list[bytes]:
    """Batches from some bytes to some twenty KiB; the records' values."""
    rng = random.Random(seed)
    stored: list[bytes] = []
    for _ in range(40):
        values = [rng.randbytes(rng.choice((10, 1_000, 9_000))) for _ in range(rng.randint(1, 6))]
        await client.publish("t", values)
        stored += values
    return stored


def contents(batches: Sequence[RecordBatch]) -> list[bytes]:
    for batch in batches:
        batch.check_stored()
    return [record.value or b"" for batch in batches for record in batch.records()]


async def pushed(client: RawClient, count: int, credit: int) -> list[bytes]:
    """The first `count` records of a reader that grants `credit` at a time."""
    found: list[bytes] = []
    subscription = (await client.call(m.Subscribe("t", credit=credit))).subscription
    while len(found) < count:
        event = await client.delivery()
        assert sum(batch.count for batch in event.batches) <= credit
        found += contents(event.batches)
        await client.call(m.Credit(subscription, sum(batch.count for batch in event.batches)))
    return found


@pytest.mark.parametrize("seed", range(12))
@served(STREAM)
async def test_readers_get_every_record_once_and_in_order(env: SimEnv, client: RawClient, seed: int) -> None:
    stored = await fill(client, seed)
    for credit in (1_000, 7, 1):
        assert await pushed(await connected(env), len(stored), credit) == stored
    for bytes_max in (1, 30_000, 1 << 20):
        offset, found = 0, list[bytes]()
        while offset < len(stored):
            event = await client.ask(m.Fetch("t", 0, offset, bytes_max=bytes_max))
            found += contents(event.batches)
            offset = len(found)
            assert len(event.batches) == 1 or sum(batch.size for batch in event.batches) <= bytes_max
        assert found == stored


def test_damage_is_found_by_the_broker_or_the_receiver_and_never_read() -> None:
    found: set[str] = set()
    for seed in range(12):

        async def scenario(env: SimEnv) -> None:
            async with broker_on(env, STREAM):
                client = await connected(env)
                values = [bytes([number]) * 20_000 for number in range(4)]
                for value in values:
                    await client.publish("t", [value])
                assert await pushed(client, 4, 100) == values
                size = records(values[:1]).size
                file = env.disk.open(LOG)
                file.write_at(b"?", 2 * size + size // 2)
                file.close()
                found.add(await read_damaged(await connected(env)))

        run_simulation(seed, scenario)
    assert found == {"log.corrupt", "batch.corrupt"}


async def read_damaged(client: RawClient) -> str:
    """The error's code, after two good records and before any other."""
    await client.call(m.Subscribe("t", credit=1))
    for number in range(2):
        assert contents((await client.delivery()).batches) == [bytes([number]) * 20_000]
        await client.tell(m.Credit(1, 1))
    event = await client.push()
    if isinstance(event.message, m.Ended):
        return event.message.code
    with pytest.raises(BatchCorrupt) as refused:
        contents(event.batches)
    return refused.value.code


async def test_batches_in_flight_to_a_stalled_reader_outlive_retention_and_no_longer(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    text = f'[broker]\ndata_dir = "{tmp_path}"\n[listeners.native]\naddress = "{address}"\n{STREAM}'
    source, env = TomlSource(text + 'retention_bytes = "300KB"\n', "test.toml"), RealEnv()

    def deleted_files() -> list[str]:
        places = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        paths = [os.readlink(place) for place in places if os.path.islink(place)]
        return [path for path in paths if path.startswith(f"{tmp_path}/") and path.endswith("(deleted)")]

    async def read(reader: RawClient, last: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        while last not in found:
            for batch in (await reader.delivery()).batches:
                assert batch.base_offset not in found
                found[batch.base_offset] = batch.value(0) or b""
        return found

    async with running_broker(load_config(source, PluginManager(PluginSettings(), installed())), env) as broker:
        client, reader = await connected(env, address), await connected(env, address)
        await reader.send(m.Subscribe("t", credit=1_000))
        values = [b"%05d" % number * 20_000 for number in range(40)]
        for value in values[:20]:
            await client.publish("t", [value])
        assert broker.connections.traffic["native"].total().unsent_bytes
        for value in values[20:]:
            await client.publish("t", [value])
        await broker.topics["t"].enforce_retention()
        assert deleted_files()
        found = await read(reader, len(values) - 1)
        assert list(found) == sorted(found)
        start = broker.topics["t"].partitions[0].start_offset
        gone_bytes = sum(len(value) for offset, value in found.items() if offset < start)
        assert gone_bytes > READ_AHEAD_BYTES_MAX, "all that was read ahead arrives"
        assert len(found) < len(values), "no more was read than that"
        assert all(values[offset] == value for offset, value in found.items())
        assert (await reader.call(m.Ping())) == m.Pong()
        assert not deleted_files()
        for each in (client, reader):
            await each.stream.aclose()
