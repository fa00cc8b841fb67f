"""Spark pipelines of a cluster run at the broker that leads their first topic, and go where it goes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any

import pytest
import trio
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import Refused
from replicas_seen import in_sync
from replicated_topic import next_leader
from simulated_time import simulated

import linn
from linn.core.security.sasl.scram import make_verifier
from linn.testing.sim_env import SimEnv
from linn.testing.sim_programs import SimProgram
from tests.spark.scripted_driver import ScriptedDriver, java

SHARED = '[spark]\nstate_dir = "/shared"\n'
SINK = '[topics.orders]\nkind = "stream"\nspark_sink = { path = "/lake/orders" }\n'


class Machine:
    """A broker, and the drivers that run on its machine."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self.driver = ScriptedDriver()
        broker.env.programs.install("java", java)
        broker.env.programs.install(PurePath(sys.executable).name, self.driver.main)

    @property
    def drivers(self) -> int:
        """The number of drivers that run."""
        return self.broker.env.programs.running

    async def pipeline(self, name: str = "orders") -> dict[str, Any]:
        """A pipeline, as this broker describes it."""
        client = await self.broker.client()
        (service,) = await client.administer("service.list")
        return next(each for each in service["status"]["pipelines"] if each["name"] == name)

    async def state(self, name: str = "orders") -> str:
        return str((await self.pipeline(name))["state"])

    async def act(self, action: str, **arguments: Any) -> Any:
        client = await self.broker.client()
        return await client.administer("service.perform", service="spark", action=action, arguments=arguments)


@asynccontextmanager
async def machines(env: SimEnv, toml: str = SHARED + SINK) -> AsyncIterator[list[Machine]]:
    """Run three brokers with the same file."""
    async with broker_world(env) as world:
        found: list[Machine] = []
        await world.brokers(toml=toml, replicas=3, prepare=lambda broker: found.append(Machine(broker)))
        yield found


async def leader_of(found: list[Machine], name: str = "orders") -> tuple[Machine, list[Machine]]:
    """Wait until one of the brokers leads a topic; return it, and the others."""
    leader = await next_leader([machine.broker for machine in found], name)
    return (
        next(machine for machine in found if machine.broker is leader),
        [machine for machine in found if machine.broker is not leader],
    )


async def until_running(machine: Machine, name: str = "orders") -> None:
    with trio.fail_after(60):
        while await machine.state(name) != "running":
            await trio.sleep(0.1)


@simulated
async def test_the_leader_of_its_topic_runs_a_pipeline_and_no_other_broker_does(env: SimEnv) -> None:
    async with machines(env) as found:
        leader, others = await leader_of(found)
        await until_running(leader)
        await trio.sleep(60)
        assert [machine.drivers for machine in (leader, *others)] == [1, 0, 0]
        assert [machine.driver.specs for machine in others] == [[], []]
        for machine in others:
            pipeline = await machine.pipeline()
            assert (pipeline["state"], pipeline["remedy"], pipeline["progress"]["lag"]) == ("elsewhere", None, None)
            number, address = leader.broker.number, leader.broker.address
            assert pipeline["reason"] == f"topic orders is led by node {number}, at {address}"
            for action in ("start", "stop", "restart"):
                with pytest.raises(
                    Refused, match=f"does not run pipeline orders: topic orders is led by node {number}"
                ):
                    await machine.act(action, pipelines=["orders"])


@simulated
async def test_a_pipeline_of_a_broker_that_dies_is_started_by_the_next_leader(env: SimEnv) -> None:
    async with machines(env) as found:
        first, others = await leader_of(found)
        await until_running(first)
        await until(lambda: len(in_sync(first.broker, "orders")) == 3)
        first.broker.env.kill()
        await first.broker.ended()
        second, (third,) = await leader_of(others)
        await until_running(second)
        assert [machine.drivers for machine in (second, third)] == [1, 0]
        assert second.driver.specs[0]["pipelines"] == first.driver.specs[0]["pipelines"]
        assert second.driver.specs[0]["state_dir"] == first.driver.specs[0]["state_dir"] == "/shared"
        await first.broker.start()
        await until(lambda: len(in_sync(second.broker, "orders")) == 3)
        assert (await first.state(), first.drivers) == ("elsewhere", 0)


@simulated
async def test_a_pipeline_whose_leader_is_changed_drains_at_the_former_one(env: SimEnv) -> None:
    async with machines(env) as found:
        first, others = await leader_of(found)
        await until_running(first)
        await until(lambda: len(in_sync(first.broker, "orders")) == 3)
        client = await first.broker.client()
        await client.administer("cluster.elect", topic="orders", leader=others[0].broker.number)
        await until(lambda: others[0].broker.broker.topic("orders").led_by is None)
        await until_running(others[0])
        await until(lambda: first.driver.drained == 1)
        assert [machine.drivers for machine in found if machine is not others[0]] == [0, 0]
        await client.administer("cluster.elect", topic="orders", leader=first.broker.number)
        await until(lambda: first.broker.broker.topic("orders").led_by is None)
        await until_running(first)
        await until(lambda: others[0].driver.drained == 1)
        assert len(first.driver.specs) == 2


@simulated
async def test_a_pipeline_over_several_topics_is_where_the_first_one_is_led(env: SimEnv) -> None:
    toml = (
        SHARED
        + "".join(f'[topics.t{number}]\nkind = "stream"\n' for number in range(6))
        + """
        [[spark.pipelines]]
        name = "joined"
        topics = [%s]
        format = "console"
    """
    )
    async with machines(env, toml % ", ".join(f'"t{number}"' for number in range(6))) as found:
        led = await until_led([machine.broker for machine in found], *(f"t{number}" for number in range(6)))
        assert len({broker.number for broker in led.values()}) > 1
        leader, others = await leader_of(found, "t0")
        await until_running(leader, "joined")
        assert (await leader.pipeline("joined"))["progress"]["lag"] is None
        assert [await machine.state("joined") for machine in others] == ["elsewhere", "elsewhere"]


@simulated
async def test_a_pipeline_whose_checkpoint_only_one_broker_has_does_not_run(env: SimEnv) -> None:
    async with machines(env, SINK) as found:
        leader, _ = await leader_of(found)
        pipeline = await leader.pipeline()
        assert (pipeline["state"], leader.drivers) == ("failed", 0)
        assert "would be on the disk of this one" in pipeline["reason"]
        assert "set state_dir in [spark]" in pipeline["remedy"]


@simulated
async def test_a_sink_of_the_file_survives_restarts_and_follows_changes_of_the_file(env: SimEnv) -> None:
    async with machines(env) as found:
        leader, _ = await leader_of(found)
        await until_running(leader)
        for machine in found:
            await machine.broker.stop()
        for machine in found:
            machine.broker.toml = machine.broker.toml.replace("/lake/orders", "/lake/more")
            await machine.broker.start()
        leader, others = await leader_of(found)
        await until_running(leader)
        assert (await leader.pipeline())["path"] == "/lake/more"
        assert [await machine.state() for machine in others] == ["elsewhere", "elsewhere"]


@simulated
async def test_a_broker_runs_no_sink_that_its_own_file_does_not_permit(env: SimEnv) -> None:
    async with machines(env, SHARED + '[topics.orders]\nkind = "stream"\n') as found:
        leader, (other, _) = await leader_of(found)
        await other.broker.stop()
        other.broker.toml = SHARED + SINK
        await other.broker.start()
        await until(lambda: leader.broker.broker.topic("orders").settings.services != {})
        client = await leader.broker.client()
        (service,) = await client.administer("service.list")
        assert (service["status"]["pipelines"], leader.drivers) == ([], 0)
        await until(lambda: len(in_sync(leader.broker, "orders")) == 3)
        await client.administer("cluster.elect", topic="orders", leader=other.broker.number)
        await until_running(other)
        await leader.broker.stop()
        await leader.broker.start()
        await until(lambda: len(in_sync(other.broker, "orders")) == 3)
        assert await other.state() == "running"


COPIES = f"""
[[spark.pipelines]]
name = "copier"
topics = ["orders"]
format = "linn"
options = {{ topic = "copies" }}
[topics.orders]
kind = "stream"
[topics.copies]
kind = "stream"
[users.spark]
roles = ["copier"]
scram = "{make_verifier("secret", bytes(16), 4_096).text()}"
[roles.copier]
"topic:orders" = ["consume"]
"topic:copies" = ["publish"]
"transaction:spark/*" = ["use"]
[users.anonymous]
roles = ["administrator"]
"""


def secure(broker: SimBroker) -> Machine:
    """Let clients of a broker log in at another port, which drivers use."""
    place = f'protocol = "capnp"\naddress = "10.0.0.{broker.number}:5468"\nplaintext = true\nlogin = "required"\n'
    broker.toml += f"[listeners.secured]\n{place}"
    return Machine(broker)


@simulated
async def test_a_driver_with_a_user_of_the_cluster_writes_to_a_topic_that_another_broker_leads(env: SimEnv) -> None:
    is_led_elsewhere, written = trio.Event(), trio.Event()

    async def copy(program: SimProgram, spec: dict[str, Any]) -> int:
        await is_led_elsewhere.wait()
        assert spec["credentials"] == "/etc/spark.toml"
        client_env, login = SimEnv(0, name="driver", world=env.world), linn.Password("spark", "secret")
        async with linn.connect(spec["bootstrap"], env=client_env, login=login) as client:
            shared = client.shared_transactions("spark/copier/q", run=1)
            ticket = await shared.join()
            async with shared.producer(ticket, "copies") as producer:
                await producer.publish(b"a copy")
            await shared.commit(ticket, [producer.id], sequence=1)
        written.set()
        return 0

    def prepare(broker: SimBroker) -> None:
        secure(broker).driver.life = copy

    async with broker_world(env) as world:
        toml = f'{SHARED}credentials = "/etc/spark.toml"\n{COPIES}'
        brokers = await world.brokers(toml=toml, replicas=3, prepare=prepare)
        runs_at = await next_leader(brokers, "orders")
        target = next(broker for broker in brokers if broker is not runs_at)
        await until(lambda: len(in_sync(brokers[0], "copies")) == 3)
        client = await runs_at.client()
        await client.administer("cluster.elect", topic="copies", leader=target.number)
        copies = target.broker.topic("copies")
        await until(lambda: copies.led_by is None)
        is_led_elsewhere.set()
        with trio.fail_after(60):
            await written.wait()
        await until(lambda: copies.partitions[0].readable_count(0) == 1)


@simulated
async def test_a_driver_with_a_login_that_other_brokers_do_not_know_is_not_started(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Machine] = []
    async with broker_world(env) as world:
        await world.brokers(toml=SHARED + COPIES, replicas=3, prepare=lambda broker: found.append(secure(broker)))
        await leader_of(found)
        await trio.sleep(30)
        assert [machine.drivers for machine in found] == [0, 0, 0]
        assert caplog.text.count("name the file with its password as credentials in [spark]") == 1
