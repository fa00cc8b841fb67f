"""Completion scripts: shells take them, and linn answers what they ask."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from lost_consumer import decide_and_leave
from open_transaction import open_transaction
from reference_pages.commands import commands

import linn.sync
from linn.cli.completion import ANSWER_S
from linn.testing.process import BrokerProcess

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.mark.parametrize("shell", CHECKS)
def test_a_script_is_one_of_its_shell(within, tmp_path: Path, shell: str) -> None:
    script = within("completion", shell).stdout
    assert "_LINN_COMPLETE=complete_" in script
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    file = tmp_path / "completion"
    file.write_text(script)
    checked = subprocess.run([*CHECKS[shell], str(file)], capture_output=True, text=True, timeout=300)
    assert (checked.stderr, checked.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("linn gr", ["groups"]),
        ("linn groups re", ["reset"]),
        ("linn publish t --ro", ["--routing-key"]),
        ("linn nothing-like-it", []),
    ],
)
def test_bash_is_offered_what_could_come_next(words: str, offered: list[str]) -> None:
    assert completions(words) == offered


PATIENT = "import linn.cli.completion as it; it.ANSWER_S = {answer_s}; from linn.cli.main import main; main()"
"""Waits for a broker on a slow machine, too."""


def completions(words: str, url: str = "linn://127.0.0.1:1", answer_s: float = 20) -> list[str]:
    """The completions that bash is offered for the last word; nothing else may be printed."""
    question = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_LINN_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", PATIENT.format(answer_s=answer_s)],
        env=os.environ | question | {"LINN_URL": url},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture(scope="module")
def furnished(broker: BrokerProcess) -> str:
    """A broker with a queue, two streams, a group, two exchanges, a role and a user."""
    with linn.sync.connect(broker.url) as client:
        client.admin.create_topic("jobs")
        client.admin.create_topic("prices", kind="stream")
        client.admin.create_topic("visits", kind="stream")
        client.admin.create_exchange("shop")
        client.admin.create_exchange("spare")
        client.admin.create_role("clerks", {"topic:jobs": ["publish"]})
        client.admin.create_user("ada", ["clerks"])
        with client.producer("prices") as producer, client.consumer("prices", group="readers") as consumer:
            producer.publish(b"1")
            next(consumer).ack().wait()
    return broker.url


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("linn topics describe ", ["jobs", "prices", "visits"]),
        ("linn topics delete pr", ["prices"]),
        ("linn topics create ", []),
        ("linn queues describe ", ["jobs"]),
        ("linn queues show ", ["jobs"]),
        ("linn groups describe ", ["readers"]),
        ("linn groups delete re", ["readers"]),
        ("linn consume prices --group ", ["readers"]),
        ("linn publish v", ["visits"]),
        ("linn publish visits j", []),
        ("linn publish --exchange ", ["shop", "spare"]),
        ("linn publish --exchange shop j", []),
        ("linn exchanges describe sh", ["shop"]),
        ("linn bindings create shop ", ["jobs", "prices", "visits"]),
        ("linn bindings create --to-exchange shop ", ["shop", "spare"]),
        ("linn move jobs ", ["jobs", "prices", "visits"]),
        ("linn route explain --exchange s", ["shop", "spare"]),
        ("linn users describe ", ["ada"]),
        ("linn users create grace --role ", ["administrator", "clerks"]),
        ("linn users alter ada --add-role a", ["administrator"]),
        ("linn roles delete cl", ["clerks"]),
        ("linn can ", ["ada"]),
        ("linn can ada con", ["configure", "consume"]),
    ],
)
def test_names_come_from_the_broker(furnished: str, words: str, offered: list[str]) -> None:
    assert completions(words, furnished) == offered


def test_decided_deliveries_are_offered_by_partition_and_id(broker: BrokerProcess, tmp_path: Path) -> None:
    with linn.sync.connect(broker.url) as client:
        client.admin.create_topic("ledgers", delivery="exactly-once", partitions=3)
        with client.producer("ledgers") as producer:
            place = producer.publish(b"1")
        delivery = str(decide_and_leave(broker.url, "ledgers", "ledger-1", tmp_path))
        for verb in ("describe", "resolve"):
            assert completions(f"linn deliveries {verb} ledgers ", broker.url) == [str(place.partition)]
            assert completions(f"linn deliveries {verb} ledgers {place.partition} ", broker.url) == [delivery]
        client.admin.delete_topic("ledgers")


def test_names_of_transactions_are_offered_and_to_abort_only_open_ones(broker: BrokerProcess) -> None:
    with linn.sync.connect(broker.url) as client, client.transaction("audit"):
        pass
    with open_transaction(broker.url, "billing", "accounts", "clerks"):
        assert completions("linn transactions describe ", broker.url) == ["billing", "audit"]
        assert completions("linn transactions abort ", broker.url) == ["billing"]
    with linn.sync.connect(broker.url) as client:
        client.admin.delete_topic("accounts")


def test_names_of_spark_pipelines_are_offered_once(tmp_path: Path) -> None:
    sink = '[topics.NAME]\nkind = "stream"\nspark_sink = { path = "NAME" }\n'
    config = "[spark]\nenabled = false\n" + "".join(sink.replace("NAME", name) for name in ("orders", "returns"))
    with BrokerProcess(tmp_path, config) as broker:
        assert completions("linn spark status ", broker.url) == ["orders", "returns"]
        assert completions("linn spark stop orders ", broker.url) == ["returns"]


def test_the_broker_may_be_an_option(furnished: str) -> None:
    assert completions(f"linn topics describe --url {furnished} j") == ["jobs"]


def test_without_a_broker_nothing_is_offered_or_printed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url in (f"linn://127.0.0.1:{silent.getsockname()[1]}", "linn://127.0.0.1:1", "nonsense"):
            assert completions("linn topics describe ", url, ANSWER_S) == []


def test_a_broker_that_is_too_slow_is_not_waited_for(furnished: str) -> None:
    assert completions("linn topics describe ", furnished, answer_s=0) == []
    assert ANSWER_S <= 0.5


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("linn topics create new ki", ["kind="]),
        ("linn topics alter jobs le", ["lease=", "levels="]),
        ("linn topics create new kind=stream rete", ["retention=", "retention_bytes="]),
        ("linn topics create new retention=1d rete", ["retention_bytes="]),
        ("linn topics create new --retention 1d rete", ["retention_bytes="]),
        ("linn topics create new --kind ", []),
        ("linn exchanges create new ", ["type=", "alternate="]),
    ],
)
def test_keys_of_settings_need_no_broker(words: str, offered: list[str]) -> None:
    assert completions(words) == offered


def test_every_argument_that_names_something_on_the_broker_is_completed() -> None:
    """Names of new objects, files and values are excepted."""
    no_names = {"serve", "init", "check", "doctor", "recover", "completion", "plugins describe", "plugins new", "demo"}
    no_names |= {"topics create", "exchanges create", "route diff", "dump", "connections close"}
    no_names |= {"definitions export", "definitions import", "users create", "roles create"}
    # Their topics are completed; a message is one of thousands.
    no_names |= {"dead-letters describe", "scheduled describe", "scheduled cancel", "scheduled move", "status"}
    no_names |= {"roles alter", "can"}  # Of these, shells would break the resources at their colons.
    bare = {
        path.removeprefix("linn ")
        for path, command in commands()
        for parameter in command.params
        if parameter.param_type_name == "argument" and parameter._custom_shell_complete is None
    }
    assert bare <= no_names


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [("linn que", "queues\n"), ("linn topics create new lea", "compopt -o nospace\nlease=\n")],
)
def test_a_real_bash_completes_a_command(within, tmp_path: Path, words: str, offered: str) -> None:
    (tmp_path / "linn").write_text(f'#!/bin/sh\nexec {sys.executable} -m linn "$@"\n')
    (tmp_path / "linn").chmod(0o755)
    (tmp_path / "script").write_text(within("completion", "bash").stdout)
    ask = (
        f"source {tmp_path}/script; compopt() {{ echo compopt $*; }}; COMP_WORDS=({words}); "
        f'COMP_CWORD={words.count(" ")}; _linn_completion linn; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ask], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == offered
