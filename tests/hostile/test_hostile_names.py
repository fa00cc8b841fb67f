"""Names that are paths, scripts, walls of text or commands to a terminal, in every place that takes a name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import wire
from attack import Attack, WatchedBroker, attacked, request
from typer.testing import CliRunner

from linn.cli.app import app
from linn.cli.render.console import console
from linn.wire import messages as m
from linn.wire.connection import hello

CONFIG = """
[log]
format = "human"
[exchanges.e]
type = "topic"
[exchanges.h]
type = "headers"
[topics.t]
kind = "stream"
bindings = [{ exchange = "e", key = "#" }]
[topics.q]
"""
NAMES = {
    "a path": "../x",
    "an absolute path": "/etc/passwd",
    "dots": "..",
    "a dot": ".",
    "NUL": "a\0b",
    "64 KB": "a" * 65_000,
    "250 characters": "a" * 250,
    "bidi": "a\u202egpj.exe",
    "a script": "<script>alert(1)</script>",
    "CR LF": "a\r\nlevel=error forged",
    "a terminal's commands": "\x1b[2J\x1b]0;owned\x07",
    "C1 controls": "a\x9b31mred",
    "Rich's markup": "[red]x[/red]",
    "nothing": "",
    "a space": "a b",
    "half of ours": "__g.orders",
    "full width": "\uff0e\uff0e\uff0fx",
}
REFUSED_IN_A_LOG = [*range(10), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""All characters that move a cursor, except line ends."""


def assert_harmless(text: str, what: str) -> None:
    found = sorted({character for character in text if ord(character) in REFUSED_IN_A_LOG})
    assert found == [], f"{what} has {found}"
    assert "\nlevel=error forged" not in text, f"{what} has a forged line"


@pytest.fixture
def files(broker: WatchedBroker) -> Iterator[Path]:
    """The broker's data folder, in which and beside which no name may make a file."""
    before = sorted(path.relative_to(broker.folder) for path in broker.folder.rglob("*") if "topics" not in path.parts)
    yield broker.data_dir
    after = sorted(path.relative_to(broker.folder) for path in broker.folder.rglob("*") if "topics" not in path.parts)
    assert {path for path in after if path not in before and path.suffix not in (".log", ".index", ".segment")} == set()


VERBS = {
    "topic.create": ("name",),
    "topic.alter": ("name",),
    "topic.show": ("name",),
    "topic.delete": ("name",),
    "topic.purge": ("name",),
    "exchange.create": ("name",),
    "exchange.show": ("name",),
    "exchange.bind": ("exchange", "topic"),
    "group.list": ("topic",),
    "group.show": ("group",),
}
UNKNOWN = ("config.invalid", "topic.unknown", "exchange.unknown", "group.unknown")


def test_no_verb_takes_a_name_that_is_none(broker: WatchedBroker, files: Path) -> None:
    with attacked(broker, memory_bytes=4 << 20, cpu_s=0.3) as attack:
        peer = attack.connect()
        for what, name in NAMES.items():
            for verb, keys in VERBS.items():
                arguments: dict[str, object] = dict.fromkeys(keys, name)
                if verb.endswith((".create", ".alter")):
                    arguments["settings"] = {"type": "topic"} if "exchange" in verb else {}
                answer = peer.ask(m.Administer(verb, json.dumps(arguments)))
                assert isinstance(answer, m.Failed), (verb, what)
                assert answer.code in UNKNOWN, (verb, what, answer.code)
                assert len(answer.text) < 1_000, (verb, what)
        peer.is_served()
    assert_harmless(broker.log_text(), "the log")


def test_no_request_takes_a_name_that_is_none(broker: WatchedBroker, files: Path) -> None:
    with attacked(broker, memory_bytes=4 << 20) as attack:
        peer = attack.connect()
        for what, name in NAMES.items():
            exchange = "exchange.unknown" if name else ""
            expected = {
                "publish": (peer.ask(m.Publish(name), wire.plain([b"v"])), "topic.unknown"),
                "publish to an exchange": (peer.ask(m.Publish(name, True), wire.plain([b"v"])), exchange),
                "subscribe": (peer.ask(m.Subscribe(name)), "topic.unknown"),
                "fetch": (peer.ask(m.Fetch(name, 0, 0)), "topic.unknown"),
                "find an offset": (peer.ask(m.FindOffset(name, 0, -1)), "topic.unknown"),
            }
            for request_name, (answer, code) in expected.items():
                assert getattr(answer, "code", "") == code, (request_name, what, answer)
                assert len(getattr(answer, "text", "")) < 1_000
            unanswered = request(m.Publish(name), 0, 1) + wire.plain([b"v"])
            peer.send(unanswered)
        peer.is_served()
    assert_harmless(broker.log_text(), "the log")


def test_clients_name_themselves_as_they_like_and_no_log_repeats_it(broker: WatchedBroker) -> None:
    with attacked(broker, memory_bytes=4 << 20) as attack:
        for name in NAMES.values():
            peer = attack.connect(greeted=False)
            greeting = request(hello(name), 1)
            peer.send(greeting)
            correlation, answer = peer.frame()
            if len(greeting) > 16 << 10:
                assert isinstance(answer, m.Failed)
            else:
                assert (correlation, type(answer)) == (1, m.Welcome)
                peer.send(b"not this protocol at all")
                peer.is_refused("protocol.malformed")
            peer.is_closed()
    assert_harmless(broker.log_text(), "the log")


def test_groups_and_routing_keys_may_be_any_text_and_no_table_of_the_command_line_obeys_it(
    broker: WatchedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attacked(broker, memory_bytes=6 << 20) as attack:
        join_and_bind(attack)
    monkeypatch.delenv("COLUMNS", raising=False)
    commands = (
        ("groups", "list"),
        ("bindings", "list"),
        ("exchanges", "list"),
        ("topics", "list"),
        ("topics", "describe", "t"),
    )
    for command in commands:
        assert_harmless(linn(broker, *command), " ".join(command))
    for name in NAMES.values():
        if "\0" not in name and name:
            assert_harmless(linn(broker, "groups", "describe", name[:300]), "groups describe")
    assert_harmless(broker.log_text(), "the log")


def join_and_bind(attack: Attack) -> None:
    """A group, a binding and a record by each name; texts over their limit are refused."""
    peer = attack.connect()
    for name in NAMES.values():
        joined = peer.ask(m.Subscribe("t", group=name))
        large = len(name.encode()) > 255
        assert getattr(joined, "code", "") == ("limit.exceeded" if large else ""), joined
        bind = {"exchange": "e", "topic": "q", "key": name}
        bound = peer.ask(m.Administer("exchange.bind", json.dumps(bind)))
        assert not isinstance(bound, m.Failed) or bound.code == "exchange.binding_invalid", bound
        arguments = {"exchange": "h", "topic": "q", "arguments": {"labels": {name: name}}}
        bound = peer.ask(m.Administer("exchange.bind", json.dumps(arguments)))
        assert not isinstance(bound, m.Failed) or bound.code == "exchange.binding_invalid", bound
    peer.is_served()


def linn(broker: WatchedBroker, *arguments: str) -> str:
    """The output of a command, on a terminal or not."""
    console.cache_clear()
    done = CliRunner().invoke(app, list(arguments), env={"LINN_URL": broker.url, "NO_COLOR": "1"})
    console.cache_clear()
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout + done.stderr


@pytest.mark.parametrize("table", ["topics", "exchanges", "storage", "listeners", "delivery"])
@pytest.mark.parametrize("what", [name for name in NAMES if name not in ("64 KB",)])
def test_toml_with_a_name_that_is_none_is_refused_in_one_harmless_line(tmp_path: Path, table: str, what: str) -> None:
    file = tmp_path / "linn.toml"
    file.write_text(f"[{table}.{json.dumps(NAMES[what])}]\n")
    done = CliRunner().invoke(app, ["check", str(file)])
    assert done.exit_code == 3
    assert_harmless(done.stdout + done.stderr, "linn check")
