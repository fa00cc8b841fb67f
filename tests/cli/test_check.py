"""`linn check`: every problem, and what a good file means."""

import json
import sys
from pathlib import Path

from linn.cli.demo.broker_config import TOML

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
    monkeypatch.setitem(sys.modules, "hypercorn.config", None)  # As where it is not installed.
    done = within("check", str(file))
    assert done.returncode == 3
    assert f"{file}:5: listeners.watch.protocol: " in done.stdout
    assert 'pip install "linn[metrics]" [plugin.failed]' in done.stdout
    examined = json.loads(within("doctor", str(file), "--json").stdout)
    states = {finding["name"]: finding["state"] for finding in examined["findings"]}
    assert (examined["ok"], states["listener watch"]) == (False, "error")
