"""Findings of `linn check` besides errors: settings that work, but probably not as intended."""

import json
import re
from pathlib import Path

import pytest

from linn.cli import config_lint
from linn.cli.doctor.machine import DiskSpace, existing_part, memory_bytes
from linn.core.env.real.file_limits import file_limits

ENDS = 'max_deliveries = 5\ndead_letter = "d"\n'
EXCHANGE = (
    '[exchanges.x]\ntype = "{type}"\n[topics.d]\n[topics.t]\n'
    + ENDS
    + '[[topics.t.bindings]]\nexchange = "x"\n{binding}\n'
)
RIGHTS = '[topics.orders]\n[users.ada]\nroles = ["r"]\nuid = 7\n[users.anonymous]\n[roles.r]\n{rule}\n'


def checked(within, tmp_path: Path, text: str, *options: str) -> tuple[int, list[str]]:
    """Exit code, and each problem as SEVERITY KEY: TEXT."""
    file = tmp_path / "linn.toml"
    file.write_text(text)
    done = within("check", str(file), "--json", *options)
    problems = json.loads(done.stdout)["problems"]
    return done.returncode, [f"{found['severity']} {found['key']}: {found['text']}" for found in problems]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[exchanges.x]\n", "warning exchanges.x: no binding leads away"),
        ('[exchanges.x]\nalternate = "y"\n[exchanges.y]\n', "warning exchanges.y: no binding leads away"),
        (
            '[listeners.n]\naddress = "0.0.0.0:5466"\nplaintext = true\nlogin = "none"\n',
            "warning listeners.n.address: anyone who reaches this address",
        ),
        ('[topics.t]\nkind = "stream"\nretention = "forever"\n', 'warning topics.t.retention: is "forever" without'),
        (
            '[topics.t]\nkind = "stream"\nretention_bytes = "1MiB"\n',
            "warning topics.t.retention_bytes: is less than one",
        ),
        (
            '[topics.t]\nmax_deliveries = 1\nredelivery_delay = "1s"\ndead_letter = "d"\n[topics.d]\n',
            "warning topics.t.redelivery_delay: has no effect with max_deliveries = 1",
        ),
        (
            '[topics.t]\nmax_deliveries = 2\ndead_letter = "d"\n[topics.d]\nmax_deliveries = 3\n',
            "warning topics.t.dead_letter: d drops records itself, after 3 attempts",
        ),
        (
            '[topics.t]\ndelivery = "exactly-once"\n',
            'warning topics.t.delivery: a power failure may take the last records and decisions (fsync = "os")',
        ),
        (
            '[broker]\ndefault_delivery = "exactly-once"\n[topics.t]\nstorage = "dram"\n',
            "warning topics.t.delivery: a restart takes its records, and what was decided",
        ),
        (
            EXCHANGE.format(type="direct", binding='key = "a"') + "[topics.alone]\n",
            "hint topics.alone: no exchange leads to it",
        ),
        ("[topics.t]\n", "hint topics.t: a message that no consumer can handle comes again for ever"),
        (
            EXCHANGE.format(type="direct", binding='key = "a.#"'),
            "warning topics.t.bindings[0]: a direct exchange takes",
        ),
        (
            EXCHANGE.format(type="fanout", binding='key = "a"'),
            "warning topics.t.bindings[0]: a fanout sends everything",
        ),
        (EXCHANGE.format(type="topic", binding='key = "a.b*"'), 'warning topics.t.bindings[0]: "b*" is taken as it is'),
        (EXCHANGE.format(type="topic", binding='key = "a..b"'), "warning topics.t.bindings[0]: has an empty word"),
        (
            EXCHANGE.format(type="content", binding="when = 'size > 1 and false'"),
            "warning topics.t.bindings[0]: is never true",
        ),
        (RIGHTS.format(rule='"topic:order" = ["see"]'), 'warning roles.r."topic:order": there is no topic order'),
        (RIGHTS.format(rule='"topic:zebra" = ["see"]'), 'hint roles.r."topic:zebra": there is no topic zebra'),
        (RIGHTS.format(rule='"exchange:zebra" = ["see"]'), 'hint roles.r."exchange:zebra": there is no exchange zebra'),
        ('[roles.r]\nbroker = ["see"]\n', "hint roles.r: no user in this file has it"),
        ('[users.ada]\nroles = ["administrator"]\n', "hint users.ada: can log in with a token only"),
    ],
)
def test_odd_settings_are_reported_and_the_file_is_still_valid(within, tmp_path: Path, text: str, said: str) -> None:
    returncode, problems = checked(within, tmp_path, text)
    assert returncode == 0
    assert [problem for problem in problems if problem.startswith(said)], problems


@pytest.mark.parametrize("topic", ['kind = "stream"\nretention = "1h"', ENDS, 'delivery = "at-most-once"'])
def test_attempts_that_end_are_not_hinted_at(within, tmp_path: Path, topic: str) -> None:
    assert checked(within, tmp_path, f"[topics.t]\n{topic}\n[topics.u]\n{ENDS}[topics.d]\n") == (0, [])


def test_exactly_once_on_storage_that_survives_a_power_failure_is_not_reported(within, tmp_path: Path) -> None:
    text = '[storage.segmented-log]\nfsync = "always"\n[topics.d]\n[topics.t]\ndelivery = "exactly-once"\n' + ENDS
    assert checked(within, tmp_path, text, "--strict") == (0, [])


@pytest.mark.parametrize(
    "rule", ['"topic:orders" = ["see"]', '"topic:zebra*" = ["see"]', '"topic:__g.orders" = ["see"]', 'broker = ["see"]']
)
def test_rules_that_may_match_are_not_reported(within, tmp_path: Path, rule: str) -> None:
    _, problems = checked(within, tmp_path, RIGHTS.format(rule=rule))
    assert [problem for problem in problems if "topics.orders" not in problem] == []


@pytest.mark.parametrize("binding", ['key = "a.*.#"', 'key = "#"', 'key = ""', 'key = "a.b"'])
def test_patterns_that_are_as_they_should_be(within, tmp_path: Path, binding: str) -> None:
    assert checked(within, tmp_path, EXCHANGE.format(type="topic", binding=binding)) == (0, [])


def test_strict_ends_with_3_for_a_warning_and_not_for_a_hint(within, tmp_path: Path) -> None:
    assert checked(within, tmp_path, "[exchanges.x]\n", "--strict")[0] == 3
    hint = EXCHANGE.format(type="direct", binding='key = "a"') + '[topics.alone]\nkind = "stream"\nretention = "1h"\n'
    returncode, problems = checked(within, tmp_path, hint, "--strict")
    assert returncode == 0
    assert [problem.split()[0] for problem in problems] == ["hint"]


def test_more_than_the_disk_has(within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_lint, "disk_space", lambda path: DiskSpace(10 << 30, 5 << 30))
    text = (
        '[topics.s]\nkind = "stream"\npartitions = 3\nretention_bytes = "4GiB"\n[topics.q]\nbytes_max = "1GiB"\n' + ENDS
    )
    text += "[topics.d]\n"
    _, problems = checked(within, tmp_path, text)
    (problem,) = problems
    assert problem.startswith("warning topics.s.retention_bytes: topics may keep 13 GiB together")
    _, problems = checked(within, tmp_path, text.replace("4GiB", "2GiB"))
    assert problems == []


def test_more_than_the_memory_has(within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_lint, "memory_bytes", lambda: 1 << 30)
    _, (problem,) = checked(within, tmp_path, '[broker]\nmemory_bytes_max = "2GiB"\n')
    assert problem == "warning broker.memory_bytes_max: the broker may use 1 GiB, not 2 GiB"
    assert checked(within, tmp_path, '[broker]\nmemory_bytes_max = "1GiB"\n')[1] == []


def test_bindings_between_exchanges_are_shown(within, tmp_path: Path) -> None:
    text = (
        '[exchanges.a]\ntype = "topic"\nalternate = "c"\n[exchanges.b]\ntype = "fanout"\n[[exchanges.b.bindings]]\n'
        'exchange = "a"\nkey = "k.#"\n[exchanges.c]\ntype = "fanout"\n[topics.t]\n[[topics.t.bindings]]\n'
        'exchange = "b"\n[[topics.t.bindings]]\nexchange = "c"\n'
    )
    (tmp_path / "linn.toml").write_text(text)
    shown = within("check", str(tmp_path / "linn.toml")).stdout
    assert re.search(r"│ a +│ topic +│ exchange b \(k.#\) +│ c", shown)
    meaning = json.loads(within("check", str(tmp_path / "linn.toml"), "--json").stdout)["meaning"]
    assert meaning["exchanges"]["b"]["bindings"] == [{"to": "topic", "name": "t", "key": "", "arguments": {}}]


def test_facts_about_the_machine(tmp_path: Path) -> None:
    assert memory_bytes() > 1 << 20
    assert file_limits().soft <= file_limits().hard
    assert existing_part(str(tmp_path / "a" / "b")) == tmp_path
