"""The file of keys for tokens: read at the start and every 10 seconds, and never replaced by what can't be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from token_world import KEY, OTHER, token, write_keys

import linn
from linn.core.config.tables import TokensTable
from linn.core.connections.token_file import TokenFile
from linn.core.env.real.env import RealEnv
from linn.core.errors.auth import AuthFailed, Forbidden
from linn.core.errors.tree import ConfigError, StorageError
from linn.testing.plugin_broker import plugin_broker


def table(path: Path) -> TokensTable:
    return TokensTable(keys=str(path), issuer="https://id.example", audience="linn")


def test_a_file_that_can_not_be_used_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_keys(path, KEY)
    file = TokenFile(table(path), RealEnv().disk)
    file.load()
    first = file.keys
    assert first is not None
    for content in ("", '{"keys": []}', path.read_text()[:50], "x" * (1 << 20)):
        path.write_text(content)
        file.reload()
        assert file.keys is first
    path.unlink()
    file.reload()
    assert file.keys is first
    write_keys(path, OTHER)
    file.reload()
    assert file.keys is not first


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, Path.touch])
def test_a_broker_does_not_start_without_its_keys(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "keys.json")
    with pytest.raises((ConfigError, StorageError), match=r"keys\.json"):
        TokenFile(table(tmp_path / "keys.json"), RealEnv().disk).load()


def test_keys_need_an_issuer_and_an_audience() -> None:
    with pytest.raises(ValueError, match="an issuer and an audience"):
        TokensTable(keys="keys.json")


async def refused(url: str, wrong: str) -> None:
    with pytest.raises(AuthFailed, match="the login failed"):
        async with linn.connect(url, login=linn.Token(wrong)):
            raise AssertionError


async def test_users_log_in_with_tokens_of_the_file(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.json", KEY)
    text = f"""
[broker]
data_dir = "{tmp_path}/data"
default_storage = "dram"
[listeners.local]
address = "unix:{tmp_path}/s"
login = "required"
methods = ["token"]
[tokens]
keys = "{tmp_path}/keys.json"
issuer = "https://id.example"
audience = "linn"
[users.ann]
"""
    async with plugin_broker(RealEnv(), text) as broker:
        url = f"linn+unix://{tmp_path}/s"
        async with linn.connect(url, login=linn.Token(token("ann"))) as client:
            assert client.user == "ann"
            for wrong in (token("bob"), token("ann", OTHER), "x"):
                await refused(url, wrong)
            write_keys(tmp_path / "keys.json", OTHER)
            broker.reload_files()
            await refused(url, token("ann"))
            assert (await client.admin.whoami())["user"] == "ann", "a connection outlives the key of its token"
        async with linn.connect(url, login=linn.Token(token("ann", OTHER))) as client:
            assert client.user == "ann"


ROLES = """
roles_claim = "roles"
[roles.reader]
"topic:news" = ["consume"]
[roles.writer]
"topic:news" = ["publish"]
[users.ann]
roles = ["reader"]
[topics.news]
"""


async def test_roles_come_from_a_claim_besides_those_of_the_user(tmp_path: Path) -> None:
    """Unknown ones, and the role of administrators, are ignored; the broker need not know the user."""
    write_keys(tmp_path / "keys.json", KEY)
    text = f"""
[broker]
data_dir = "{tmp_path}/data"
default_storage = "dram"
[listeners.native]
address = "unix:{tmp_path}/linn.sock"
login = "required"
methods = ["token"]
[tokens]
keys = "{tmp_path}/keys.json"
issuer = "https://id.example"
audience = "linn"
{ROLES}"""
    async with plugin_broker(RealEnv(), text) as broker:
        for user, claim, roles in (
            ("ann", {"roles": ["writer", "none"]}, ["reader", "writer"]),
            ("ann", {}, ["reader"]),
            ("bob", {"roles": ["writer", "administrator"]}, ["writer"]),
            ("bob", {"roles": []}, []),
        ):
            async with linn.connect(
                f"linn+unix://{tmp_path}/linn.sock", login=linn.Token(token(user, **claim))
            ) as client:
                assert (await client.admin.whoami())["roles"] == roles
                for role, operation in (("reader", "consume"), ("writer", "publish")):
                    assert broker.policy.access(user, roles).may(operation, "topic", "news") == (role in roles)
                if "writer" in roles:
                    async with client.producer("news") as producer:
                        await producer.publish(b"a")
                with pytest.raises(Forbidden):
                    await client.admin.create_topic("new")
        for user in ("administrator", "anonymous"):
            with pytest.raises(AuthFailed):
                async with linn.connect(f"linn+unix://{tmp_path}/linn.sock", login=linn.Token(token(user))):
                    pass
