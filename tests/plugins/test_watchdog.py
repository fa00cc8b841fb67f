"""The plugin that blocks the loop is named: while it does, once, and by the innermost plugin on the stack."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType

import pytest
import trio
from trio.testing import MockClock

import linn
from linn.core.env.code_owner import CodeOwners
from linn.core.env.watchdog import LOOKS_PER_STEP, REPORT_INTERVAL_S, LoopSteps, Watchdog
from linn.testing.process import BrokerProcess

OWNERS = CodeOwners({'plugin "tape"': ["paper_tape.plugin", "paper_tape.engine"], 'plugin "geo"': ["geo"]})
LIMIT_S = 0.4


def frame_in(*modules: str) -> FrameType:
    """The innermost frame of a stack of functions in these modules, the outermost first."""
    found: list[FrameType] = []
    call: Callable[[], object] = partial(found.append, sys._getframe())
    for name in reversed(modules):
        module = ModuleType(name)
        exec("def held(then, frames):\n    frames.append(__import__('sys')._getframe())\n    then()", module.__dict__)
        call = partial(module.held, call, found)
    call()
    return found[len(modules) - 1]


class Looks:
    """A watchdog, and looks at the times that it wants."""

    def __init__(self) -> None:
        self.steps = LoopSteps()
        self.watchdog = Watchdog(self.steps, OWNERS, LIMIT_S)
        self.now_s = 100.0

    def step(self) -> None:
        self.steps.count += 1
        self.steps.is_waiting = False

    def look(self, times: int, frame: FrameType | None) -> None:
        for _ in range(times):
            self.watchdog.look(self.now_s, frame)
            self.now_s += self.watchdog.interval_s


@pytest.fixture
def looks(caplog: pytest.LogCaptureFixture) -> Iterator[Looks]:
    with caplog.at_level(logging.WARNING, "linn.watchdog"):
        yield Looks()


def test_a_step_over_the_limit_is_reported_while_it_lasts_and_when_it_ends(
    looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    looks.step()
    frame = frame_in("linn.core.routing.router", "geo")
    looks.look(LOOKS_PER_STEP, frame)
    assert caplog.messages == []
    looks.look(6, frame)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith('plugin "geo" holds up the loop')
    assert "for 0.40 s so far, in held (<string>:" in caplog.messages[0]
    looks.step()
    looks.look(1, frame)
    assert caplog.messages[1:] == ['plugin "geo" held up the loop for 1.00 s']
    assert looks.watchdog.held == {'plugin "geo"': 1}


def test_many_steps_and_waiting_are_no_reason_to_complain(looks: Looks, caplog: pytest.LogCaptureFixture) -> None:
    frame = frame_in("geo")
    for _ in range(20):
        looks.step()
        looks.look(LOOKS_PER_STEP, frame)
    looks.steps.is_waiting = True
    looks.look(20, frame)
    assert caplog.messages == []


def test_a_plugin_that_blocks_with_every_message_does_not_fill_the_log(
    looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    frame, other = frame_in("geo"), frame_in("paper_tape.engine")
    for _ in range(10):
        looks.step()
        looks.look(LOOKS_PER_STEP + 1, frame)
    looks.step()
    looks.look(LOOKS_PER_STEP + 1, other)
    told = [message.split(" holds ")[0] for message in caplog.messages if " holds " in message]
    assert told == ['plugin "geo"', 'plugin "tape"']
    assert looks.watchdog.held == {'plugin "geo"': 10, 'plugin "tape"': 1}
    looks.now_s += REPORT_INTERVAL_S
    looks.step()
    looks.look(LOOKS_PER_STEP + 1, frame)
    assert "(11 times by now)" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("stack", "owner"),
    [
        (["linn.core.routing.router", "geo", "json"], 'plugin "geo"'),
        (["geo", "paper_tape.engine", "sqlite3"], 'plugin "tape"'),
        (["geo", "linn.core.batch.batch"], 'plugin "geo"'),
        (["paper_tape.deeper.still"], 'plugin "tape"'),
        (["geography"], None),
        (["linn.core.log.partition", "trio"], None),
    ],
)
def test_the_innermost_plugin_on_the_stack_is_named(stack: list[str], owner: str | None) -> None:
    culprit = OWNERS.in_stack(frame_in(*stack))
    assert (culprit and culprit.plugin) == owner


def test_a_package_that_two_plugins_share_is_neithers() -> None:
    owners = CodeOwners({"a": ["company.a"], "b": ["company.b"]})
    names = ["company.a", "company.b", "company.c", "company", "linn.core.env.env"]
    assert [owners.owner_of(module) for module in names] == ["a", "b", None, None, None]


async def test_every_step_is_counted_and_waiting_is_told_from_work(autojump_clock: MockClock) -> None:
    steps = LoopSteps()
    trio.lowlevel.add_instrument(steps)
    before = steps.count
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    assert steps.count == before + 5
    assert not steps.is_waiting
    await trio.sleep(5)
    assert steps.count == before + 6
    trio.lowlevel.remove_instrument(steps)


SLEEPER = """
import time
from linn.core.routing.exchange import ExchangeKind
from linn.core.plugins.hookspecs import hookimpl
from linn.plugins.exchanges import FanoutExchange, NoSettings

class Sleeper(FanoutExchange):
    def match(self, subject):
        time.sleep(0.7)  # Not a wait of the test's: this is the fault that it is about.
        return super().match(subject)

@hookimpl
def linn_register_exchange():
    return ExchangeKind("sleeper", NoSettings, Sleeper)
"""
TOML = """
[plugins]
load = ["sleeper"]
[exchanges.slow]
type = "sleeper"
[topics.t]
[[topics.t.bindings]]
exchange = "slow"
"""


@pytest.mark.system
async def test_a_broker_names_the_plugin_that_holds_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with BrokerProcess(tmp_path, TOML) as broker:
        async with linn.connect(broker.url) as client, client.producer(exchange="slow") as producer:
            await producer.publish(b"a")
        broker.stop()
        log = broker.log_text().replace('\\"', '"')
    assert 'plugin "sleeper" (listed in [plugins]) holds up the loop' in log
    assert "Sleeper.match (sleeper.py:9)" in log
