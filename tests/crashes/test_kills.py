"""`linn serve` is killed again and again, under load: what it confirmed is kept. A failure prints its seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import pytest
import trio
from kill_load import CONFIG, KEPT, Load

from linn.testing.process import BrokerNotReady, BrokerProcess

KILLS = 6
KILLS_SOAK = 50
ALIVE_S_MAX = 0.4
"""Longest time before a kill; mostly less, so that recovery itself, and the time right after it, is hit too."""


async def test_sigkill_under_load_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    await killed_under_load(tmp_path, seed=1, kills=KILLS)


@pytest.mark.soak(seeds=1, chunk=1)
async def test_50_kills_under_load_lose_nothing_that_was_confirmed(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        await killed_under_load(tmp_path, seed=seed, kills=KILLS_SOAK)


async def killed_under_load(folder: Path, *, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    with BrokerProcess(folder, CONFIG) as broker:
        load = Load(broker.url, seed)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run)
                await trio.sleep(ALIVE_S_MAX)
                for _ in range(kills):
                    await trio.sleep(rng.uniform(0, ALIVE_S_MAX))
                    await trio.to_thread.run_sync(kill_and_start, broker, rng)
                    assert load.accounts.wrong == []
                await trio.sleep(ALIVE_S_MAX)
                load.stopping = True
            wrong = await load.settle_up()
        except BaseException as error:
            load.stopping = True
            error.add_note(f"seed {seed} decides the moments")
            raise
        assert wrong == [], f"seed {seed} decides the moments"
        for topic in KEPT:
            assert len(load.accounts.confirmed[topic]) > 20 * kills, "there was no load"
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0


def kill_and_start(broker: BrokerProcess, rng: random.Random) -> None:
    """SIGKILL, sometimes once more while it starts, and a start that is left alone."""
    broker.kill()
    if rng.random() < 0.3:
        timer = threading.Timer(rng.uniform(0.1, 0.8), lambda: os.kill(broker.pid, signal.SIGKILL))
        timer.start()
        with contextlib.suppress(BrokerNotReady):
            broker.start()
            timer.join()
        timer.cancel()
        broker.kill()
    broker.start()
