from __future__ import annotations

from pathlib import Path

import pytest
from linn_own_names.own_names import OwnNames, OwnNamesSettings

import linn
from linn.api import Forbidden, RealEnv
from linn.testing.authorizers import AuthorizerConformance, AuthorizerHarness
from linn.testing.plugin_broker import plugin_broker

FILE = """
[broker]
data_dir = "{folder}/data"
default_storage = "dram"
authorizer = "own-names"
[listeners.local]
address = "unix:{folder}/linn.sock"
login = "required"
methods = ["scram"]
[users.ann]
scram = "{verifier}"
[topics."ann.orders"]
kind = "stream"
[topics."bob.orders"]
kind = "stream"
"""
VERIFIER = (
    "SCRAM-SHA-256$32768:c2FsdCBvZiAxNiBieXRlcw==$zr9jLh56r18LFqxxWmpcPzy2Qg6mU8Svfg8ouS/gmJY="
    ":KtSL7R4Hw8PTNxSe6adFauHS8+/gbQ+kja9RQMTnH8M="
)


def own_names(**settings: object) -> OwnNames:
    return OwnNames(OwnNamesSettings(**settings), RealEnv())  # type: ignore[arg-type]


class TestOwnNames(AuthorizerConformance):
    @pytest.fixture
    def harness(self) -> AuthorizerHarness:
        return AuthorizerHarness(
            make=own_names,
            allows=[("ann", "publish", "topic", "ann.orders"), ("ann", "use", "group", "ann.")],
            denies=[
                ("ann", "publish", "topic", "bob.orders"),
                ("ann", "publish", "topic", "ann"),
                ("ann", "publish", "topic", "anne.orders"),
                ("ann", "admin", "broker", ""),
                ("ann", "bind", "exchange", "ann.x"),
                ("ann.smith", "publish", "topic", "ann.smith.orders"),
                ("anonymous", "publish", "topic", "anonymous.orders"),
                ("", "publish", "topic", ".orders"),
            ],
        )


async def test_settings_choose_operations_separator_and_time() -> None:
    mine = own_names(separator="/", operations=("publish",), holds_s=5.0)
    assert await mine.may("ann", "publish", "topic", "ann/a") == (True, 5.0)
    assert await mine.may("ann", "see", "topic", "ann/a") == (True, 5.0)
    assert await mine.may("ann", "consume", "topic", "ann/a") == (False, 5.0)
    assert await mine.may("ann", "publish", "topic", "ann.a") == (False, 5.0)


async def test_a_broker_gives_each_user_what_is_named_after_the_user(tmp_path: Path) -> None:
    async with plugin_broker(RealEnv(), FILE.format(folder=tmp_path, verifier=VERIFIER), "linn_own_names.plugin"):
        url = f"linn+unix://{tmp_path}/linn.sock"
        async with linn.connect(url, login=linn.Password("ann", "opensesame")) as client:
            assert [topic["name"] for topic in await client.admin.topics()] == ["ann.orders"]
            async with client.producer("ann.orders") as producer:
                await producer.publish(b"a")
            await client.admin.create_topic("ann.invoices")
            async with client.consumer("ann.orders", group="ann.billing") as consumer:
                assert (await anext(consumer)).value == b"a"
            for refused in ("bob.orders", "none"):
                with pytest.raises(Forbidden):
                    async with client.producer(refused) as producer:
                        await producer.publish(b"a")
