"""Two processes of one cluster beside a real etcd: a link in TLS, and the other broker killed and stopped."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from cluster_processes import SLACK_S, RealCluster
from etcd_process import running_etcd
from tls_world import tls_table

from linn.cluster.channel import SILENCE_S
from linn.core.broker.broker import Broker
from linn.core.env.real.env import RealEnv
from linn.core.errors.peers import PeerError, PeerUnknown, PeerUnreachable
from linn.core.ports.principal import Principal
from linn.testing.plugin_broker import plugin_broker
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.system

ANN = Principal("10.0.0.9:4711", "tests", "ann", login="scram")


@asynccontextmanager
async def two_processes(folder: Path) -> AsyncIterator[tuple[Broker, BrokerProcess]]:
    """Run node 1 in this process, and node 2 in another one."""
    peers = 'tls = "edge"'
    with running_etcd(folder / "etcd") as etcd:
        cluster = RealCluster(folder, etcd, tables=tls_table(folder), peers=peers)
        text = f'[broker]\ndata_dir = "{folder}/one"\ndrain_timeout = "1s"\n{cluster.config(1)}'
        with cluster.broker(2) as other:
            async with plugin_broker(RealEnv(), text) as broker:
                yield broker, other


async def ask(broker: Broker, verb: str = "topic.list", arguments: str = "{}") -> str:
    links = broker.gateway.links
    assert links is not None
    return await links.perform(2, verb, arguments, ANN)


async def ask_until_answered(broker: Broker) -> str:
    with trio.fail_after(SLACK_S):
        while True:
            try:
                return await ask(broker)
            except PeerError:
                await trio.sleep(0.1)


def created(name: str) -> str:
    return json.dumps({"name": name, "settings": {"kind": "queue"}})


async def test_another_process_carries_out_verbs_is_killed_and_comes_back(tmp_path: Path) -> None:
    async with two_processes(tmp_path) as (broker, other):
        await ask_until_answered(broker)
        await ask(broker, "topic.create", created("orders"))
        other.kill()
        with pytest.raises(PeerUnreachable):
            await ask(broker)
        await trio.to_thread.run_sync(other.start)
        assert [topic["name"] for topic in json.loads(await ask_until_answered(broker))] == ["orders"]


async def test_a_process_that_is_stopped_costs_its_callers_a_few_seconds(tmp_path: Path) -> None:
    async with two_processes(tmp_path) as (broker, other):
        await ask_until_answered(broker)
        other.signal(signal.SIGSTOP)
        began_s = trio.current_time()
        with pytest.raises(PeerUnknown):
            await ask(broker, "topic.create", created("orders"))
        assert trio.current_time() - began_s < SILENCE_S + SLACK_S
        other.signal(signal.SIGCONT)
        await ask_until_answered(broker)
