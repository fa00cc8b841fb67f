"""`linn check`: every problem, and what a good file means."""

import json
import sys
from pathlib import Path

import pytest

from linn.cli.demo.broker_config import TOML
from linn.core.config.topic_settings import NEW_KEYS

WRONG = """\
[broker]
data_dirr = "x"

[topics.delays]
kind = "que"
lease = 30
storage = "dramm"
"""


def test_it_lists_every_problem_with_line_key_and_nearest_key(tmp_path: Path, run) -> None:
    (tmp_path / "wrong.toml").write_text(WRONG)
    done = run("check", "wrong.toml", cwd=tmp_path)
    assert done.returncode == 3
    assert 'wrong.toml:2: broker.data_dirr: unknown key; did you mean "data_dir"? [config.unknown_key]' in done.stdout
    assert 'wrong.toml:5: topics.delays.kind: must be one of "queue", "stream", "both"' in done.stdout
    assert "wrong.toml:6: topics.delays.lease: 30 of what?" in done.stdout
    assert done.stderr == ""


EVERYTHING_WRONG = """\
[broker]
default_storage = "nope"
drain_timeout = 5
[plugins]
blok = []
load = ["no_such_module"]
[exchanges.ex]
type = "topic"
alternate = "nowhere"
color = 1
[listeners.m]
protocol = "metrics"
address = 7
pth = 1
[topics.a]
kind = "stak"
retention = 5
dead_letter = "b"
storage = "fast"
lease = "30s"
[[topics.a.bindings]]
exchange = "nox"
key = "a"
[[topics.a.bindings]]
exchange = "ex"
key = 4
[topics.c]
bytes_max = 10
lese = "4s"
message_bytes_max = "1GiB"
"""


def test_no_problem_hides_another_one(tmp_path: Path, within, monkeypatch) -> None:
    """The problems are in values, keys, names, plugins, and a listener's dependencies; in one table and in several."""
    file = tmp_path / "wrong.toml"
    file.write_text(EVERYTHING_WRONG)
    monkeypatch.delitem(sys.modules, "linn.protocols.http.server", raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)  # As where it is not installed.
    found = json.loads(within("check", str(file), "--json").stdout)["problems"]
    assert [(problem["line"], problem["key"]) for problem in found] == [
        (2, "broker.default_storage"),
        (3, "broker.drain_timeout"),
        (4, "plugins"),
        (5, "plugins.blok"),
        (9, "exchanges.ex.alternate"),
        (10, "exchanges.ex.color"),
        (12, "listeners.m.protocol"),
        (13, "listeners.m.address"),
        (14, "listeners.m.pth"),
        (16, "topics.a.kind"),
        (17, "topics.a.retention"),
        (18, "topics.a.dead_letter"),
        (19, "topics.a.storage"),
        (22, "topics.a.bindings[0].exchange"),
        (26, "topics.a.bindings[1].key"),
        (28, "topics.c.bytes_max"),
        (29, "topics.c.lese"),
        (30, "topics.c.message_bytes_max"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '[topics.a]\nkind = "stak"\nretention = "1d"\n',
        '[topics.a]\nmessage_bytes_max = "x"\nbytes_max = 10\n',
        '[topics.a]\nredelivery_delay = "1h"\nredelivery_delay_max = 1\n',
        '[topics.a]\nbytes_max = "x"\noverflow = "reject"\n',
        '[broker]\nmessage_bytes_max = "x"\n[topics.a]\nmessage_bytes_max = "1GiB"\n',
        "[listeners.a]\nprotocol = 1\nper_connection = true\n",
        "[listeners.a]\naddress = 1\n[listeners.b]\n",
        '[exchanges.a]\ntype = 1\nhash_label = "x"\n[topics.t]\nbindings = [{exchange = "a", weight = 3}]\n',
    ],
)
def test_nothing_follows_from_a_value_that_is_wrong(tmp_path: Path, within, text: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    found = json.loads(within("check", str(file), "--json").stdout)["problems"]
    assert len(found) == 1, found


def test_the_same_as_json(tmp_path: Path, run) -> None:
    (tmp_path / "wrong.toml").write_text(WRONG)
    done = run("check", "wrong.toml", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 3
    assert not found["ok"]
    assert found["meaning"] is None
    assert ("broker.data_dirr", 2, "error") in [(p["key"], p["line"], p["severity"]) for p in found["problems"]]


def test_it_says_what_a_good_file_means(tmp_path: Path, run) -> None:
    (tmp_path / "good.toml").write_text(TOML)
    done = run("check", "good.toml", cwd=tmp_path)
    assert done.returncode == 0
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    for word in ("queue", "segmented-log", "at-least-once", "until settled", "back after 1m"):
        assert word in rows["delays"]
    for word in ("stream", " 4 ", "14d", "read again"):
        assert word in rows["departures"]
    assert "departures (departed.#)" in rows["flights"]


def test_it_says_how_a_queue_delivers_and_tries_again(tmp_path: Path, within, monkeypatch) -> None:
    (tmp_path / "good.toml").write_text(
        '[topics.jobs]\norder = "fair"\norder_by = "label.tenant"\nconsumers = "one"\ndedup = "5m"\n'
        'redelivery_delay = "2s"\nredelivery_backoff = "linear"\n\n[topics.plain]\n'
    )
    monkeypatch.setenv("COLUMNS", "300")
    shown = " ".join(within("check", str(tmp_path / "good.toml")).stdout.split())
    assert "at-least-once, order fair by label.tenant, to one consumer, an id once in 5m " in shown
    assert "back after 30s, 2s after it is returned (linear) " in shown
    assert "│ at-least-once │ until settled │ back after 30s │" in shown


def test_it_explains_every_key_of_a_queue(tmp_path: Path, within, monkeypatch) -> None:
    tables = """
        [exchanges.graves]
        type = "direct"
        [topics.jobs]
        keep = "2d"
        retention_bytes = "1TiB"
        ttl = "3d"
        dead_letter_exchange = "graves"
        dead_letter_key = "jobs"
        consumers = "one"
        expires = "4d"
        delete_when = "unused"
        records_max = 70_000
        order = "priority"
        levels = 5
        order_window = 90_000
        dedup = "6m"
        status = "8d"
        [topics.fair]
        order = "fair"
        order_by = "label.tenant"
        weights = {acme = 3}
        [topics.dead]
        [[topics.dead.bindings]]
        exchange = "graves"
        key = "jobs"
    """
    said = {
        "keep": "settled for 2d, 1TiB a partition",
        "ttl": "until settled, 3d at most",
        "dead_letter_exchange": "then to exchange graves",
        "dead_letter_key": 'exchange graves with the key "jobs"',
        "consumers": "to one consumer",
        "expires": "deleted after 4d without a consumer",
        "delete_when": "deleted when its last consumer leaves",
        "records_max": "at 70,000 records: block",
        "order": "order priority",
        "levels": "5 levels",
        "order_window": "among 90,000",
        "order_by": "order fair by label.tenant",
        "weights": "by label.tenant, acme 3 times",
        "dedup": "an id once in 6m",
        "status": "status for 8d",
    }
    assert said.keys() == {*NEW_KEYS} - {"lifetime"}, "a topic of a file is kept"
    (tmp_path / "good.toml").write_text(tables)
    monkeypatch.setenv("COLUMNS", "1000")
    shown = " ".join(within("check", str(tmp_path / "good.toml")).stdout.split())
    assert [words for words in said.values() if words not in shown] == []


def test_meaning_as_json(tmp_path: Path, run) -> None:
    (tmp_path / "good.toml").write_text(TOML)
    found = json.loads(run("check", "good.toml", "--json", cwd=tmp_path).stdout)
    assert found["ok"]
    assert found["meaning"]["topics"]["departures"]["partitions"] == 4
    assert found["meaning"]["listeners"]["native"]["address"] == "127.0.0.1:5466"


def test_a_file_that_is_not_there(tmp_path: Path, run, line_of) -> None:
    done = run("check", "nothing.toml", cwd=tmp_path)
    assert done.returncode == 3
    assert "nothing.toml" in line_of(done.stderr)
    assert "[config.unreadable]" in done.stderr


def test_a_listener_whose_extra_is_not_installed_is_an_error(tmp_path: Path, within, monkeypatch) -> None:
    file = tmp_path / "linn.toml"
    file.write_text('[broker]\ndata_dir = "d"\n\n[listeners.watch]\nprotocol = "metrics"\naddress = "127.0.0.1:0"\n')
    assert within("check", str(file)).returncode == 0
    monkeypatch.delitem(sys.modules, "linn.protocols.http.server", raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)  # As where it is not installed.
    done = within("check", str(file))
    assert done.returncode == 3
    assert f"{file}:5: listeners.watch.protocol: " in done.stdout
    assert 'pip install "linn[metrics]" [plugin.failed]' in done.stdout
    examined = json.loads(within("doctor", str(file), "--json").stdout)
    states = {finding["name"]: finding["state"] for finding in examined["findings"]}
    assert (examined["ok"], states["listener watch"]) == (False, "error")
    listed = json.loads(within("plugins", "list", "--json").stdout)
    (plugin,) = [plugin for plugin in listed["plugins"] if {"what": "protocol", "name": "metrics"} in plugin["brings"]]
    assert plugin["state"] == "incomplete"
    assert 'pip install "linn[metrics]"' in plugin["error"]
    shown = within("plugins", "list")
    assert (shown.returncode, "incomplete" in shown.stdout) == (0, True), "a broker without that listener starts"
    assert 'pip install "linn[metrics]"' in shown.stdout


def test_it_knows_what_workers_can_t_do(tmp_path: Path, run) -> None:
    high = '[listeners.m]\nprotocol = "metrics"\naddress = "127.0.0.1:65535"\n'
    (tmp_path / "high.toml").write_text(f"[broker]\nworkers = 2\n{high}")
    done = run("check", "high.toml", cwd=tmp_path)
    assert done.returncode == 3
    assert "broker.workers: listeners.m: worker 2 would be monitored at port 65536" in done.stdout
