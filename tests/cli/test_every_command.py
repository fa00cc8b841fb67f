"""Rules for all commands: wrong arguments, no broker, a closed pipe, a full disk; one line and no traceback."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from reference_pages.commands import commands
from typer.testing import CliRunner

import linn
from linn.cli.app import app
from linn.testing.process import BrokerProcess

NOBODY = "linn://127.0.0.1:1"
WITH_BROKER = [
    ("topics",),
    ("topics", "list"),
    ("topics", "describe", "t"),
    ("topics", "create", "t"),
    ("topics", "alter", "t", "retention=1d"),
    ("topics", "delete", "t", "--yes"),
    ("exchanges", "list"),
    ("exchanges", "describe", "x"),
    ("exchanges", "create", "x"),
    ("exchanges", "delete", "x", "--yes"),
    ("bindings", "list"),
    ("bindings", "describe", "x"),
    ("bindings", "create", "x", "t"),
    ("bindings", "delete", "x", "t"),
    ("groups", "list"),
    ("groups", "describe", "g"),
    ("groups", "reset", "g", "--to", "latest", "--yes"),
    ("groups", "delete", "g", "--yes"),
    ("queues", "list"),
    ("queues", "describe", "t"),
    ("subscriptions",),
    ("subscriptions", "list"),
    ("subscriptions", "describe", "t", "s"),
    ("subscriptions", "create", "t", "s"),
    ("subscriptions", "delete", "t", "s", "--yes"),
    ("publish", "t", "value"),
    ("request", "t", "value"),
    ("status", "t", "5f0c954e-7d47-4b1c-9a1e-0d6a5f7f9a11"),
    ("scheduled", "list", "t"),
    ("scheduled", "describe", "t", "0/0"),
    ("scheduled", "cancel", "t", "0/0"),
    ("scheduled", "move", "t", "0/0", "--delay", "1s"),
    ("consume", "t"),
    ("browse", "t"),
    ("move", "t", "u"),
    ("copy", "--to", NOBODY),
    ("dead-letters",),
    ("dead-letters", "list"),
    ("dead-letters", "describe", "t", "0/0"),
    ("dead-letters", "replay", "t"),
    ("deliveries",),
    ("deliveries", "list"),
    ("deliveries", "describe", "t", "0", "1"),
    ("deliveries", "resolve", "t", "0", "1", "--consumer", "c", "--as", "done", "--yes"),
    ("transactions",),
    ("transactions", "list"),
    ("transactions", "describe", "n"),
    ("transactions", "abort", "n", "--yes"),
    ("spark",),
    ("spark", "status"),
    ("spark", "start", "p"),
    ("spark", "stop", "p"),
    ("spark", "restart", "p"),
    ("spark", "logs"),
    ("spark", "files", "p"),
    ("purge", "t", "--yes"),
    ("bench", "publish", "t"),
    ("bench", "consume", "t"),
    ("bench", "latency"),
    ("bench", "soak"),
    ("top", "--once"),
    ("ping",),
    ("whoami",),
    ("cluster",),
    ("cluster", "status"),
    ("cluster", "drain", "1"),
    ("cluster", "undrain", "1"),
    ("cluster", "remove", "1", "--yes"),
    ("cluster", "reassign", "t", "1"),
    ("cluster", "cancel", "t"),
    ("cluster", "moves"),
    ("cluster", "balance"),
    ("cluster", "elect", "t"),
    ("cluster", "upgrade"),
    ("connections",),
    ("connections", "list"),
    ("connections", "close", "1", "--yes"),
    ("users",),
    ("users", "list"),
    ("users", "describe", "u"),
    ("users", "create", "u"),
    ("users", "alter", "u", "--uid", "1"),
    ("users", "delete", "u", "--yes"),
    ("roles",),
    ("roles", "list"),
    ("roles", "describe", "r"),
    ("roles", "create", "r", "topic:t=see"),
    ("roles", "alter", "r", "topic:t=see"),
    ("roles", "delete", "r", "--yes"),
    ("can", "u", "see", "topic:t"),
    ("audit", "tail"),
    ("audit", "export"),
    ("audit", "verify"),
    ("route", "explain", "--exchange", "x"),
    ("definitions", "export"),
    ("definitions", "import", "/dev/null"),
]
ASKING = [command[:-1] for command in WITH_BROKER if command[-1] == "--yes"]
NOT_THERE = {
    "cluster": "[cluster.absent]",
    "connections": "[connection.unknown]",
    "deliveries": "[delivery.wrong_kind]",
    "transactions": "[transaction.unknown]",
}
"""Errors of the commands of ASKING that name a connection that has ended, a delivery or transaction that there is not,
or a node of a broker that is alone.
"""
PRINTING = [("topics",), ("topics", "--json"), ("exchanges", "list"), ("browse", "many"), ("plugins", "list")]


def test_the_list_of_commands_that_talk_to_a_broker_is_whole() -> None:
    talking = {path for path, command in commands() if any("--url" in parameter.opts for parameter in command.params)}
    listed = {f"linn {' '.join(command)} " for command in WITH_BROKER}
    untold = {path for path in talking if not any(command.startswith(f"{path} ") for command in listed)}
    assert untold == {"linn doctor"}, "without a broker it goes on, and says so"


@pytest.mark.parametrize("command", WITH_BROKER, ids=" ".join)
def test_without_a_broker_it_is_one_line_and_4(within, line_of, command: tuple[str, ...]) -> None:
    done = within(*command, url=NOBODY)
    assert done.returncode == 4
    assert "[connection.failed]" in line_of(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize("command", [*WITH_BROKER, ("doctor",), ("bench", "soak", "--producers", "2")], ids=" ".join)
def test_a_url_that_is_none_is_usage(within, command: tuple[str, ...]) -> None:
    for url in ("http://127.0.0.1:1", "linn://127.0.0.1:99999", f"linn+unix:///{'x' * 200}"):
        given, set_before = within(*command, "--url", url), within(*command, url=url)
        for done in (given, set_before):
            assert (done.returncode, done.stdout) == (2, "")
            assert "--url or LINN_URL" in done.stderr


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_an_option_that_there_is_not_ends_with_2(within, path: str) -> None:
    done = within(*path.split()[1:], "--no-such-option")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def stock(broker: BrokerProcess) -> str:
    """Make the things that the commands of ASKING can delete or move: topics, a group, an exchange, a user, a role."""
    with linn.sync.connect(broker.url) as client:
        client.admin.create_topic("q")
        client.admin.create_topic("t", kind="stream")
        client.admin.create_exchange("x")
        client.admin.create_subscription("t", "s")
        client.admin.create_user("u")
        client.admin.create_role("r", {"topic:t": ["see"]})
        with client.producer("t") as producer, client.consumer("t", group="g") as consumer:
            producer.publish(b"1")
            message = consumer.get()
            assert message is not None
            message.ack().wait()
    return broker.url


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_nothing_is_deleted_or_moved_unasked(within, line_of, stock: str, command: tuple[str, ...]) -> None:
    """Stdin is at its end: nobody says yes."""
    done = within(*(("purge", "q") if command[0] == "purge" else command), url=stock)
    assert (done.returncode, done.stdout) == (1, "")
    if command[0] in NOT_THERE:  # Nobody is asked.
        assert line_of(done.stderr).endswith(NOT_THERE[command[0]])
    else:
        assert line_of(done.stderr).startswith("linn: not ")
        assert line_of(done.stderr).endswith('?"; give --yes')
    with linn.sync.connect(stock) as client:
        assert {topic["name"] for topic in client.admin.topics()} >= {"q", "t"}
        assert client.admin.exchange("x")
        assert [place["offset"] for place in client.admin.group("g")["offsets"]] == [1]
        assert client.admin.subscription("t", "s")
        assert client.admin.user("u")
        assert client.admin.role("r")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("topics", "delete", "nothing"), "topic.unknown"),
        (("topics", "delete", "graves"), "topic.invalid"),
        (("purge", "nothing"), "topic.unknown"),
        (("purge", "t"), "delivery.wrong_kind"),
        (("exchanges", "delete", "nothing"), "exchange.unknown"),
        (("exchanges", "delete", "bound"), "topic.invalid"),
        (("groups", "delete", "nothing"), "group.unknown"),
        (("connections", "close", "123456789"), "connection.unknown"),
        (("groups", "delete", "read"), "group.busy"),
        (("subscriptions", "delete", "t", "nothing"), "shared.unknown"),
        (("deliveries", "resolve", "q", "0", "1", "--consumer", "c", "--as", "done"), "delivery.not_current"),
        (("transactions", "abort", "nothing"), "transaction.unknown"),
        (("users", "delete", "nobody"), "auth.unknown"),
        (("roles", "delete", "nothing"), "auth.unknown"),
        (("roles", "delete", "given"), "auth.exists"),
        (("groups", "reset", "read", "--to", "earliest"), "group.busy"),
        (("groups", "reset", "g", "--to", "earliest", "--partition", "7"), "topic.partition_unknown"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else part,
)
def test_impossible_requests_are_refused_before_the_broker_is_asked(
    within, line_of, stock: str, command: tuple[str, ...], code: str
) -> None:
    with linn.sync.connect(stock) as client:
        client.admin.create_topic("graves")
        client.admin.create_topic("mortal", dead_letter="graves")
        client.admin.create_exchange("bound")
        client.admin.bind("bound", "q", "key")
        client.admin.create_role("given", {"topic:t": ["see"]})
        client.admin.create_user("holder", ["given"])
        with client.consumer("t", group="read") as reader:
            if "read" in command:
                assert reader.get() is not None
            done = within(*command, url=stock)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"[{code}]" in line_of(done.stderr)
    assert "not " + command[1] not in done.stderr


@pytest.mark.parametrize(
    ("answer", "said", "code"),
    [
        ("y\n", "deleted jobs", 0),
        ("YES", "deleted jobs", 0),
        ("n\n", "not deleted: the answer was no", 1),
        ("\n", "not deleted: the answer was no", 1),
        ("yes, but\n", "not deleted: the answer was no", 1),
        ("\udcff\n", "not deleted: the answer was no", 1),
    ],
)
def test_an_answer_may_come_through_a_pipe(line_of, stock: str, answer: str, said: str, code: int) -> None:
    with linn.sync.connect(stock) as client:
        client.admin.create_topic("jobs")
    given = answer.encode(errors="surrogateescape")
    done = CliRunner().invoke(app, ["topics", "delete", "jobs", "--url", stock], input=given)
    assert done.exit_code == code
    assert said in (line_of(done.stderr) if code else done.stdout)


def test_at_a_terminal_it_asks_until_it_is_answered_or_interrupted(stock: str) -> None:
    with linn.sync.connect(stock) as client:
        client.admin.create_topic("asked")
    ours, its_end = pty.openpty()
    command = [sys.executable, "-m", "linn", "topics", "delete", "asked", "--url", stock]
    question = b"Delete the topic asked and everything in it? [y/N]: "
    for typed, code in ((b"what\nn\n", 1), (b"\x04", 1), (b"NO\n", 1)):
        with subprocess.Popen(command, stdin=its_end, stderr=subprocess.PIPE) as asking:
            os.write(ours, typed)
            _, said = asking.communicate(timeout=300)
        assert asking.returncode == code
        assert said.count(question) == 1 + (b"what" in typed)
    with subprocess.Popen(command, stdin=its_end, stderr=subprocess.PIPE) as asking:
        assert asking.stderr is not None
        assert asking.stderr.read(len(question)) == question
        asking.send_signal(signal.SIGINT)
        assert asking.wait(30) == 130
        assert asking.stderr.read() == b""
    os.close(ours)
    os.close(its_end)


@pytest.fixture(scope="module")
def furnished(linn, broker: BrokerProcess) -> BrokerProcess:
    """The broker with more in it than a pipe holds. What the tests do with it takes nothing away."""
    for arguments, lines in (
        (("topics", "create", "many", "kind=stream"), 0),
        (("publish", "many"), 20_000),
        (("exchanges", "create", "many"), 0),
    ):
        assert linn(*arguments, stdin="a line that fills a pipe\n" * lines).returncode == 0
    return broker


def environment(url: str) -> dict[str, str]:
    return os.environ | {"LINN_URL": url}


@pytest.mark.parametrize("command", PRINTING, ids=" ".join)
def test_a_closed_pipe_ends_silently_with_141(furnished: BrokerProcess, command: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "linn", *command],
            stdout=write,
            stderr=subprocess.PIPE,
            env=environment(furnished.url),
            timeout=300,
        )
    finally:
        os.close(write)
    assert (done.stderr, done.returncode) == (b"", 141)


@pytest.mark.parametrize(
    ("command", "closed", "code"),
    [
        (("init", "-"), ">&-", 0),
        (("publish", "many"), "<&-", 0),
        (("consume", "many", "--count", "1"), ">&-", 0),
        (("topics", "describe", "no-such-topic"), "2>&-", 1),
        (("topics",), "<&- >&- 2>&-", 0),
    ],
    ids=str,
)
def test_a_stream_that_was_closed_before_is_like_the_null_device(
    furnished: BrokerProcess, command: tuple[str, ...], closed: str, code: int
) -> None:
    script = f'exec "$0" -m linn "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, *command],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        env=environment(furnished.url),
        timeout=300,
    )
    assert (done.stderr, done.returncode) == ("", code)
    assert done.stdout == ("published 0 messages to many\n" if closed == "<&-" else "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_to_a_full_disk_is_one_line(furnished: BrokerProcess, line_of) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "linn", "topics"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment(furnished.url), timeout=300)
    assert done.returncode == 1
    assert "no space left" in line_of(done.stderr.decode())


@pytest.mark.parametrize(
    "command",
    [("consume", "many", "--group", "\udcff"), ("publish", "\udcff", "v"), ("groups", "describe", "\udcff")],
    ids=" ".join,
)
def test_an_argument_that_is_not_utf_8_is_one_line(
    within, line_of, furnished: BrokerProcess, command: tuple[str, ...]
) -> None:
    done = within(*command, url=furnished.url)
    assert done.returncode == 1
    assert line_of(done.stderr).endswith(" is not valid Unicode [message.invalid]")


def test_a_file_of_a_command_imports_nothing_slow() -> None:
    code = "import sys, linn.cli.app; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for slow in (
        "rich",
        "anyio",
        "trio",
        "linn.client",
        "linn.bench",
        "linn.core.config.config",
        "linn.core.broker.broker",
        "linn.core.routing.predicate.predicate",
    ):
        assert slow not in loaded


INTERRUPTED = """
import signal, sys

class Interrupting:
    def find_spec(self, name, *more):
        if name == "{imported}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from linn.cli.main import main
main()
"""


@pytest.mark.parametrize("imported", ["typer", "linn.cli.commands.topics", "anyio", "linn.client.client"])
def test_ctrl_c_ends_silently_with_130_during_any_import(imported: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(imported=imported), "topics", "--url", NOBODY]
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert (done.stderr, done.stdout, done.returncode) == (b"", b"", 130)


def test_little_is_loaded_before_ctrl_c_is_caught() -> None:
    code = "import sys; before = set(sys.modules); import linn.cli.main; print('\\n'.join(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in loaded if name.startswith("linn")} == {
        *("linn", "linn.cli", "linn.cli.main", "linn.cli.main")
    }
    assert "typer" not in loaded


def test_a_broker_that_does_not_know_a_verb_is_said_to_be_older(broker: BrokerProcess) -> None:
    code = (
        "from linn.cli.exit_code import boundary\n"
        "from linn.cli.session import with_client\n"
        f"with boundary(): with_client('{broker.url}', lambda client: client.admin.perform('tea.make'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "is older than this command [protocol.request_unknown]" in done.stderr
    assert "Traceback" not in done.stderr


def test_deleting_a_topic_of_the_file_says_that_it_comes_back(within, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "[topics.orders]\n") as process:
        asked = within("topics", "delete", "orders", url=process.url)
        done = within("topics", "delete", "orders", "--yes", url=process.url)
    warning = "linn.toml has a topic orders: the next start makes it again, empty\n"
    assert asked.stderr.splitlines()[0].endswith(warning.strip())
    assert asked.stderr.startswith("linn: warning: ")
    assert "not deleted" in asked.stderr
    assert done.stdout == "deleted orders\n"
    assert done.stderr.endswith(warning)
