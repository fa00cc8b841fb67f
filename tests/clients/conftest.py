"""One broker and the agents that this machine can build, for all tests of clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from agents import BUILDERS, AgentProcess, Commands, Missing
from brokers import ThreeBrokers, several_brokers
from programs import Programs
from spoken import create_topic

from linn.testing.process import BrokerProcess

CONFIG = """
[broker]
name = "conformance"

[exchanges.events]
type = "topic"

[topics.late]
bindings = [{ exchange = "events", key = "*.late" }]

[topics.log]
kind = "stream"

[topics.spread]
kind = "stream"
partitions = 4

[topics.brief]
max_deliveries = 2
dead_letter = "dead"

[topics.dead]

[topics.hasty]
lease = "1s"

[topics.small]
message_bytes_max = "1KiB"
bytes_max = "4KiB"
overflow = "reject"
"""


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def command() -> Commands:
    """The command that starts an agent, which is built once. Skips if it can't be."""
    built: dict[str, list[str] | Missing] = {}

    def build(language: str) -> list[str]:
        if language not in built:
            try:
                built[language] = BUILDERS[language]()
            except Missing as missing:
                built[language] = missing
        found = built[language]
        if isinstance(found, Missing):
            pytest.skip(f"{language}: {found}")
        return found

    return build


@pytest.fixture(scope="module")
def broker(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess | ThreeBrokers]:
    if (kind := pytestconfig.option.brokers) != "one":
        with several_brokers(kind, CONFIG) as several:
            yield several
        return
    folder = tmp_path_factory.mktemp("conformance")
    with BrokerProcess(folder, CONFIG, listen=["127.0.0.1:0", f"unix:{folder}/socket"]) as running:
        yield running


@pytest.fixture(params=[*BUILDERS])
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def crew() -> Iterator[dict[str, AgentProcess]]:
    """Agents that run, by language: one serves many tests, one after the other."""
    running: dict[str, AgentProcess] = {}
    yield running
    for process in running.values():
        process.end()


@pytest.fixture
def agent(language: str, command: Commands, crew: dict[str, AgentProcess]) -> Iterator[AgentProcess]:
    if language not in crew:
        crew[language] = AgentProcess(language, command(language))
    running = crew.pop(language)
    yield running
    if not running.ended:
        running.ask("close")
        crew[language] = running


@pytest.fixture
def connected(agent: AgentProcess, broker: BrokerProcess) -> AgentProcess:
    agent.ask("connect", url=broker.url)
    return agent


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    name = re.sub(r"[^\w-]", "-", request.node.name)
    trio.run(create_topic, broker.url, name)
    return name


@pytest.fixture
def programs(broker: BrokerProcess, tmp_path: Path) -> Iterator[Programs]:
    """Programs of the test, which end before its broker does."""
    with Programs(tmp_path) as running:
        yield running
