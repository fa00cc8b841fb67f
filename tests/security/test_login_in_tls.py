"""Logins inside TLS: bound to the broker's certificate, by the client's, by a token, and by a password in plain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tls_world import pair, tls_table

import linn
from linn.core.broker.broker import Broker
from linn.core.env.real.env import RealEnv
from linn.core.errors.auth import AuthFailed
from linn.core.security.sasl.scram import make_verifier
from linn.core.security.sasl.tokens import TokenUser
from linn.testing.plugin_broker import plugin_broker

VERIFIER = make_verifier("opensesame", b"salt of 16 bytes", 4_096).text()
TABLES = f"""
[listeners.native]
address = "127.0.0.1:0"
tls = "edge"
login = "required"
[users.ann]
scram = "{VERIFIER}"
certificate = "ann.example"
"""


@asynccontextmanager
async def broker_at(folder: Path) -> AsyncIterator[Broker]:
    ask = f'client_ca = "{folder}/ca.pem"\nclient_certificate = "optional"'
    text = f'[broker]\ndata_dir = "{folder}/data"\ndefault_storage = "dram"\n{tls_table(folder, ask)}{TABLES}'
    async with plugin_broker(RealEnv(), text) as broker:
        yield broker


async def how(broker: Broker, folder: Path, login: Any = None, **shown: Path) -> tuple[str, str]:
    """Log in; returns the user, and how."""
    url, tls = f"linns://{broker.addresses['native']}", linn.Tls(ca=folder / "ca.pem", **shown)
    async with linn.connect(url, tls=tls, login=login) as client:
        said = await client.admin.whoami()
        return said["user"], said["login"]


async def test_a_password_is_bound_to_the_certificate(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker:
        login = linn.Password("ann", "opensesame")
        assert await how(broker, tmp_path, login) == ("ann", "SCRAM-SHA-256-PLUS")
        assert await how(broker, tmp_path, login) == ("ann", "SCRAM-SHA-256-PLUS"), "with the password that is kept"
        with pytest.raises(AuthFailed):
            await how(broker, tmp_path, linn.Password("ann", "wrong"))


async def test_a_certificate_says_who_the_client_is(tmp_path: Path) -> None:
    for name in ("ann.example", "eve.example"):
        certificate, key = pair(name)
        (tmp_path / f"{name}.pem").write_bytes(certificate + key)
    async with broker_at(tmp_path) as broker:
        assert await how(broker, tmp_path, certificate=tmp_path / "ann.example.pem") == ("ann", "certificate")
        with pytest.raises(AuthFailed, match="requires a login"):
            await how(broker, tmp_path, certificate=tmp_path / "eve.example.pem")


async def test_a_token_is_asked_for_at_each_connection(tmp_path: Path) -> None:
    class Keys:
        def check(self, token: str, now_s: float) -> TokenUser:
            return TokenUser(token, None, now_s + 60)

    tokens = iter(["ann", "ann", "nobody"])

    async def next_token() -> str:
        return next(tokens)

    async with broker_at(tmp_path) as broker:
        broker.logins.tokens = Keys()  # type: ignore[assignment]
        assert await how(broker, tmp_path, linn.Token("ann")) == ("ann", "OAUTHBEARER")
        for _ in range(2):
            assert await how(broker, tmp_path, linn.Token(next_token)) == ("ann", "OAUTHBEARER")
        with pytest.raises(AuthFailed):
            await how(broker, tmp_path, linn.Token(next_token))


async def test_a_connection_ends_with_its_token(tmp_path: Path) -> None:
    """The client connects again, with the next token, and its requests go on."""

    class Keys:
        def check(self, token: str, now_s: float) -> TokenUser:
            return TokenUser("ann", None, now_s + (0.05 if token == "short" else 3_600))

    asked: list[str] = []

    def next_token() -> str:
        asked.append("short" if not asked else "long")
        return asked[-1]

    async with broker_at(tmp_path) as broker:
        broker.logins.tokens = Keys()  # type: ignore[assignment]
        url, tls = f"linns://{broker.addresses['native']}", linn.Tls(ca=tmp_path / "ca.pem")
        async with linn.connect(url, tls=tls, login=linn.Token(next_token)) as client:
            with trio.fail_after(60):
                while asked != ["short", "long"]:
                    await trio.lowlevel.checkpoint()
            assert (await client.admin.whoami())["login"] == "OAUTHBEARER"


def test_a_login_shows_no_secret() -> None:
    assert repr(linn.Password("ann", "opensesame")) == "Password('ann', ***)"
    assert repr(linn.Token("opensesame")) == "Token(***)"
