"""`linn scheduled`: messages that come later are listed, cancelled and moved."""

from __future__ import annotations

import json


def test_scheduled_messages_are_listed_moved_and_cancelled(quick) -> None:
    quick("topics", "create", "later")
    quick("publish", "later", "a", "b", "--at", "2100-01-31T12:00Z")
    quick("publish", "later", "c", "--at", "2099-01-31T12:00Z")
    lines = quick("scheduled", "list", "later", "--count", "2").stdout.splitlines()
    assert [line.replace("│", " ").split()[1] for line in lines if "0/" in line] == ["0/2", "0/0"]
    assert lines[-1] == "and 1 more in later"
    assert "2099-01-31" in quick("scheduled", "list", "later").stdout
    done = quick("scheduled", "move", "later", "0/1", "--at", "2098-01-31T12:00Z")
    assert (done.returncode, "moved" in done.stdout) == (0, True)
    (listed,) = json.loads(quick("scheduled", "list", "later", "--json").stdout)
    assert listed in json.loads(quick("scheduled", "--json").stdout)
    quick("topics", "create", "idle")
    assert "idle" not in quick("scheduled").stdout
    assert (listed["count"], [each["id"] for each in listed["first"]]) == (3, ["0/1", "0/2", "0/0"])
    assert "cancelled" in quick("scheduled", "cancel", "later", "0/2").stdout
    again = quick("scheduled", "cancel", "later", "0/2", "0/0")
    rows = [line.replace("│", " ").split() for line in again.stdout.splitlines() if "0/" in line]
    assert (again.returncode, rows) == (1, [["0/2", "gone"], ["0/0", "cancelled"]])
    assert quick("scheduled", "move", "later", "0/1", "--delay", "1ms").returncode == 0
    assert quick("consume", "later", "--count", "1").stdout == "b\n"


def test_the_content_of_scheduled_messages_is_shown(quick) -> None:
    quick("topics", "create", "shown")
    value = "x" * 50
    quick("publish", "shown", value, "second", "--at", "2100-01-31T12:00Z", "--key", "k", "--label", "n=1")
    quick("publish", "shown", "third", "--at", "2099-01-31T12:00Z", "--header", "h=v")
    quick("scheduled", "move", "shown", "0/1", "--at", "2098-01-31T12:00Z")
    lines = quick("scheduled", "list", "shown", "--values").stdout.splitlines()
    rows = [line.replace("│", " ").split() for line in lines if "0/" in line]
    assert [(row[1], row[-1]) for row in rows] == [("0/1", "second"), ("0/2", "third"), ("0/0", "x" * 37 + "...")]
    (listed,) = json.loads(quick("scheduled", "list", "shown", "--values", "--json").stdout)
    assert [it["value"] for it in listed["first"]] == ["second", "third", value]
    assert [it["headers"] for it in listed["first"]] == [[], [["h", "v"]], []]
    assert "value" not in json.loads(quick("scheduled", "list", "shown", "--json").stdout)[0]["first"][0]
    found = json.loads(quick("scheduled", "describe", "shown", "0/1", "--json").stdout)
    assert found.items() >= {"id": "0/1", "value": "second", "key": "k", "labels": {"n": 1}}.items()
    assert found["due_ms"] == listed["first"][0]["due_ms"] == 4_042_008_000_000
    assert "2098-01-31" in quick("scheduled", "describe", "shown", "0/1").stdout
    quick("scheduled", "cancel", "shown", "0/1")
    assert quick("scheduled", "describe", "shown", "0/1").returncode == 2


def test_wrong_questions_fail_and_say_why(quick, line_of) -> None:
    quick("topics", "create", "now")
    for arguments, code, ends_with in (
        (("cancel", "now", "seven"), "config.invalid", 3),
        (("list", "absent"), "topic.unknown", 1),
        (("describe", "now", "7"), "config.invalid", 3),
        (("cancel", "now", *["0/0"] * 1001), "limit.exceeded", 1),
    ):
        done = quick("scheduled", *arguments)
        assert line_of(done.stderr).endswith(f"[{code}]")
        assert (done.stdout, done.returncode) == ("", ends_with)
    for wrong in (
        ("move", "now", "0/0"),
        ("move", "now", "0/0", "--at", "x"),
        ("cancel", "now"),
        ("list", "now", "-1"),
    ):
        assert quick("scheduled", *wrong).returncode == 2
