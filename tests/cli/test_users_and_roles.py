"""Users, roles and rights from the command line, and passwords that never reach the broker."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linn.core.security.sasl.scram import Verifier
from linn.testing.process import BrokerProcess

FILE = """
[roles.operator]
broker = ["see"]
"topic:*" = ["browse"]
[users.root]
roles = ["operator"]
[users.anonymous]
roles = ["administrator"]
[topics.orders]
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), FILE) as process:
        yield process


def rows(table: str) -> list[list[str]]:
    """The cells of a table's rows, without its heads."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if line.startswith("│")]


def test_a_role_is_made_listed_altered_and_deleted(quick, line_of) -> None:
    rules = "topic:orders.*=publish,see", "broker=see", "topic:prices=consume", "topic:prices=browse"
    assert quick("roles", "create", "shop", *rules).stdout == "created shop\n"
    assert quick("roles", "create", "shop", *reversed(rules)).stdout == "shop exists with these rules\n"
    done = quick("roles", "create", "shop", "broker=see")
    assert done.returncode == 1
    assert line_of(done.stderr).endswith("[auth.exists]")
    assert rows(quick("roles").stdout) == [
        ["administrator", "5", "topic:*, exchange:*, group:*, transaction:*, broker", "linn"],
        ["operator", "2", "broker, topic:*", "the file"],
        ["shop", "3", "topic:orders.*, broker, topic:prices", "a command"],
    ]
    assert quick("roles", "alter", "shop", "topic:prices=see", "--remove", "broker").stdout == "changed shop\n"
    assert quick("roles", "alter", "shop", "topic:prices=see").stdout == "shop has these rules already\n"
    shown = quick("roles", "describe", "shop").stdout
    assert shown.startswith("shop, from a command\n")
    assert rows(shown) == [["topic:orders.*", "see, publish"], ["topic:prices", "see"]]
    assert quick("roles", "alter", "shop", "--remove", "broker").returncode == 2
    assert quick("roles", "alter", "shop").returncode == 2
    assert quick("roles", "alter", "operator", "topic:x=see").returncode == 3
    assert quick("roles", "delete", "shop", "--yes").stdout == "deleted shop\n"
    assert quick("roles", "describe", "shop").returncode == 1


@pytest.mark.parametrize("rule", ["topic:orders", "=see", "topic:orders="])
def test_a_rule_that_is_none_is_a_usage_error(quick, rule: str) -> None:
    done = quick("roles", "create", "wrong", rule)
    assert (done.returncode, done.stdout) == (2, "")
    assert "RESOURCE=OPERATION" in done.stderr
    assert quick("roles", "describe", "wrong").returncode == 1


def test_a_user_is_made_listed_altered_and_deleted(quick, line_of) -> None:
    quick("roles", "create", "clerk", "topic:orders=publish")
    made = ("users", "create", "ada", "--role", "clerk", "--role", "operator", "--certificate", "ada.example")
    assert quick(*made).stdout == "created ada\n"
    assert quick(*made).stdout == "ada exists with these settings\n"
    assert rows(quick("users").stdout) == [
        ["ada", "clerk, operator", "certificate", "a command"],
        ["anonymous", "administrator", "", "the file"],
        ["root", "operator", "", "the file"],
    ]
    done = quick(
        "users",
        "alter",
        "ada",
        "--remove-role",
        "operator",
        "--add-role",
        "clerk",
        "--uid",
        "7",
        "--limit",
        "requests_per_s=100",
    )
    assert done.stdout == "changed ada\n"
    assert json.loads(quick("users", "describe", "ada", "--json").stdout) == {
        "user": "ada",
        "roles": ["clerk"],
        "has_password": False,
        "certificate": "ada.example",
        "uid": 7,
        "limits": {"requests_per_s": 100},
        "in_file": False,
    }
    assert (
        quick("users", "alter", "ada", "--certificate", "", "--uid", "-1", "--limit", "requests_per_s=0").stdout
        == "changed ada\n"
    )
    assert quick("users", "alter", "ada", "--uid", "-1").stdout == "ada has these settings already\n"
    assert rows(quick("users", "describe", "ada").stdout) == [
        *(["roles", "clerk"], ["password", "none"], ["certificate", "none"], ["uid", "none"]),
        ["from", "a command"],
    ]
    assert quick("users", "alter", "ada").returncode == 2
    done = quick("users", "alter", "ada", "--add-role", "clark")
    assert "[auth.unknown]" in line_of(done.stderr)
    assert quick("users", "alter", "root", "--uid", "7").returncode == 3
    assert quick("users", "delete", "ada", "--yes").stdout == "deleted ada\n"
    assert quick("roles", "delete", "clerk", "--yes").stdout == "deleted clerk\n"


def test_can_names_the_roles_and_ends_with_1_for_no(quick, line_of) -> None:
    assert quick("can", "administrator", "admin", "broker").stdout == "yes: administrator\n"
    allowed = quick("can", "root", "browse", "topic:orders")
    assert (allowed.stdout, allowed.returncode) == ("yes: operator\n", 0)
    for asked in (("root", "publish", "topic:orders"), ("nobody", "see", "broker")):
        denied = quick("can", *asked)
        assert (denied.stdout, denied.stderr, denied.returncode) == ("no\n", "", 1)
    assert json.loads(quick("can", "nobody", "see", "broker", "--json").stdout) == {"allowed": False, "roles": []}
    for wrong in (("root", "read", "topic:orders"), ("root", "see", "orders")):
        done = quick("can", *wrong)
        assert done.returncode == 3
        assert line_of(done.stderr)


def test_where_everybody_may_do_everything_can_says_so(within, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        done = within("can", "nobody", "publish", "topic:orders", url=process.url)
    assert (done.stdout[:5], done.returncode) == ("yes: ", 0)
    assert "neither roles, users nor logins" in done.stdout


# --- passwords -------------------------------------------------------------------------------------------------------


def test_a_password_comes_from_a_file_or_a_pipe(quick, linn, run, line_of, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("correct horse\nanother line\n")
    file.chmod(0o600)
    assert quick("users", "create", "eve", "--password-file", str(file)).stdout == "created eve\n"
    assert json.loads(quick("users", "describe", "eve", "--json").stdout)["has_password"]
    assert quick("users", "alter", "eve", "--scram", "").stdout == "changed eve\n"
    assert linn("users", "alter", "eve", "--password", stdin="secret\n").stdout == "changed eve\n"
    assert json.loads(quick("users", "describe", "eve", "--json").stdout)["has_password"]
    for first, second in ((("--password-file", str(file)), ""), ((), "correct horse\n")):
        made = run("users", "verifier", *first, stdin=second).stdout
        assert Verifier.parse(made.strip()).accepts("correct horse")
        assert not Verifier.parse(made.strip()).accepts("correct horse\n")
    assert quick("users", "create", "eve2", "--password", "--password-file", str(file)).returncode == 2
    (tmp_path / "open").write_text("secret\n")
    (tmp_path / "open").chmod(0o640)
    file.write_text("\n")
    for wrong in (str(file), str(tmp_path), str(tmp_path / "none"), str(tmp_path / "open")):
        done = quick("users", "verifier", "--password-file", wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--password-file" in done.stderr
    assert "is empty" in line_of(run("users", "verifier", stdin="\n").stderr)
    quick("users", "delete", "eve", "--yes")


AT_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
"""Runs a command at a terminal of its own."""


@pytest.mark.parametrize(
    ("typed", "said", "code"),
    [
        (b"secret\nsecret\n", b"SCRAM-SHA-256$", 0),
        (b"secret\nsecrte\n", b"the two passwords differ", 1),
        (b"\x04", b"no password was typed", 1),
    ],
)
def test_at_a_terminal_a_password_is_typed_twice_and_not_shown(typed: bytes, said: bytes, code: int) -> None:
    command = [sys.executable, "-c", AT_A_TERMINAL, sys.executable, "-m", "linn", "users", "verifier"]
    shown, lines = b"", typed.splitlines(keepends=True)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as asking:
        assert asking.stdin is not None
        assert asking.stdout is not None
        while part := asking.stdout.read(4096):
            shown += part
            if lines and shown.endswith((b"Password: ", b"Again: ")):
                asking.stdin.write(lines.pop(0))
    assert asking.returncode == code
    assert said in shown
    assert b"secr" not in shown
