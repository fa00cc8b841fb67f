"""Brokers of tests with users: a test connects as one of them, and sees what he may do."""

from __future__ import annotations

from pathlib import Path

import pytest

import linn
import linn.sync
from linn.errors import AuthFailed, ConfigError, Forbidden, LinnError
from linn.testing import BrokerThread, CrashableBroker, VirtualWorld

pytest_plugins = ["pytester"]
TOPICS = {"orders": {"kind": "queue"}, "wages": {"kind": "queue"}}
ROLES = {"shop": {"topic:orders": ["publish", "see"]}}
USERS = {"ann": ["shop"], "root": ["administrator"], "eve": []}


def _publish(url: str, topic: str, **options: object) -> None:
    with linn.sync.connect(url, **options) as client, client.producer(topic) as producer:  # type: ignore[arg-type]
        producer.publish(b"coffee")


@pytest.mark.parametrize("tls", [False, True])
def test_a_test_connects_as_one_of_its_users(tls: bool) -> None:
    with BrokerThread(topics=TOPICS, roles=ROLES, users=USERS, tls=tls) as broker:
        _publish(broker.url, "orders", login=broker.login("ann"), tls=broker.tls)
        for user in ("ann", "eve"):
            with pytest.raises(Forbidden):
                _publish(broker.url, "wages", login=broker.login(user), tls=broker.tls)
        _publish(broker.url, "wages", login=broker.login("root"), tls=broker.tls)
        broker.publish("wages", b"of the test itself, which may do everything")
        assert [len(broker.records(topic)) for topic in TOPICS] == [1, 2]


def test_nobody_is_let_in_without_a_login_where_there_are_users() -> None:
    with BrokerThread(topics=TOPICS, roles=ROLES, users=USERS) as broker:
        with pytest.raises(AuthFailed):
            _publish(broker.url, "orders")
        with pytest.raises(AuthFailed):
            _publish(broker.url, "orders", login=linn.Password("ann", "a guess"))


def test_users_of_a_configuration_have_passwords_too() -> None:
    config = '[roles.shop]\n"topic:orders" = ["publish", "see"]\n[users.bob]\nroles = ["shop"]\n'
    with BrokerThread(config, topics=TOPICS, users=USERS, roles={"more": {}}) as broker:
        _publish(broker.url, "orders", login=broker.login("bob"))


@pytest.mark.parametrize("users", [USERS, {}])
def test_an_unknown_user_is_an_error_that_names_the_others(users: dict[str, list[str]]) -> None:
    setup = BrokerThread(roles=ROLES, users=users)
    with pytest.raises(ConfigError, match=r'no user "an" .*(did you mean "ann"|there are none)'):
        setup.login("an")


def test_an_unknown_role_is_an_error_of_the_start() -> None:
    with pytest.raises(LinnError, match="shoop"):
        BrokerThread(roles=ROLES, users={"ann": ["shoop"]}).start()


def test_a_virtual_world_has_users_as_well() -> None:
    async def scenario(world: VirtualWorld) -> None:
        async with world.connect(login=world.login("ann")) as client:
            async with client.producer("orders") as producer:
                await producer.publish(b"coffee")
            with pytest.raises(Forbidden):
                async with client.producer("wages") as producer:
                    await producer.publish(b"coffee")
        await world.publish("wages", b"of the test itself")
        assert len(await world.records("wages")) == 1

    VirtualWorld(topics=TOPICS, roles=ROLES, users=USERS).run(scenario)


@pytest.mark.system
def test_a_broker_that_crashes_has_users_and_tls_as_well(tmp_path: Path) -> None:
    with CrashableBroker(tmp_path, topics=TOPICS, roles=ROLES, users=USERS, tls=True) as broker:
        url = broker.url
        _publish(url, "orders", login=broker.login("ann"), tls=broker.tls)
        broker.crash()
        assert broker.url == url
        _publish(url, "orders", login=broker.login("ann"), tls=broker.tls)
        with pytest.raises(Forbidden):
            _publish(url, "wages", login=broker.login("ann"), tls=broker.tls)
        with pytest.raises(AuthFailed):
            _publish(url, "orders", tls=broker.tls)


def test_the_marker_takes_users(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import linn.sync, pytest
        from linn.errors import Forbidden

        pytestmark = pytest.mark.linn(
            topics={"orders": {}}, roles={"shop": {"topic:orders": ["see"]}}, users={"ann": ["shop"]}
        )

        def test_rights(linn_broker):
            with linn.sync.connect(linn_broker.url, login=linn_broker.login("ann")) as client:
                with pytest.raises(Forbidden), client.producer("orders") as producer:
                    producer.publish(b"coffee")
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
