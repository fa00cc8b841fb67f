"""A driver logs in as itself, with the rights of its pipelines, and with a password that ends with it."""

from __future__ import annotations

import json
import logging
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from typing import Any

import pytest
import trio
from raw_client import broker_on, configured

import linn
from linn.core.broker.broker import Broker
from linn.core.env.real.env import RealEnv
from linn.core.errors.auth import AuthFailed, Forbidden
from linn.core.errors.tree import ConfigError, StorageError
from linn.core.security.authority import Authority, Decision
from linn.core.security.rule import rules_of
from linn.core.security.sasl.scram import make_verifier
from linn.core.security.users import SERVICE, ServiceUser, User, check_user_name
from linn.spark_plugin.service.pipeline import driver_rights
from linn.spark_plugin.service.service import LOGINS_FOLDER
from linn.spark_plugin.spec import PipelineSpec, transactions_of
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import plugin_broker
from linn.testing.sim_env import SimEnv
from linn.testing.sim_programs import SimProgram
from tests.spark.scripted_driver import ScriptedDriver, java

URL = "linn://127.0.0.1:5466"
REQUIRED = 'login = "required"\n'
PIPELINE = """
[topics.orders]
kind = "stream"
[topics.late]
[topics.unreadable]
kind = "stream"
[topics.other]
kind = "stream"
[exchanges.news]
[[spark.pipelines]]
name = "late-orders"
topics = ["orders"]
format = "linn"
options = { topic = "late" }
value = "json"
schema = "id INT"
dead_letter = "unreadable"
"""
USER = "service:spark/default"
FILE = f"data/__services/spark/{LOGINS_FOLDER}/default.toml"


Test = Callable[[Broker, "Driver"], Awaitable[None]]


class Driver(ScriptedDriver):
    """A scripted driver that reads the login which it is given."""

    def __init__(self, env: SimEnv) -> None:
        super().__init__()
        self.env = env
        self.logins: list[linn.Password | None] = []
        self.secrets: list[str] = []
        self.life = self.read_login

    async def read_login(self, program: SimProgram, spec: dict[str, Any]) -> int:
        """Read the login, then run."""
        path = spec["credentials"]
        if path is None:
            self.logins.append(None)
        else:
            found = tomllib.loads((await self.env.disk.open(path).read(0, 1_000)).decode())
            assert found.keys() == {"user", "password"}
            self.logins.append(linn.Password(found["user"], found["password"]))
            self.secrets.append(found["password"])
            await program.print(f"debug: {found}")
        return await self.run(program, spec)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[linn.Client]:
        """Connect as the last driver."""
        async with linn.connect(URL, env=self.env, login=self.logins[-1]) as client:
            yield client


def installed(env: SimEnv) -> Driver:
    """Install Java, and a driver."""
    driver = Driver(env)
    env.programs.install("java", java)
    env.programs.install(PurePath(sys.executable).name, driver.main)
    return driver


def world(text: str) -> Callable[[Test], Callable[[], None]]:
    """A test beside a broker with a scripted driver: `test(broker, driver)`."""

    def decorate(test: Test) -> Callable[[], None]:
        def run() -> None:
            async def scenario(env: SimEnv) -> None:
                driver = installed(env)
                async with broker_on(env, text) as broker:
                    await trio.sleep(10)
                    await test(broker, driver)

            run_simulation(0, scenario)

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return decorate


# --- rights -----------------------------------------------------------------------------------------------------------


@world(REQUIRED + PIPELINE)
async def test_a_driver_reads_its_topics_and_writes_to_its_targets(broker: Broker, driver: Driver) -> None:
    async with driver.connect() as client:
        assert client.user == USER
        described = {topic.name for topic in (await client.describe()).topics}
        assert described == {"orders", "late", "unreadable"}
        assert (await client.fetch("orders", 0, 0)).next_offset == 0
        assert await client.find_offset("orders", 0, "latest") == 0
        shared = client.shared_transactions(transactions_of("late-orders") + "query", run=1)
        ticket = await shared.join()
        ids = []
        for topic in ("late", "unreadable"):
            async with shared.producer(ticket, topic=topic) as producer:
                await producer.publish(b"made by a driver")
                ids.append(producer.id)
        await shared.commit(ticket, ids, sequence=1, identity="1")
    assert [broker.topics[name].partitions[0].high_watermark for name in ("late", "unreadable")] == [2, 2]


@world(REQUIRED + PIPELINE)
async def test_a_driver_may_do_nothing_else(broker: Broker, driver: Driver) -> None:
    async with driver.connect() as client:
        async with client.producer("orders") as producer:
            with pytest.raises(Forbidden, match=f'user "{USER}" may not publish topic:orders'):
                await producer.publish(b"forged")
        for target, exchange in (("other", None), ("new", None), (None, "news")):
            with pytest.raises(Forbidden):
                async with client.producer(target, exchange=exchange) as producer:
                    await producer.publish(b"forged")
        for topic in ("late", "unreadable", "other", "__audit"):
            with pytest.raises(Forbidden):
                await client.fetch(topic, 0, 0)
            with pytest.raises(Forbidden):
                async with client.consumer(topic):
                    pass
        for name in ("spark.query", "spark/other/query", "spark/late-orders", "mine"):
            with pytest.raises(Forbidden):
                await client.shared_transactions(name, run=1).join()
        for verb, arguments in (
            ("topic.delete", {"name": "orders"}),
            ("topic.create", {"name": "new"}),
            ("user.list", {}),
            ("broker.show", {}),
            ("service.list", {}),
            ("service.perform", {"service": "spark", "action": "stop", "arguments": {"pipelines": ["late-orders"]}}),
            ("connection.list", {}),
        ):
            with pytest.raises(Forbidden):
                await client.admin.perform(verb, **arguments)


@world(REQUIRED + PIPELINE)
async def test_no_authorizer_gives_a_driver_more(broker: Broker, driver: Driver) -> None:
    asked: list[str] = []

    async def allow(user: str, operation: str, kind: str, name: str) -> Decision:
        asked.append(user)
        return Decision(True, 60.0)

    broker.policy.authority = Authority(allow, trio.current_time, broker.spawn, str)
    async with driver.connect() as client:
        await client.fetch("orders", 0, 0)
        with pytest.raises(Forbidden):
            await client.fetch("other", 0, 0)
    assert asked == []


def test_the_rights_are_those_of_all_pipelines_of_the_driver_and_no_name_becomes_a_pattern() -> None:
    one = PipelineSpec(name="one", topics=("a", "b"), format="linn", options={"exchange": "x"})
    two = PipelineSpec(name="two", topics=("b",), format="linn", options={"topic": "a"})
    assert driver_rights([one, two]) == {
        "topic:a": ["consume", "publish"],
        "topic:b": ["consume", "consume"],
        "exchange:x": ["publish"],
        "transaction:spark/one/*": ["use"],
        "transaction:spark/two/*": ["use"],
    }
    wide = PipelineSpec(name="wide", topics=("*",), format="linn", options={"topic": "__*", "exchange": "*"})
    assert driver_rights([wide]) == {"transaction:spark/wide/*": ["use"]}


def test_the_transactions_of_a_pipeline_are_no_others() -> None:
    longest = "x" * 249
    names = [transactions_of(name) for name in ("a", "a.b", longest, longest[:-1] + "y")]
    assert all(len(name) + 36 <= 255 for name in names)
    assert not any(one.startswith(other) for one in names for other in names if one is not other)


# --- the life of a login ----------------------------------------------------------------------------------------------


@world(REQUIRED + PIPELINE)
async def test_a_login_ends_with_its_driver(broker: Broker, driver: Driver) -> None:
    async with driver.connect() as client:
        await client.fetch("orders", 0, 0)
        assert driver.running is not None
        driver.running.kill()
        await trio.sleep(0.2)
        assert not driver.env.disk.exists(FILE)
        with pytest.raises(Forbidden):
            await client.fetch("orders", 0, 0)
        with pytest.raises(AuthFailed):
            async with driver.connect():
                pass
        await trio.sleep(10)
        assert len(driver.logins) == 2
        with pytest.raises(Forbidden):  # The connection of the former driver gets no rights of the next one.
            await client.fetch("orders", 0, 0)
    former, present = driver.secrets
    assert former != present
    assert len(present) >= 43
    async with driver.connect() as client:
        await client.fetch("orders", 0, 0)
    driver.logins.append(linn.Password(USER, former))
    with pytest.raises(AuthFailed):
        async with driver.connect():
            pass


@world(REQUIRED + PIPELINE)
async def test_a_wait_for_records_ends_with_the_driver(broker: Broker, driver: Driver) -> None:
    async with driver.connect() as client, client.consumer("orders") as consumer:
        assert driver.running is not None
        driver.running.kill()
        with trio.fail_after(2), pytest.raises(Forbidden):
            await anext(consumer)


def test_the_password_is_in_one_file_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @world(REQUIRED + '[users.root]\nroles = ["administrator"]\n' + PIPELINE)
    async def scenario(broker: Broker, driver: Driver) -> None:
        root = User(name="root", roles=("administrator",), scram=make_verifier("top", b"s" * 16).text())
        broker.policy.users.put(root)
        assert driver.running is not None
        async with linn.connect(URL, env=driver.env, login=linn.Password("root", "top")) as client:
            users = await client.admin.perform("user.list")
            assert [user["user"] for user in users] == ["root"]
            asked = {"service": "spark", "action": "logs", "arguments": {}}
            shown = [users, await client.admin.perform("service.list"), driver.specs, driver.running.environment]
            shown.append(await client.admin.perform("service.perform", **asked))
            assert "debug: " in str(shown[-1])
            with pytest.raises(Exception, match="no user"):
                await client.admin.perform("user.show", name=USER)
        (secret,) = driver.secrets
        assert driver.running.command[1:] == ("-m", "linn.spark_plugin.driver")
        assert secret not in json.dumps(shown) + repr(broker.policy.users.services) + caplog.text
        host: Any = broker.services._running["spark"].service
        async with host._host.login("x", {}) as login:
            assert login.password not in repr(login)
        assert broker.policy.users.services.keys() == {USER}

    scenario()


@world("[users.anonymous]\n" + PIPELINE)
async def test_on_a_listener_without_logins_a_driver_is_anonymous(broker: Broker, driver: Driver) -> None:
    async with driver.connect() as client:
        assert client.user == "anonymous"
        with pytest.raises(Forbidden):
            await client.fetch("orders", 0, 0)


@world(PIPELINE)
async def test_where_everybody_may_do_everything_there_is_no_login(broker: Broker, driver: Driver) -> None:
    assert driver.logins == [None]
    assert broker.policy.users.services == {}
    assert not driver.env.disk.exists(f"data/__services/spark/{LOGINS_FOLDER}")


@world(REQUIRED + PIPELINE + '[spark]\ncredentials = "mine.toml"\n')
async def test_a_file_of_the_operator_takes_the_place_of_the_login(broker: Broker, driver: Driver) -> None:
    assert {spec["credentials"] for spec in driver.specs} == {"mine.toml"}
    assert broker.policy.users.services == {}


def test_a_login_that_cannot_be_written_is_tried_again() -> None:
    async def scenario(env: SimEnv) -> None:
        driver, unlink, failures = installed(env), env.disk.unlink, [StorageError("no room")] * 3

        def failing(path: str) -> None:
            if path == FILE and failures:
                raise failures.pop()
            unlink(path)

        env.disk.unlink = failing  # type: ignore[method-assign]
        async with broker_on(env, REQUIRED + PIPELINE) as broker:
            await trio.sleep(0.5)
            (service,) = broker.services.describe()
            assert "no room" in str(service["status"]["pipelines"][0]["reason"])
            await trio.sleep(20)
            assert (len(driver.logins), {*broker.policy.users.services}) == (1, {USER})

    run_simulation(0, scenario)


async def test_on_a_unix_socket_a_login_counts_and_not_the_user_id_of_the_broker(tmp_path: Path) -> None:
    text = f"""
        [broker]
        data_dir = "{tmp_path}/data"
        [listeners.local]
        address = "unix:{tmp_path}/s"
        login = "required"
        [topics.orders]
        kind = "stream"
    """
    verifier, url = make_verifier("opensesame", b"salt of 16 bytes"), f"linn+unix://{tmp_path}/s"
    async with plugin_broker(RealEnv(), text) as broker:
        rules = rules_of({"topic:orders": ["consume"]})
        broker.policy.begin_service(ServiceUser(USER, verifier, rules))
        async with linn.connect(url) as client:
            assert client.user == "administrator"
        async with linn.connect(url, login=linn.Password(USER, "opensesame")) as client:
            assert client.user == USER
            await client.fetch("orders", 0, 0)
            with pytest.raises(Forbidden):
                await client.admin.perform("topic.delete", name="orders")
        with pytest.raises(AuthFailed):
            async with linn.connect(url, login=linn.Password(USER, "wrong")):
                pass


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("toml", ['[users."service:spark/default"]', "[users.'service:x']"])
def test_no_user_has_the_name_of_a_program(toml: str) -> None:
    with pytest.raises(ConfigError, match="the broker's own programs"):
        check_user_name(f"{SERVICE}anything")
    with pytest.raises(ConfigError, match="the broker's own programs"):
        configured(toml + '\nroles = ["administrator"]\n')
