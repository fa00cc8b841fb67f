"""The architecture page names every file that a record passes on its way, and no other."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio.testing
from raw_client import connected, records

import linn
from linn.core.batch.batch import SCATTERED
from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.env import RealEnv
from linn.core.plugins.manager import built_in
from linn.wire import messages as m

HERE = Path(linn.__file__).parent
PAGE = HERE.parent / "docs" / "explanation" / "architecture.md"
CONFIG = """
[listeners.native]
address = "127.0.0.1:0"
[topics.q]
partitions = 2
[exchanges.x]
type = "topic"
[[topics.q.bindings]]
exchange = "x"
key = "a.#"
"""


@contextmanager
def passed(files: list[str]) -> Iterator[None]:
    """Collect the files of linn whose functions are called, in the order of their first call."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(f"{HERE}/") and "/testing/" not in name:
            path = f"linn/{Path(name).relative_to(HERE)}"
            if path not in files:
                files.append(path)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


async def files_passed(data_dir: Path) -> list[str]:
    """Publish one record through an exchange to a queue whose consumer waits, take it and ack it."""
    source, plugins = TomlSource(f'[broker]\ndata_dir = "{data_dir}"\n{CONFIG}', "walk.toml"), built_in()
    files: list[str] = []
    async with running_broker(load_config(source, plugins), RealEnv(), plugins) as broker:
        producer, consumer = [await connected(RealEnv(), broker.addresses["native"]) for _ in range(2)]
        subscription = (await consumer.call(m.Subscribe("q"))).subscription
        publish, batch = m.Publish("x", to_exchange=True), records(["hello"], routing_key="a.b", key=b"k")
        batch.number(producer.welcome.producer_id, 0, 0, SCATTERED)  # As a client does that was told nothing else.
        waiting = await consumer.send(m.Pull(subscription, 1, wait_max_ms=60_000))
        await trio.testing.wait_all_tasks_blocked(0.01)
        with passed(files):
            await producer.call(publish, [batch])
            event = await consumer.answer(waiting)
            (delivered,), deliver = event.batches, event.message
            offset = delivered.base_offset
            entry = m.Settlement(deliver.partition, deliver.delivery_id, offset, offset + 1)
            await consumer.call(m.Settle(subscription, [entry]))
        await producer.stream.aclose()
        await consumer.stream.aclose()
    return files


async def test_the_page_names_every_file_that_a_record_passes(tmp_path: Path) -> None:
    files = await files_passed(tmp_path)
    (walk,) = re.findall(r"^### Every file\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    named = [f"linn/{name}" for name in re.findall(r"\]\(../../linn/([\w/]+\.py)\)", walk)]
    assert sorted(named) == sorted(files)
