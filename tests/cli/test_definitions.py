"""`linn definitions`: what one broker has is on another, and a file that can't be imported whole changes nothing."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import linn.sync
from linn.cli.definitions.file import DefinitionFile
from linn.core.config.toml_source import TomlSource
from linn.testing.process import BrokerProcess

HEAD = """
[storage.fast]
engine = "dram"
[delivery.patient]
semantics = "at-least-once"
lease = "7m"
"""
EVERYTHING = """
[exchanges.spare]
[exchanges."odd.name"]
type = "topic"
alternate = "spare"
[exchanges.rules]
type = "content"
[exchanges.cards]
type = "headers"
[exchanges.fan]
type = "fanout"
[[exchanges.fan.bindings]]
exchange = "odd.name"
key = "#"
[exchanges.spread]
type = "consistent-hash"
hash_on = "label.customer"
[topics."jobs.south"]
dead_letter_exchange = "fan"
dead_letter_key = "north"
[topics."jobs.north"]
dead_letter = "graves"
max_deliveries = 4
lease = "90s"
redelivery_delay = "5s"
redelivery_delay_max = "1h"
redelivery_backoff = "exponential"
message_bytes_max = "64KiB"
bytes_max = "64MiB"
overflow = "drop-head"
[[topics."jobs.north".bindings]]
exchange = "rules"
when = 'label.delay > 60 and header.note = "a \\"b\\" \\\\ é"'
[[topics."jobs.north".bindings]]
exchange = "cards"
match = "all"
labels = { format = "pdf", pages = 3 }
headers = { "content-type" = "application/pdf" }
[topics.graves]
dead_letter = "late"
[topics.late]
dead_letter = "graves"
storage = "fast"
[topics.visits]
kind = "stream"
partitions = 3
partitioner = "sticky"
retention = "forever"
retention_bytes = "1GiB"
[[topics.visits.bindings]]
exchange = "spread"
key = "2"
[topics.ledger]
kind = "both"
delivery = "patient"
[[topics.ledger.bindings]]
exchange = "odd.name"
key = "a.*"
[topics.prices]
delivery = "at-most-once"
"""


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker without a topic, that has the storage and delivery which EVERYTHING names."""
    (tmp_path / "empty").mkdir()
    with BrokerProcess(tmp_path / "empty", HEAD) as process:
        yield process


@pytest.fixture
def export(within, tmp_path: Path) -> str:
    """The export of a broker with EVERYTHING, with a binding that was made live."""
    (tmp_path / "full").mkdir()
    with BrokerProcess(tmp_path / "full", HEAD + EVERYTHING) as full:
        with linn.sync.connect(full.url) as client:
            client.admin.bind("odd.name", "graves", "live.#")
        done = within("definitions", "export", url=full.url)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "export.toml").write_text(done.stdout)
    return str(done.stdout)


def test_what_is_exported_and_imported_is_exported_again_byte_by_byte(
    within, tmp_path: Path, empty: BrokerProcess, export: str
) -> None:
    file = str(tmp_path / "export.toml")
    dry = within("definitions", "import", file, "--dry-run", url=empty.url)
    assert within("definitions", "export", url=empty.url).stdout == ""
    done = within("definitions", "import", file, url=empty.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[2:] for line in dry.stdout.splitlines()] == [
        line.split()[1:] for line in done.stdout.splitlines()
    ]
    assert within("definitions", "export", url=empty.url).stdout == export
    again = within("definitions", "import", file, url=empty.url)
    assert again.stdout == "nothing to do: 6 exchanges, 7 topics, 6 bindings as the file says\n"
    os.kill(empty.pid, signal.SIGKILL)
    empty.wait()
    empty.start()
    assert within("definitions", "export", url=empty.url).stdout == export


def test_an_export_is_a_configuration(within, tmp_path: Path, export: str) -> None:
    (tmp_path / "linn.toml").write_text(HEAD + export)
    assert within("check", str(tmp_path / "linn.toml")).returncode == 0
    (tmp_path / "from-file").mkdir()
    with BrokerProcess(tmp_path / "from-file", HEAD + export) as served:
        assert within("definitions", "export", url=served.url).stdout == export


def test_a_file_is_written_once_and_read_from_a_pipe(quick, linn, line_of, tmp_path: Path) -> None:
    quick("topics", "create", "written")
    file = tmp_path / "new.toml"
    assert quick("definitions", "export", str(file)).stdout == f"wrote {file}\n"
    assert file.read_text() == quick("definitions", "export").stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "the options of a sink may be secrets"
    again = quick("definitions", "export", str(file))
    assert again.returncode == 3
    assert line_of(again.stderr).endswith("exists already, and was not changed [config.exists]")
    done = linn("definitions", "import", "-", stdin='[topics.written]\n[topics."from.a.pipe"]\n')
    assert (done.stdout, done.stderr) == ("created topic from.a.pipe\nunchanged: 1 topic\n", "")


def test_an_import_starts_no_pipeline(linn, quick) -> None:
    text = '[topics.first]\n[topics.sunk]\nkind = "stream"\nspark_sink = { path = "lake" }\n'
    done = linn("definitions", "import", "-", stdin=text)
    assert done.returncode == 3
    assert "stdin:4: topics.sunk.spark_sink: comes from the configuration file alone" in done.stderr
    assert "[config.not_live]" in done.stderr
    assert {"first", "sunk"}.isdisjoint(topic["name"] for topic in json.loads(quick("topics", "--json").stdout))
    done = quick("topics", "create", "sunk", "kind=stream", "spark_sink.path=lake")
    assert (done.returncode, done.stderr.strip().rpartition(" ")[2]) == (3, "[config.not_live]")


CHANGES = """
[broker]
name = "another"
[exchanges.shop]
type = "topic"
[exchanges.new]
[[exchanges.new.bindings]]
exchange = "shop"
key = "new.#"
[topics.orders]
retention = "4d"
partitions = 3
dead_letter = "later"
[[topics.orders.bindings]]
exchange = "shop"
key = "order.#"
[[topics.orders.bindings]]
exchange = "new"
key = "x"
[topics.later]
"""


def test_what_is_there_is_altered_and_what_the_file_does_not_name_stays(
    within, tmp_path: Path, empty: BrokerProcess
) -> None:
    with linn.sync.connect(empty.url) as client:
        admin = client.admin
        admin.create_exchange("shop", type="topic")
        admin.create_topic("orders", kind="both", retention="2d", lease="5m", partitions=3)
        admin.create_topic("unnamed")
        admin.bind("shop", "orders", "order.#")
        admin.bind("shop", "unnamed", "kept")
        (tmp_path / "changes.toml").write_text(CHANGES)
        command = ("definitions", "import", str(tmp_path / "changes.toml"))
        dry = within(*command, "--dry-run", url=empty.url)
        assert dry.stdout.splitlines() == [
            "would create exchange new",
            "would create topic later",
            "would alter topic orders: retention, dead_letter",
            'would bind topic orders: exchange = "new", key = "x"',
            "unchanged: 1 exchange, 1 binding",
        ]
        assert "changes.toml: [broker] is ignored" in dry.stderr
        assert [topic["name"] for topic in admin.topics()] == ["orders", "unnamed"]
        done = within(*command, "--json", url=empty.url)
        assert [change["done"] for change in json.loads(done.stdout)["changes"]] == [True] * 4
        orders = admin.topic("orders")["settings"]
        assert (orders["kind"], orders["retention"], orders["lease"]) == ("both", "4d", "5m")
        assert (orders["dead_letter"], len(orders["bindings"])) == ("later", 2)
        assert {"topic": "unnamed", "key": "kept", "arguments": {}} in admin.exchange("shop")["bindings"]
        assert (
            within(*command, url=empty.url).stdout
            == "nothing to do: 2 exchanges, 2 topics, 3 bindings as the file says\n"
        )


WRONG = """\
[exchanges.fan]
type = "topic"
[exchanges.odd]
colour = "red"
[exchanges.plain]
alternate = "fan"
[[exchanges.plain.bindings]]
exchange = "fan"
[topics.visits]
partitions = 1
retentoin = "4d"
[topics.sized]
partitions = 1
[topics.new]
storage = "nowhere"
leese = "1m"
[topics.more]
partitions = 5000
dead_letter = "nobody"
[topics."bad name"]
[[topics.sized.bindings]]
exchange = "cards"
key = "takes no key"
"""
WRONG_LINES = [
    (
        '2: exchanges.fan.type: is "fanout" on the broker, and can\'t change while the exchange exists',
        "config.not_live",
    ),
    (
        "4: exchanges.odd.colour: unknown key; known: alternate, bindings, delete_when, internal, lifetime, type",
        "config.unknown_key",
    ),
    ("8: exchanges.plain.bindings[0].exchange: exchanges would lead in a circle", "exchange.binding_invalid"),
    ("9: topics.visits: partitions can't change while the topic exists (partitions may only grow)", "config.not_live"),
    ("12: topics.sized: partitions can't change while the topic exists (partitions may only grow)", "config.not_live"),
    ('11: topics.visits.retentoin: unknown key; did you mean "retention"?', "config.unknown_key"),
    ('16: topics.new.leese: unknown key; did you mean "lease"?', "config.unknown_key"),
    ("15: topics.new.storage: there is no storage", "plugin.unknown"),
    ("18: topics.more.partitions: must be a whole number <= 4096", "config.invalid"),
    ('19: topics.more.dead_letter: there is no topic "nobody"', "config.invalid"),
    ("20: topics.\"bad name\": a name is made of A-Z, a-z, 0-9, '.', '_' and '-'", "config.invalid"),
    ("23: topics.sized.bindings[0].key: a headers exchange routes by labels", "exchange.binding_invalid"),
]


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--json",)], ids=str)
def test_of_a_file_with_errors_all_are_shown_and_nothing_is_imported(
    within, tmp_path: Path, empty: BrokerProcess, more: tuple[str, ...]
) -> None:
    with linn.sync.connect(empty.url) as client:
        client.admin.create_exchange("fan", type="fanout")
        client.admin.create_exchange("cards", type="headers")
        client.admin.create_topic("visits", kind="stream", partitions=3)
        client.admin.create_topic("sized", partitions=3)
    before = within("definitions", "export", url=empty.url).stdout
    file = tmp_path / "wrong.toml"
    file.write_text(WRONG)
    done = within("definitions", "import", str(file), *more, url=empty.url)
    assert done.returncode == 3
    *lines, last = done.stderr.splitlines()
    assert last == f"linn: nothing was imported: {len(WRONG_LINES)} errors", done.stderr
    missing = [
        said
        for said, code in WRONG_LINES
        if not any(line.startswith(f"linn: {file}:{said}") and line.endswith(f"[{code}]") for line in lines)
    ]
    assert missing == [], done.stderr
    assert within("definitions", "export", url=empty.url).stdout == before


def test_links_of_a_file_and_of_the_broker_may_not_close_a_circle_together() -> None:
    there = {
        "exchanges": {
            "a": {"type": "direct"},
            "b": {"type": "direct"},
            "c": {"type": "direct", "alternate": "a"},
        },
        "topics": {},
    }
    text = '[[exchanges.b.bindings]]\nexchange = "a"\n[[exchanges.c.bindings]]\nexchange = "b"\n'
    found = DefinitionFile(TomlSource(text, "linn.toml"), there).problems
    assert [(problem.line, problem.text) for problem in found.found] == [
        (4, "exchanges would lead in a circle: b -> c -> a -> b")
    ]


def test_what_the_configuration_of_the_broker_says_otherwise_is_warned_of(within, tmp_path: Path) -> None:
    (tmp_path / "apply.toml").write_text('[topics.orders]\nlease = "5m"\n')
    with BrokerProcess(tmp_path, '[topics.orders]\nlease = "1m"\n') as process:
        for more, said in (("--dry-run",), "would alter"), ((), "altered"):
            done = within("definitions", "import", str(tmp_path / "apply.toml"), *more, url=process.url)
            assert done.stdout == f"{said} topic orders: lease\n"
            assert done.stderr.startswith("linn: warning: ")
            assert done.stderr.endswith('sets lease = "1m": it counts at the next start\n')


def test_ctrl_c_says_how_far_it_got_and_importing_again_goes_on(within, tmp_path: Path, empty: BrokerProcess) -> None:
    file = tmp_path / "many.toml"
    file.write_text("".join(f"[topics.t{number}]\n" for number in range(400)))
    command = [sys.executable, "-m", "linn", "definitions", "import", str(file), "--url", empty.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as importing:
        assert importing.stdout is not None
        assert importing.stderr is not None
        assert importing.stdout.readline() == "created topic t0\n"
        importing.send_signal(signal.SIGINT)
        made = 1 + len(importing.stdout.readlines())
        assert importing.wait(30) == 130
        said = f"{made} of 400 changes made; importing again goes on from there, and perhaps one more"
        assert importing.stderr.read() == f"linn: interrupted: {said}\n"
    done = within("definitions", "import", str(file), url=empty.url)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) in (400 - made, 401 - made)  # With the line about what is unchanged.
    assert (
        within("definitions", "import", str(file), url=empty.url).stdout
        == "nothing to do: 400 topics as the file says\n"
    )


def test_a_broker_that_ends_midway_is_said_with_how_far_it_got(tmp_path: Path, empty: BrokerProcess) -> None:
    file = tmp_path / "many.toml"
    file.write_text("".join(f"[topics.t{number}]\n" for number in range(400)))
    command = [sys.executable, "-m", "linn", "definitions", "import", str(file), "--url", empty.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as importing:
        assert importing.stdout is not None
        assert importing.stderr is not None
        importing.stdout.readline()
        empty.kill()
        importing.stdout.read()
        assert importing.wait(30) == 4
        (said,) = importing.stderr.read().splitlines()
    assert " of 400 changes made; importing again goes on from there [connection." in said
