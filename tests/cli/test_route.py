"""`linn route`: what matches and why, for a file and for a broker, and what another file would change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.cli.routing.route_map import RouteMap, map_of_config, map_of_description
from linn.cli.routing.route_trace import trace_of
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import PluginUnknown
from linn.core.plugins.manager import built_in
from linn.core.routing.exchange import Subject

OLD = """\
[exchanges.flights]
type = "topic"
alternate = "lost"

[exchanges.lost]
type = "fanout"

[exchanges.cargo]
type = "content"
[[exchanges.cargo.bindings]]
exchange = "flights"
key = "#.cargo"

[exchanges.spread]
type = "consistent-hash"
hash_on = "label.customer"

[topics.delays]
[[topics.delays.bindings]]
exchange = "flights"
key = "departed.*.late"

[topics.departures]
[[topics.departures.bindings]]
exchange = "flights"
key = "departed.#"

[topics.unrouted]
[[topics.unrouted.bindings]]
exchange = "lost"

[topics.heavy]
[[topics.heavy.bindings]]
exchange = "cargo"
when = 'label.weight > 100 and (label.origin = "JFK" or header.kind = "bulk") and size >= 3'
[[topics.heavy.bindings]]
exchange = "flights"
key = "heavy.cargo"

[topics.one]
[[topics.one.bindings]]
exchange = "spread"

[topics.two]
[[topics.two.bindings]]
exchange = "spread"
key = "3"
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands are run."""
    (tmp_path / "old.toml").write_text(OLD)
    (tmp_path / "new.toml").write_text(OLD.replace("weight > 100", "weight > 10").replace("*.late", "#.late"))
    sample = [
        {"routing_key": "departed.jfk.late", "value": "a"},
        {"routing_key": "departed.jfk.gate.late", "value": "a"},
        {"routing_key": "x.cargo", "labels": {"weight": 50, "origin": "JFK"}, "value": "abc"},
        {"routing_key": "x.cargo", "labels": {"weight": 50}, "headers": {"kind": "bulk"}, "value": "abc"},
        {"routing_key": "x.cargo", "labels": {"weight": 50}, "value": {"base64": "AAAA"}},
    ]
    (tmp_path / "sample.jsonl").write_text("\n\n".join(map(json.dumps, sample)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def routes(tmp_path_factory) -> RouteMap:
    file = tmp_path_factory.mktemp("routes") / "old.toml"
    file.write_text(OLD)
    return map_of_config(str(file))


# --- explain ---------------------------------------------------------------------------------------------------------


def test_it_follows_bindings_between_exchanges_and_says_why(files: Path, run) -> None:
    done = run(
        *("route", "explain", "--config", "old.toml", "--exchange", "flights", "--routing-key", "departed.jfk.cargo"),
        *("--label", "weight=50", "--label", "origin=JFK"),
        cwd=files,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for text in (
        'yes exchange cargo  key matches "#.cargo": # is "departed.jfk"',
        'yes topic departures  key matches "departed.#": # is "jfk.cargo"',
        'no  topic delays  key matches "departed.*.late": "cargo" is not "late"',
        "exchange cargo (content), bound to flights",
        "false label.weight > 100: label.weight is 50",
        'true label.origin = "JFK" or header.kind = "bulk"',
        'unknown header.kind = "bulk": there is no header.kind',
        "false size >= 3: size is 0",
        "It goes to departures.",
    ):
        assert text in done.stdout


def test_it_follows_the_alternate_exchange_if_nothing_matches(files: Path, within) -> None:
    done = within("route", "explain", "--config", "old.toml", "--exchange", "flights", "--routing-key", "x")
    assert "nothing matches, so it goes to the alternate, exchange lost" in done.stdout
    assert "It goes to unrouted." in done.stdout


def test_unroutable_messages_succeed_and_are_reported(files: Path, within) -> None:
    done = within("route", "explain", "--config", "old.toml", "--exchange", "cargo")
    assert done.returncode == 0
    assert "It goes nowhere" in done.stdout


def test_as_json(files: Path, within) -> None:
    done = within(
        *("route", "explain", "--config", "old.toml", "--exchange", "flights", "--routing-key", "heavy.cargo"),
        *("--label", "weight=500", "--header", "kind=bulk", "--key", "k", "--size", "3", "--misses", "1", "--json"),
    )
    said = json.loads(done.stdout)
    assert said["message"] == {
        "routing_key": "heavy.cargo",
        "labels": {"weight": 500},
        "key": "k",
        "headers": {"kind": "bulk"},
        "size": 3,
    }
    assert said["topics"] == ["heavy"]
    assert [(step["exchange"], step["type"], step["reached"]) for step in said["steps"]] == [
        ("flights", "topic", "published to"),
        ("cargo", "content", "bound to flights"),
    ]
    flights, cargo = said["steps"]
    assert [(each["to"], each["target"], each["matched"]) for each in flights["bindings"]] == [
        ("exchange", "cargo", True),
        ("topic", "heavy", True),
        ("topic", "delays", False),
    ]
    assert (flights["others"], flights["alternate"]) == (1, None)
    (binding,) = cargo["bindings"]
    assert binding["because"] == ["label.weight is 500", 'header.kind is "bulk"', "size is 3"]
    assert binding["explanation"]["truth"] is True


def test_a_running_broker_is_explained_as_it_is_now(linn, quick) -> None:
    for arguments in (
        ("topics", "create", "route-a"),
        ("topics", "create", "route-b"),
        ("exchanges", "create", "route-x", "type=content"),
        ("exchanges", "create", "route-h", "type=consistent-hash", "hash_on=key"),
        ("bindings", "create", "route-x", "route-a", "--argument", "when=size > 9"),
        ("bindings", "create", "route-x", "route-h", "--to-exchange", "--argument", 'when=key = "k"'),
        ("bindings", "create", "route-h", "route-b", "--key", "7"),
    ):
        assert quick(*arguments).returncode == 0
    done = linn("route", "explain", "--exchange", "route-x", "--key", "k", "--size", "5", "--json")
    said = json.loads(done.stdout)
    assert said["topics"] == ["route-b"]
    assert [step["type"] for step in said["steps"]] == ["content", "consistent-hash"]
    assert said["steps"][0]["bindings"][1]["because"] == ["size is 5"]
    default = json.loads(quick("route", "explain", "--exchange", "", "--routing-key", "route-a", "--json").stdout)
    assert default["topics"] == ["route-a"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--exchange", "flight"], 1, 'did you mean "flights"? [exchange.unknown]'),
        (["--exchange", "flights", "--config", "none.toml"], 3, "none.toml: can't be read"),
        (["--exchange", "flights", "--config", "wrong.toml"], 3, "wrong.toml:1"),
        (["--exchange", "flights", "--label", "x"], 2, "is not NAME=VALUE"),
        (["--exchange", "flights", "--size", "-1"], 2, "--size"),
        ([], 2, "--exchange"),
    ],
)
def test_wrong_arguments(files: Path, within, arguments: list[str], code: int, said: str) -> None:
    (files / "wrong.toml").write_text("[exchangs.a]\n")
    config = [] if "--config" in arguments else ["--config", "old.toml"]
    done = within("route", "explain", *arguments, *config)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_exchange_of_a_type_that_is_not_known_here_is_told_where_it_is_reached() -> None:
    shown = [
        {"name": "near", "type": "topic", "alternate": "far", "settings": {}, "bindings": [bound("t", "a")]},
        {"name": "far", "type": "geo", "alternate": None, "settings": {"grid": 5}, "bindings": [bound("t", "")]},
    ]
    routes = map_of_description(shown, ["t"], built_in())
    assert trace_of(routes, "near", Subject("a", {}), misses_max=0).topics == ("t",)
    with pytest.raises(PluginUnknown, match='exchange far has the type "geo", which no plugin provides here'):
        trace_of(routes, "near", Subject("b", {}), misses_max=0)


def bound(topic: str, key: str) -> dict[str, object]:
    return {"topic": topic, "key": key, "arguments": {}}


def test_a_broker_that_is_not_there(within, line_of) -> None:
    done = within("route", "explain", "--exchange", "flights")
    assert done.returncode == 4
    assert "[connection.failed]" in line_of(done.stderr)


SUBJECT_VALUES = st.sampled_from([50, 500, 500.0, True, "500", "JFK"])


@settings(max_examples=150, deadline=None)
@given(
    exchange=st.sampled_from(["flights", "lost", "cargo", "spread"]),
    key=st.lists(st.sampled_from(["departed", "late", "heavy", "cargo", "x"]), max_size=4).map(".".join),
    labels=st.dictionaries(st.sampled_from(["weight", "origin", "customer"]), SUBJECT_VALUES),
    kind=st.sampled_from([None, b"bulk", b"other"]),
    value=st.sampled_from([b"", b"abc"]),
)
def test_an_explained_route_is_the_route_that_a_broker_takes(
    exchange: str, key: str, labels: dict, kind: bytes | None, value: bytes, routes
) -> None:
    headers = (("kind", kind),) if kind is not None else ()
    record = Record(value=value, routing_key=key, labels=labels, headers=headers)
    subject = Subject(key, labels, None, dict(headers), len(value))
    trace = trace_of(routes, exchange, subject, misses_max=3)
    taken = [topic for topic, _ in routes.router(exchange).route(build_from_records([record], base_id=1))]
    assert sorted(trace.topics) == sorted(taken)
    for step in trace.steps:
        for evaluation in step.evaluations:
            assert (evaluation.explanation.truth is True) is evaluation.matched


# --- diff ------------------------------------------------------------------------------------------------------------


def test_changes_are_listed_by_exchange_and_topics(files: Path, run) -> None:
    done = run("route", "diff", "old.toml", "new.toml", "--sample", "sample.jsonl", "--json", cwd=files)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["same"], said["messages"], said["exchanges"]) == (False, 5, ["flights", "lost", "cargo", "spread"])
    changes = {(c["exchange"], tuple(c["before"]), tuple(c["after"])): c for c in said["changes"]}
    assert {key: (change["messages"], change["lines"]) for key, change in changes.items()} == {
        ("flights", ("departures",), ("delays", "departures")): (1, [3]),
        ("flights", (), ("heavy",)): (2, [5, 7]),
        ("cargo", (), ("heavy",)): (2, [5, 7]),
    }
    shown = run("route", "diff", "old.toml", "new.toml", "--sample", "sample.jsonl", cwd=files)
    assert shown.returncode == 1
    assert "delays, departures" in shown.stdout
    assert 'line 3, key "departed.jfk.gate.late"' in shown.stdout


def test_the_same_file_changes_nothing(files: Path, within) -> None:
    done = within("route", "diff", "old.toml", "old.toml", "--sample", "sample.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing changes" in done.stdout


def test_removing_an_exchange_is_a_change_for_every_message(files: Path, within) -> None:
    less = OLD.replace('[exchanges.spread]\ntype = "consistent-hash"\nhash_on = "label.customer"\n', "")
    less = less[: less.index("[topics.one]")]
    (files / "less.toml").write_text(less)
    arguments = ("route", "diff", "old.toml", "less.toml", "--sample", "sample.jsonl", "--json")
    (change,) = json.loads(within(*arguments, "--exchange", "spread").stdout)["changes"]
    assert (change["after"], change["messages"]) == (None, 5)
    assert within(*arguments, "--exchange", "flights").returncode == 0


@pytest.mark.parametrize(
    ("sample", "more", "code", "said"),
    [
        ("not json", [], 2, "line 1: not JSON"),
        ('{"value": "a"}\n{"values": "b"}', [], 2, "line 2: "),
        ('{"value": "a", "labels": {"x": [1]}}', [], 2, "line 1: "),
        (None, [], 2, "odd.jsonl: can't be read"),
        ("", ["--exchange", "flight"], 2, 'did you mean "flights"'),
    ],
)
def test_errors_are_distinguished_from_differences(
    files: Path, within, line_of, sample: str | None, more: list[str], code: int, said: str
) -> None:
    if sample is not None:
        (files / "odd.jsonl").write_text(sample)
    done = within("route", "diff", "old.toml", "new.toml", "--sample", "odd.jsonl", *more)
    assert done.returncode == code
    assert said in line_of(done.stderr)
