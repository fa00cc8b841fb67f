"""Logins of scrapers: Basic and Bearer in TLS, by the broker's own logins. Probes are open, and say little."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio
from raw_client import configured
from tls_world import context_of_client, pair, tls_table

from linn.core.broker.broker import Broker
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import ConfigError
from linn.core.security.logins import FAILURES_FREE
from linn.core.security.sasl.scram import make_verifier
from linn.core.security.sasl.tokens import TokenUser
from linn.testing.plugin_broker import plugin_broker

VERIFIER = make_verifier("open: sesame", b"salt of 16 bytes", 4_096).text()
TABLES = f"""
[listeners.watch]
protocol = "metrics"
address = "127.0.0.1:0"
tls = "edge"
login = "required"
[listeners.native]
address = "127.0.0.1:0"
[roles.watcher]
broker = ["see"]
[users.prometheus]
scram = "{VERIFIER}"
certificate = "prometheus.example"
roles = ["watcher"]
[users.ann]
scram = "{VERIFIER}"
[topics.jobs]
"""
RIGHT = ("prometheus", "open: sesame")


@asynccontextmanager
async def broker_at(folder: Path, tables: str = TABLES) -> AsyncIterator[Broker]:
    ask = f'client_ca = "{folder}/ca.pem"\nclient_certificate = "optional"'
    text = f'[broker]\ndata_dir = "{folder}/data"\ndefault_storage = "dram"\n{tls_table(folder, ask)}{tables}'
    async with plugin_broker(RealEnv(), text) as broker:
        yield broker


def scraper(broker: Broker, **options: Any) -> httpx.AsyncClient:
    url = f"https://{broker.addresses['watch']}"
    return httpx.AsyncClient(base_url=url, **{"verify": context_of_client(), "trust_env": False} | options)


async def trail(broker: Broker) -> list[dict[str, Any]]:
    """The logins on the audit trail."""
    partition = broker.topics["__audit"].partitions[0]
    batches = await partition.read_range(0, partition.high_watermark, 1 << 20)
    found = [json.loads(record.value or b"") for batch in batches for record in batch.records()]
    return [entry for entry in found if entry["action"] == "login"]


async def test_a_user_with_the_right_to_see_the_broker_gets_the_metrics(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, scraper(broker, auth=RIGHT) as client:
        for _ in range(3):
            answer = await client.get("/metrics")
            assert (answer.status_code, answer.text[:7]) == (200, "# HELP ")
        assert (await client.head("/metrics")).status_code == 200
        (login,) = await trail(broker)
        assert (login["user"], login["on"], login["outcome"]) == ("prometheus", "PLAIN", "done")


async def test_without_a_login_there_are_no_metrics_and_the_answer_says_how(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, scraper(broker) as client:
        for _ in range(2):
            answer = await client.get("/metrics")
            assert (answer.status_code, answer.text) == (401, "log in\n")
            assert answer.headers.get_list("www-authenticate") == ['Basic realm="linn", charset="UTF-8"']
        assert await trail(broker) == [], "it is no failure to ask first"


async def test_a_user_without_the_right_gets_no_metrics(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, scraper(broker, auth=("ann", RIGHT[1])) as client:
        answer = await client.get("/metrics")
        assert (answer.status_code, answer.text) == (403, 'user "ann" may not see broker\n')


def _basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


WRONG = {
    "another password": _basic(b"prometheus:open sesame"),
    "another user": _basic(b"nobody:open: sesame"),
    "no password": _basic(b"prometheus"),
    "an empty password": _basic(b"prometheus:"),
    "in another's name": _basic(b"prometheus\0prometheus:open: sesame"),
    "a NUL": _basic(b"prometheus:open: sesame\0"),
    "not UTF-8": _basic(b"\xff:open: sesame"),
    "not Base64": "Basic cHJvbWV0aGV1cw=!=",
    "of another scheme": "Digest username=prometheus",
    "a token, and none are taken": "Bearer abc.def.ghi",
    "nothing": "",
    "very long": "Basic " + "YWFh" * 2_000,
}


@pytest.mark.parametrize("how", WRONG)
async def test_a_wrong_login_is_refused_with_one_text_counted_and_audited(how: str, tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, scraper(broker) as client:
        answer = await client.get("/metrics", headers={"Authorization": WRONG[how]})
        assert (answer.status_code, answer.text) == (401, "the login failed\n")
        assert answer.headers["connection"] == "close"
        assert "Basic" in answer.headers["www-authenticate"]
        (login,) = await trail(broker)
        assert login["outcome"] == "auth.failed"
        assert len(broker.logins.failures) == 1


@pytest.mark.parametrize("first", [_basic(b"prometheus:open: sesame"), "Bearer prometheus"])
async def test_two_logins_in_one_request_are_refused(first: str, tmp_path: Path) -> None:
    class Keys:
        def check(self, token: str, now_s: float) -> TokenUser:
            return TokenUser(token, None, now_s + 60)

    async with broker_at(tmp_path) as broker, scraper(broker) as client:
        broker.logins.tokens = Keys()  # type: ignore[assignment]
        headers = [("Authorization", first), ("Authorization", _basic(b"prometheus:open: sesame"))]
        assert (await client.get("/metrics", headers=headers)).status_code == 401
        assert (await client.get("/metrics", headers=headers[:1])).status_code == 200


async def test_guesses_wait_as_those_of_other_protocols_do(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, scraper(broker, timeout=60) as client:
        for _ in range(FAILURES_FREE - 1):
            assert (await client.get("/metrics", auth=("prometheus", "guess"))).status_code == 401
        began = trio.current_time()
        assert (await client.get("/metrics", auth=("prometheus", "guess"))).status_code == 401
        assert trio.current_time() - began >= 1


async def test_a_connection_belongs_to_nobody_for_good(tmp_path: Path) -> None:
    """Proxies send requests of several clients over one connection."""
    async with broker_at(tmp_path) as broker, scraper(broker) as client:
        said = [
            (await client.get("/metrics", auth=auth)).status_code
            if auth
            else (await client.get("/metrics")).status_code
            for auth in (RIGHT, None, ("ann", RIGHT[1]), None, RIGHT)
        ]
        assert said == [200, 401, 403, 401, 200]


async def test_a_right_that_is_taken_away_ends_within_the_connection(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, scraper(broker, auth=RIGHT) as client:
        assert (await client.get("/metrics")).status_code == 200
        for _ in broker.policy.put_role("watcher", ()):
            pass
        assert (await client.get("/metrics")).status_code == 403


async def test_a_certificate_is_a_login(tmp_path: Path) -> None:
    for name, status in (("prometheus.example", 200), ("eve.example", 401)):
        async with broker_at(tmp_path) as broker:
            async with scraper(broker, verify=context_of_client(shown=pair(name))) as client:
                assert (await client.get("/metrics")).status_code == status


async def test_the_token_of_each_request_is_checked(tmp_path: Path) -> None:
    checked: list[str] = []

    class Keys:
        def check(self, token: str, now_s: float) -> TokenUser:
            checked.append(token)
            return TokenUser(token, None, now_s + 60)

    async with broker_at(tmp_path) as broker, scraper(broker) as client:
        broker.logins.tokens = Keys()  # type: ignore[assignment]
        assert 'Bearer realm="linn"' in (await client.get("/metrics")).headers.get_list("www-authenticate")
        for _ in range(2):
            assert (await client.get("/metrics", headers={"Authorization": "Bearer prometheus"})).status_code == 200
        assert checked == ["prometheus"] * 2


async def test_a_password_that_was_changed_is_refused_at_the_next_request(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, scraper(broker, auth=RIGHT) as client:
        assert (await client.get("/metrics")).status_code == 200
        user = broker.policy.users.find("prometheus")
        assert user is not None
        other = make_verifier("another", b"salt of 16 bytes", 4_096).text()
        broker.policy.users.put(msgspec.structs.replace(user, scram=other))
        assert (await client.get("/metrics")).status_code == 401


async def test_probes_need_no_login_and_say_yes_or_no(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, scraper(broker) as client:
        for path, text in (("/health", "alive\n"), ("/ready", "ready\n"), ("/nothing", None)):
            answer = await client.get(path)
            assert answer.text == text if text else answer.status_code == 404
            assert set(answer.headers) <= {"date", "content-type", "content-length", "cache-control"}
        broker.stopping = True
        answer = await client.get("/ready")
        assert (answer.status_code, answer.text) == (503, "not ready\n")
        broker.stopping = False


# --- the configuration ---

METRICS = '[listeners.watch]\nprotocol = "metrics"\n'


@pytest.mark.parametrize(
    "table",
    [
        'address = "127.0.0.1:9466"\nlogin = "required"',
        'address = "0.0.0.0:9466"\nplaintext = true\nlogin = "required"',
        'address = "unix:watch"\nlogin = "required"\nmethods = ["certificate"]',
        'address = "127.0.0.1:9466"\ntls = "x"\nlogin = "required"\nmethods = ["peer"]',
        'address = "127.0.0.1:9466"\ntls = "x"\nlogin = "required"\nmethods = ["scram"]',
    ],
)
def test_a_login_that_nobody_can_pass_is_an_error(table: str) -> None:
    text = f'{METRICS}{table}\n[tls.x]\ncertificate = "c"\nkey = "k"\n'
    with pytest.raises(ConfigError, match=r"listeners\.watch\.login: nobody could log in: plain passwords, tokens and"):
        configured(text)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ('"0.0.0.0:9466"', "the listener has no TLS: set tls, or plaintext = true"),
        ('"0.0.0.0:9466"\ntls = "x"', 'does not say whether they must log in: set login = "required"'),
        ('"0.0.0.0:9466"\nplaintext = true', 'does not say whether they must log in: set login = "required"'),
    ],
)
def test_metrics_beyond_loopback_are_open_only_where_the_file_says_so(address: str, said: str) -> None:
    text = f'{METRICS}address = {address}\n[tls.x]\ncertificate = "c"\nkey = "k"\n'
    with pytest.raises(ConfigError, match=re.escape(said)):
        configured(text)
    fine = address.split("\n")[0] + '\nplaintext = true\nlogin = "none"'
    configured(text.replace(address, fine))


def test_passwords_are_a_default_of_metrics_and_not_of_the_native_protocol() -> None:
    config, _ = configured(
        f'{METRICS}address = "127.0.0.1:0"\ntls = "x"\nlogin = "required"\n[tls.x]\ncertificate = "c"\nkey = "k"\n'
    )
    assert config.listeners["watch"].login.methods == ("peer", "certificate", "token", "plain")
    assert config.listeners["native"].login.methods == ("peer", "certificate", "scram", "token")
