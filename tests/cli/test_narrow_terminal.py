"""Tables on a terminal of 80 columns: long names fold, and nothing is cropped or wider than the terminal.

Heads break between words only, and numbers and usual names not at all: less important columns are left out instead.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lost_consumer import decide_and_leave
from open_transaction import open_transaction
from reference_pages.commands import commands

import linn.sync
from linn.cli.render.console import console
from linn.cli.render.queue_table import STATES, print_queues
from linn.testing.process import BrokerProcess

COLUMNS = 80
FRAME = "│┃"
GUIDES = "│├└─ "
"""Characters that the trees of `linn route explain` draw before their texts."""
JOBS, VISITS, GRAVES, LEDGERS, ORDERS, SHOP, SPARE = (
    f"{name}.of-the-warehouse-in-rotterdam.with-a-name-that.no-terminal-has-room-for"
    for name in ("jobs", "visits", "graves", "ledgers", "orders", "shop", "spare")
)
SENTENCES = (
    "It goes to ",
    "1 message, each to ",
    "scheduled 1 message for ",
    "warning ",
    "hint ",
    "linn.toml is good",
    f"{VISITS}: Spark is ",
)
"""Beginnings of lines that stand alone: the terminal wraps them, so that they can be copied and searched whole."""
MESSAGE = "5f0c954e-7d47-4b1c-9a1e-0d6a5f7f9a11"
GROUP = "readers-" + "of-many-things." * 6 + "end"
LISTENER, ADDRESS = "for-the-machines-of-the-warehouse-in-rotterdam", "[2001:db8:85a3:8d3:1319:8a2e:370:7348]:15466"
CONFIG = f"""
[listeners.{LISTENER}]
address = "{ADDRESS}"
plaintext = true
login = "none"
[exchanges."{SHOP}"]
type = "topic"
alternate = "{SPARE}"
[exchanges."{SPARE}"]
[topics."{GRAVES}"]
[topics."{JOBS}"]
dead_letter = "{GRAVES}"
max_deliveries = 3
status = "1h"
bindings = [{{exchange = "{SHOP}", key = "{JOBS}"}}]
"""
ROLE, USER = "packs-" + "the-warehouse." * 4 + "end", "packer@" + "the-warehouse." * 4 + "end"
SHOWN: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("topics", "list"), (JOBS, VISITS)),
    (("topics", "describe", JOBS), (GRAVES,)),
    (("exchanges", "list"), (SHOP, SPARE)),
    (("exchanges", "describe", SHOP), (SPARE, JOBS)),
    (("bindings", "list"), (SHOP, SPARE, JOBS)),
    (("bindings", "describe", SHOP), (SHOP, SPARE, JOBS)),
    (("groups", "list"), (VISITS, GROUP)),
    (("groups", "describe", GROUP), ()),
    (("queues", "list"), (JOBS, GRAVES)),
    (("queues", "describe", JOBS), ()),
    (("status", JOBS, MESSAGE), (MESSAGE,)),
    (("publish", JOBS, "later", "--delay", "40d"), (JOBS,)),
    (("scheduled", "list", JOBS), ("0/0",)),
    (("scheduled", "list", JOBS, "--values"), ("0/0", "later")),
    (("scheduled", "describe", JOBS, "0/0"), ("0/0", "later")),
    (("subscriptions", "list"), (VISITS, GROUP)),
    (("subscriptions", "describe", VISITS, GROUP), ()),
    (("dead-letters", "list"), (GRAVES, JOBS)),
    (("dead-letters", "list", GRAVES), (JOBS,)),
    (("dead-letters", "describe", GRAVES, "0/0"), (JOBS,)),
    (("deliveries", "list"), (LEDGERS, GROUP)),
    (("deliveries", "describe", LEDGERS, "0", "DELIVERY"), (LEDGERS, GROUP)),
    (("transactions", "list"), (GROUP,)),
    (("transactions", "describe", GROUP), (GROUP, ORDERS)),
    (("spark", "status"), (VISITS,)),
    (("connections", "list"), ()),
    (("cluster", "status"), ()),
    (("roles", "list"), (ROLE,)),
    (("roles", "describe", ROLE), (JOBS,)),
    (("users", "list"), (USER, ROLE)),
    (("users", "describe", USER), (ROLE,)),
    (("plugins", "list"), ("consistent-hash",)),
    (("plugins", "describe", "dram"), ()),
    (("top", "--once", "--interval", "0.1"), (JOBS, VISITS, GROUP)),
    (("route", "explain", "--exchange", SHOP, "--routing-key", JOBS), (SHOP, JOBS)),
    (("route", "explain", "--exchange", SHOP, "--routing-key", "else"), (SHOP, SPARE)),
    (("route", "diff", "linn.toml", "other.toml", "--sample", "sample.json"), (SHOP, JOBS, VISITS)),
    (("check", "linn.toml"), (SHOP, SPARE, JOBS, GRAVES, LISTENER, ADDRESS)),
    (("doctor", "linn.toml"), (ADDRESS,)),
    (("bench", "publish", JOBS, "--count", "10"), ()),
    (("bench", "consume", JOBS, "--count", "10"), ()),
    (("bench", "latency", "--count", "10"), ()),
    (("bench", "soak", "--duration", "300ms", "--rate", "1000/s"), ()),
]
"""(command, names that are whole in it)"""
LOADS = ("bench", "route", "doctor")
"""Commands whose heads depend on no name, and that take long or need more files."""
WITHOUT_A_TABLE = {
    *(
        "scheduled cancel",
        "scheduled move",
        "serve",
        "init",
        "request",
        "consume",
        "browse",
        "move",
        "copy",
        "purge",
        "recover",
        "dump",
        "completion",
    ),
    *(f"topics {verb}" for verb in ("create", "alter", "delete")),
    *(f"exchanges {verb}" for verb in ("create", "delete")),
    *(f"bindings {verb}" for verb in ("create", "delete")),
    *(f"groups {verb}" for verb in ("reset", "delete")),
    *(f"subscriptions {verb}" for verb in ("create", "delete")),
    *(
        "deliveries resolve",
        "transactions abort",
        "connections close",
        "ping",
        "definitions export",
        "definitions import",
    ),
    *("dead-letters replay", "plugins new", "demo", "can", "whoami"),
    *(f"audit {verb}" for verb in ("tail", "export", "verify")),
    *(f"{noun} {verb}" for noun in ("users", "roles") for verb in ("create", "alter", "delete")),
    *(f"cluster {verb}" for verb in ("drain", "undrain", "remove", "reassign", "cancel")),
    *(f"cluster {verb}" for verb in ("moves", "balance", "elect", "upgrade")),
    "users verifier",
    *(f"spark {verb}" for verb in ("start", "stop", "restart", "logs", "files")),
}
"""Commands that print lines, or as the demo a picture of their own."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that shows pipelines and starts none."""
    config = '[spark]\nenabled = false\nlive = true\npaths = ["."]\n'
    with BrokerProcess(tmp_path_factory.mktemp("broker"), config) as process:
        yield process


@pytest.fixture(scope="module")
def furnished(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Create one of each kind of object that is shown, with long names; the id of the decided delivery."""
    with linn.sync.connect(broker.url) as client:
        admin = client.admin
        admin.create_topic(GRAVES)
        admin.create_topic(JOBS, dead_letter=GRAVES, max_deliveries=3, status="1h")
        admin.create_topic(VISITS, kind="stream")
        admin.perform("topic.alter", name=VISITS, settings={"spark_sink": {"path": "lake"}})
        admin.create_subscription(VISITS, GROUP)
        admin.create_role(ROLE, {f"topic:{JOBS}": ["consume"]})
        admin.create_user(USER, roles=[ROLE])
        admin.create_exchange(SPARE)
        admin.create_exchange(SHOP, type="topic", alternate=SPARE)
        admin.bind(SHOP, JOBS, JOBS)
        admin.perform("exchange.bind", exchange=SHOP, key="x", arguments={}, target_exchange=SPARE)
        for topic in (JOBS, VISITS):
            with client.producer(topic) as producer:
                producer.publish_many([b"one", b"two"])
        with client.consumer(JOBS) as consumer:
            next(consumer).reject().wait()
        with client.consumer(VISITS, group=GROUP) as consumer:
            next(consumer).ack().wait()
        while admin.topic(GRAVES)["queue"]["unsettled"] == 0:
            pass  # Each look is a round trip, in which the broker goes on.
        admin.create_topic(LEDGERS, delivery="exactly-once")
        with client.producer(LEDGERS) as producer:
            producer.publish(b"one", key=b"key")
    with open_transaction(broker.url, GROUP, ORDERS, GROUP):
        yield str(decide_and_leave(broker.url, LEDGERS, GROUP, tmp_path_factory.mktemp("store")))


def whole_cells(text: str) -> list[str]:
    """The cells of each column, joined; and all lines of trees, joined."""
    columns: dict[int, str] = {}
    for line in text.splitlines():
        if line[:1] in FRAME:
            for place, cell in enumerate(line.replace("┃", "│").split("│")[1:-1]):
                columns[place] = columns.get(place, "") + cell.strip()
    joined = "".join(line.lstrip(GUIDES).rstrip() for line in text.splitlines())
    return [*columns.values(), joined]


@pytest.mark.parametrize(("command", "names"), SHOWN, ids=lambda part: " ".join(part)[:40])
def test_names_fold_and_nothing_is_cropped(
    quick: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    furnished: str,
    command: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    (tmp_path / "linn.toml").write_text(CONFIG)
    (tmp_path / "other.toml").write_text(CONFIG.replace(f'"{JOBS}"]', f'"{VISITS}"]'))
    (tmp_path / "sample.json").write_text(json.dumps({"value": "v", "routing_key": JOBS}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    shown = quick(*[furnished if word == "DELIVERY" else word for word in command]).stdout
    assert shown
    assert "…" not in shown
    assert [line for line in shown.splitlines() if len(line) > COLUMNS and not line.startswith(SENTENCES)] == []
    assert [name for name in names if not any(name in cell for cell in whole_cells(shown))] == []


def head_words(text: str) -> set[str]:
    return {word for line in text.splitlines() if line[:1] == "┃" for word in line.replace("┃", " ").split()}


@pytest.mark.parametrize("command", [command for command, _ in SHOWN if command[0] not in LOADS], ids=" ".join)
def test_no_word_of_a_head_is_broken(
    quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, furnished: str, command: tuple[str, ...]
) -> None:
    (tmp_path / "linn.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    words = [furnished if word == "DELIVERY" else word for word in command]
    in_a_pipe = head_words(quick(*words).stdout)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert head_words(quick(*words).stdout) <= in_a_pipe


def test_usual_names_and_numbers_are_whole_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    names, number = ("thumbnails-of-photos", "delays-dead"), 580_301
    counts = dict.fromkeys(("unsettled", *STATES, "oldest_ready_s", "missed", "expired", "consumers"), number)
    console.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(COLUMNS))
        print_queues([{"topic": name, **counts} for name in names], {"topic": "queue"})
    console.cache_clear()
    shown = capsys.readouterr().out
    assert [name for name in names if name not in shown] == []
    assert shown.count(f"{number:,}") == 10, "5 columns of 2 queues"
    assert {"unsettled", "consumers"} <= head_words(shown)


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_help_is_filled_to_the_width_of_the_terminal(within: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", str(COLUMNS))
    lines = [line.strip() for line in within(*path.split()[1:], "--help").stdout.partition("╭")[0].splitlines()]
    margins = 2
    for line, following in itertools.pairwise(lines):
        if line and following and not following.startswith("•"):
            assert len(line) + 1 + len(following.split()[0]) > COLUMNS - margins


def test_every_command_is_looked_at() -> None:
    """A command that is new prints no table, or is shown above."""
    paths = {path.removeprefix("linn ") for path, command in commands() if not hasattr(command, "commands")}
    looked_at = {
        max((path for path in paths if f"{' '.join(command)} ".startswith(f"{path} ")), key=len) for command, _ in SHOWN
    }
    assert looked_at | WITHOUT_A_TABLE == paths
    assert looked_at & WITHOUT_A_TABLE == set()
