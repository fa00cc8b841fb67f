"""`--json` prints what the page says: every command that has it, against a broker, key by key."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from lost_consumer import decide_and_leave
from open_transaction import open_transaction
from reference_pages.commands import commands
from reference_pages.json_shapes import EACH_LINE, OPTIONAL, SHAPES
from replying import replying

import linn.sync
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.testing.process import BrokerProcess
from tests.spark.stand_in import stand_in

CONFIG = '[exchanges.odd]\n[topics.q]\nkind = "queue"\n'
STREAMED = 'kind = "stream"\nspark_sink = { path = "lake" }\n'
SCENE = [
    ("topics", "create", "graves", "--json"),
    ("topics", "create", "queue", "dead_letter=graves", "max_deliveries=3", "--json"),
    ("topics", "create", "stream", "kind=stream", "--json"),
    ("topics", "create", "passing", "--json"),
    ("topics", "alter", "stream", "retention=3d", "--json"),
    ("exchanges", "create", "shop", "type=topic", "--json"),
    ("exchanges", "create", "passing", "--json"),
    ("bindings", "create", "shop", "queue", "--key", "a.*", "--json"),
    ("bindings", "create", "shop", "passing", "--to-exchange", "--key", "#", "--json"),
    ("route", "explain", "--exchange", "shop", "--routing-key", "a.b", "--label", "n=1", "--json"),
    ("route", "diff", "odd.toml", "odd.toml", "--sample", "sample.json", "--json"),
    ("bindings", "list", "--json"),
    ("bindings", "describe", "shop", "queue", "--json"),
    ("exchanges", "list", "--json"),
    ("exchanges", "describe", "shop", "--json"),
    ("bindings", "delete", "shop", "passing", "--to-exchange", "--key", "#", "--json"),
    ("exchanges", "delete", "passing", "--yes", "--json"),
    ("publish", "queue", "one", "two", "three", "--header", "h=v", "--label", "n=1", "--json"),
    ("publish", "--exchange", "shop", "--routing-key", "a.b", "four", "--json"),
    ("publish", "stream", "one", "two", "--json"),
    ("request", "sums", "one", "--json"),
    ("topics", "alter", "queue", "status=1h", "--json"),
    ("status", "queue", "5f0c954e-7d47-4b1c-9a1e-0d6a5f7f9a11", "--json"),
    ("publish", "queue", "much later", "--delay", "1d", "--json"),
    ("scheduled", "list", "queue", "--json"),
    ("scheduled", "list", "--values", "queue", "--json"),
    ("scheduled", "describe", "queue", "0/0", "--json"),
    ("scheduled", "move", "queue", "0/0", "--delay", "2d", "--json"),
    ("scheduled", "cancel", "queue", "0/0", "--json"),
    ("browse", "queue", "--format", "json"),
    ("consume", "queue", "--count", "1", "--format", "json"),
    ("consume", "stream", "--group", "readers", "--count", "1", "--format", "json"),
    ("topics", "list", "--json"),
    ("topics", "describe", "queue", "--json"),
    ("topics", "describe", "stream", "--json"),
    ("queues", "list", "--json"),
    ("queues", "describe", "queue", "--json"),
    ("subscriptions", "create", "stream", "workers", "--start", "latest", "--json"),
    ("subscriptions", "list", "stream", "--json"),
    ("subscriptions", "describe", "stream", "workers", "--json"),
    ("subscriptions", "delete", "stream", "workers", "--yes", "--json"),
    ("groups", "list", "--json"),
    ("groups", "describe", "readers", "--json"),
    ("groups", "reset", "readers", "--to", "earliest", "--yes", "--json"),
    ("groups", "delete", "readers", "--yes", "--json"),
    ("connections", "close", "NUMBER", "--yes", "--json"),
    ("top", "--once", "--interval", "0.1", "--json"),
    ("move", "queue", "graves", "--count", "1", "--json"),
    ("copy", "unused", "--to", "BROKER", "--json"),
    ("dead-letters", "list", "graves", "--json"),
    ("dead-letters", "describe", "graves", "0/0", "--json"),
    ("dead-letters", "replay", "graves", "--json"),
    ("deliveries", "list", "ledgers", "--json"),
    ("deliveries", "describe", "ledgers", "0", "DELIVERY", "--json"),
    ("deliveries", "resolve", "ledgers", "0", "DELIVERY", "--consumer", "ledger-1", "--as", "done", "--yes", "--json"),
    ("transactions", "list", "--json"),
    ("transactions", "describe", "billing", "--json"),
    ("transactions", "abort", "billing", "--yes", "--json"),
    ("spark", "status", "--json"),
    ("spark", "restart", "streamed", "--json"),
    ("spark", "stop", "streamed", "--json"),
    ("spark", "start", "streamed", "--json"),
    ("spark", "logs", "streamed", "--json"),
    ("spark", "files", "streamed", "--json"),
    ("move", "queue", "passing", "--count", "1", "--json"),
    ("connections", "list", "--json"),
    ("ping", "--count", "2", "--json"),
    ("roles", "create", "readers", "topic:*=consume", "broker=see", "--json"),
    ("roles", "alter", "readers", "topic:*=consume,browse", "--json"),
    ("roles", "list", "--json"),
    ("roles", "describe", "readers", "--json"),
    ("users", "create", "ada", "--role", "readers", "--uid", "7", "--json"),
    ("users", "alter", "ada", "--certificate", "ada.example", "--json"),
    ("users", "list", "--json"),
    ("users", "describe", "ada", "--json"),
    ("users", "verifier", "--password-file", "password", "--json"),
    ("can", "ada", "browse", "topic:t", "--json"),
    ("users", "delete", "ada", "--yes", "--json"),
    ("roles", "delete", "readers", "--yes", "--json"),
    ("whoami", "--json"),
    ("cluster", "status", "--json"),
    ("audit", "tail", "--json"),
    ("audit", "verify", "--json"),
    ("purge", "queue", "--yes", "--json"),
    ("topics", "delete", "passing", "--yes", "--json"),
    ("plugins", "list", "--json"),
    ("plugins", "new", "by-colour", "--kind", "exchange", "--json"),
    ("plugins", "describe", "dram", "--json"),
    ("top", "--once", "--interval", "0.1", "--json"),
    ("bench", "publish", "queue", "--count", "100", "--json"),
    ("bench", "consume", "queue", "--count", "100", "--json"),
    ("bench", "latency", "--count", "20", "--json"),
    ("bench", "soak", "--duration", "300ms", "--rate", "1000/s", "--json"),
    ("bench", "soak", "--producers", "3", "--duration", "300ms", "--json"),
    ("init", "new.toml", "--json"),
    ("check", "odd.toml", "--json"),
    ("definitions", "export", "--json"),
    ("definitions", "import", "odd.toml", "--json"),
    ("doctor", "odd.toml", "--json"),
    ("recover", "--config", "odd.toml", "--json"),
    ("dump", "segment.log", "--json"),
    ("dump", "--records", "segment.log", "--json"),
]
CLUSTER_SCENE = [
    ("cluster", "drain", "2", "--wait", "10", "--json"),
    ("cluster", "undrain", "2", "--json"),
    ("cluster", "remove", "2", "--dry-run", "--json"),
    ("topics", "create", "moving", "--json"),
    ("cluster", "reassign", "moving", "2", "--json"),
    ("cluster", "moves", "--json"),
    ("cluster", "cancel", "moving", "--json"),
    ("cluster", "balance", "--json"),
    ("cluster", "elect", "moving", "--json"),
    ("cluster", "upgrade", "--json"),
]
"""Commands that need a cluster."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a Spark pipeline whose driver is a stand-in."""
    folder = tmp_path_factory.mktemp("broker")
    config = f"{stand_in(folder / 'programs')}[audit]\nenabled = true\n[topics.streamed]\n{STREAMED}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAVA_HOME", str(folder / "programs"))
        with BrokerProcess(folder, config) as process:
            yield process


def fits(shape: Any, data: Any, at: str = "") -> None:
    """Assert that data has a shape, and no key that the page does not have."""
    if isinstance(shape, dict):
        assert isinstance(data, dict), at
        if [key for key in shape if key.isupper()] == list(shape):
            (inner,) = shape.values()
            for key, value in data.items():
                fits(inner, value, f"{at}.{key}")
            return
        assert set(data) <= set(shape), at
        assert set(shape) - set(data) <= set(OPTIONAL), at
        for key, value in data.items():
            fits(shape[key], value, f"{at}.{key}")
    elif isinstance(shape, list):
        assert isinstance(data, list), at
        for index, value in enumerate(data):
            fits(shape[index % len(shape)], value, f"{at}[{index}]")
    elif shape != "any" and not (shape.endswith("?") and data is None):
        kinds = {"text": str, "number": (int, float), "boolean": bool}
        assert isinstance(data, kinds[shape.removesuffix("?")]), f"{at} is {data!r}"
        assert isinstance(data, bool) == (shape == "boolean"), f"{at} is {data!r}"


def path_of(command: tuple[str, ...]) -> str:
    known = [*(path for path, _ in commands()), *SHAPES]
    return max((path for path in known if f"linn {' '.join(command)} ".startswith(f"{path} ")), key=len)


def test_every_command_prints_the_shape_that_the_page_has(
    within, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.toml").write_text(CONFIG)
    (tmp_path / "sample.json").write_text('{"value": "v", "routing_key": "a.b"}')
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("secret")
    batch = RecordBatch(bytearray(build_from_records([Record(value=b"v", key=b"k")] * 2, base_id=1).message))
    batch.stamp(base_offset=0, append_time_ms=1)
    (tmp_path / "segment.log").write_bytes(batch.message)
    monkeypatch.chdir(tmp_path)
    with linn.sync.connect(broker.url) as idle:
        number = str(idle.admin.connections()[0]["number"])
        idle.admin.create_topic("ledgers", delivery="exactly-once")
        idle.admin.create_topic("unused")
        with idle.producer("ledgers") as producer:
            producer.publish(b"v", key=b"k")
        delivery = str(decide_and_leave(broker.url, "ledgers", "ledger-1", tmp_path))
        idle.admin.create_topic("sums")
        with open_transaction(broker.url, "billing", "accounts", "clerks"), replying(broker.url, "sums"):
            check_shapes(within, broker.url, {"NUMBER": number, "DELIVERY": delivery, "BROKER": broker.url})


def check_shapes(within, url: str, numbers: dict[str, str]) -> None:
    """Run the scene; `numbers` are those of a connection which may be closed, of a decided delivery, and the URL."""
    check_commands(within, url, SCENE, numbers)


def check_commands(within, url: str, scene: Sequence[tuple[str, ...]], numbers: dict[str, str]) -> None:
    for command in scene:
        done = within(*[numbers.get(word, word) for word in command], url=url)
        assert (done.stderr, done.returncode) == ("", 0), command
        path = path_of(command)
        for data in done.stdout.splitlines() if path in EACH_LINE else [done.stdout]:
            fits(SHAPES[path], json.loads(data), path)
    assert {path_of(command) for command in [*SCENE, *CLUSTER_SCENE]} == set(SHAPES)


def test_every_command_of_a_cluster_prints_the_shape_that_the_page_has(within) -> None:
    with (
        TemporaryDirectory(prefix="linn-", dir="/tmp") as folder,
        BrokerProcess(Path(folder), options=("--workers", "2")) as broker,
    ):
        check_commands(within, broker.url, CLUSTER_SCENE, {})


def test_every_command_with_json_has_a_shape_on_the_page() -> None:
    with_json = {
        path for path, command in commands() if any("--json" in parameter.opts for parameter in command.params)
    }
    assert with_json <= set(SHAPES)
    assert {path.split(" --")[0] for path in SHAPES} - with_json == {
        path for path, option in EACH_LINE.items() if option != "--json"
    }


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ({"a": "text"}, {"a": 1}),
        ({"a": "text"}, {}),
        ({"a": "text"}, {"a": "", "b": ""}),
        ({"a": "number"}, {"a": True}),
        ({"a": "number"}, {"a": None}),
        (["text"], {}),
        ({"ANY": "number"}, {"x": "y"}),
    ],
)
def test_oversized_requests_are_detected(shape: Any, data: Any) -> None:
    with pytest.raises(AssertionError):
        fits(shape, data)
