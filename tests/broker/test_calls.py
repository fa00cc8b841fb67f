"""The number of Python calls in linn for one small request: the cost of a request to a broker in Python."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import trio
from raw_client import RawClient, connected, records

import linn
from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.env import RealEnv
from linn.core.plugins.manager import built_in
from linn.wire import messages as m

PUBLISH_CALLS_MAX = 92
ROUTED_CALLS_MAX = 112
ACK_CALLS_MAX = 118
HERE = str(Path(linn.__file__).parent)
NOT_THE_BROKER = str(Path(HERE) / "testing")
CONFIG = """
[listeners.native]
address = "127.0.0.1:0"
[topics.q]
[topics.s]
kind = "stream"
[exchanges.x]
type = "topic"
[[topics.s.bindings]]
exchange = "x"
key = "a.#"
"""


async def calls_of(client: RawClient, send: Callable[[], Awaitable[int]]) -> Counter[str]:
    """The functions that a broker in this process runs through for one request, which comes whole, and its answer."""
    for _ in range(5):  # Caches are warm.
        await client.answer(await send())
    number, calls = await send(), Counter[str]()

    def count(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HERE) and not code.co_filename.startswith(NOT_THE_BROKER):
            calls[f"{code.co_filename.removeprefix(HERE)}:{code.co_name}"] += 1

    sys.setprofile(count)
    try:
        await trio.sleep(0.05)  # The broker's turn; the client reads nothing meanwhile.
    finally:
        sys.setprofile(None)
    await client.answer(number)
    return calls


async def test_a_small_request_runs_through_few_functions(tmp_path: Path) -> None:
    source, plugins = TomlSource(f'[broker]\ndata_dir = "{tmp_path}"\n{CONFIG}', "calls.toml"), built_in()
    async with running_broker(load_config(source, plugins), RealEnv(), plugins) as broker:
        client = await connected(RealEnv(), broker.addresses["native"])
        publish = await calls_of(client, lambda: client.send(m.Publish("q"), [records(["a"])]))
        routed = await calls_of(
            client, lambda: client.send(m.Publish("x", to_exchange=True), [records(["a"], routing_key="a.b")])
        )
        queue = (await client.call(m.Subscribe("q"))).subscription

        async def ack() -> int:
            event = await client.pull(queue, 1)
            (batch,), deliver = event.batches, event.message
            offset = batch.base_offset
            entry = m.Settlement(deliver.partition, deliver.delivery_id, offset, offset + 1)
            return await client.send(m.Settle(queue, [entry]))

        for _ in range(10):
            await client.publish("q", ["a"])
        acked = await calls_of(client, ack)
        await client.stream.aclose()
    assert 20 < publish.total() <= PUBLISH_CALLS_MAX, publish.most_common()
    assert 20 < routed.total() <= ROUTED_CALLS_MAX, routed.most_common()
    assert 20 < acked.total() <= ACK_CALLS_MAX, acked.most_common()
