"""The commands that talk to a broker."""

import json
import os
import signal
import subprocess
import sys

import pytest

from linn.testing.process import BrokerProcess


def test_topics_are_made_shown_changed_and_deleted(linn, quick) -> None:
    assert (
        linn("topics", "create", "orders", "kind=stream", "partitions=2", "retention=2d").stdout == "created orders\n"
    )
    assert "exists" in quick("topics", "create", "orders", "kind=stream", "partitions=2", "retention=2d").stdout
    shown = json.loads(quick("topics", "describe", "orders", "--json").stdout)
    assert shown["settings"]["retention"] == "2d"
    assert len(shown["partitions"]) == 2
    assert quick("topics", "alter", "orders", "retention=3d").stdout == "changed retention\n"
    row = next(line for line in linn("topics").stdout.splitlines() if "orders" in line)
    assert "stream" in row
    assert quick("topics", "delete", "orders", "--yes").stdout == "deleted orders\n"
    assert "orders" not in [topic["name"] for topic in json.loads(quick("topics", "list", "--json").stdout)]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["NAME", "--kind", "stream"], {"kind": "stream"}),
        (["--kind=stream", "--retention", "3d", "NAME", "--json"], {"kind": "stream", "retention": "3d"}),
        (["--dead-letter", "graves", "NAME", "--max_deliveries=3", "lease=5s"], {"lease": "5s", "max_deliveries": 3}),
        (["--kind", "both", "--", "NAME", "partitions=2"], {"kind": "both", "partitions": 2}),
    ],
    ids=" ".join,
)
def test_settings_are_options_too(quick, arguments: list[str], settings: dict[str, object]) -> None:
    quick("topics", "create", "graves")
    name = "made-" + "-".join(settings)
    done = quick("topics", "create", *(name if word == "NAME" else word for word in arguments))
    assert (done.stderr, done.returncode) == ("", 0)
    made = json.loads(quick("topics", "describe", name, "--json").stdout)["settings"]
    assert made | settings == made
    assert quick("topics", "alter", name, "--message-bytes-max", "1 KiB").stdout == "changed message_bytes_max\n"


def test_the_type_of_an_exchange_is_an_option_too(quick) -> None:
    assert quick("exchanges", "create", "--type", "topic", "typed", "--alternate=rest").returncode == 1, (
        "no such exchange"
    )
    assert quick("exchanges", "create", "--type", "topic", "typed").returncode == 0
    assert json.loads(quick("exchanges", "describe", "typed", "--json").stdout)["type"] == "topic"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topics", "create", "t", "--knd", "stream"], 'did you mean "kind"?'),
        (["topics", "create", "t", "--kind"], "--kind VALUE, or kind=VALUE"),
        (["topics", "create", "t", "--kind", "--json"], "--kind VALUE, or kind=VALUE"),
        (["topics", "create", "t", "--kind", "stream", "kind=queue"], "'kind' is given twice"),
        (["exchanges", "create", "x", "--tpe", "topic"], 'did you mean "type"?'),
        (["exchanges", "create", "x", "--when", "later"], "settings are --KEY VALUE or KEY=VALUE"),
        (["topics", "delete", "t", "--kind", "stream"], "No such option"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_an_option_that_is_no_setting_says_the_right_form(within, arguments: list[str], said: str) -> None:
    done = within(*arguments)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_refused_change_reports_the_reason(quick, line_of) -> None:
    quick("topics", "create", "fixed")
    done = quick("topics", "alter", "fixed", "storage=dram")
    assert done.returncode == 3
    assert "[config.not_live]" in line_of(done.stderr)
    done = quick("topics", "create", "fixed", "retenton=1d")
    assert done.returncode == 3
    assert 'did you mean "retention"?' in line_of(done.stderr)


def test_lines_of_stdin_come_out_again_with_all_they_carry(linn, quick) -> None:
    quick("topics", "create", "lines")
    properties = ["--key", "k", "--label", "n=4", "--label", "s=x y", "--header", "h=1", "--routing-key", "a.b"]
    done = linn("publish", "lines", *properties, "--json", stdin="one\n\nthrée")
    said = {"count": 3, "topic": "lines", "copies": 3, "partitions": {"0": [0, 2]}, "scheduled": False}
    assert json.loads(done.stdout) == said
    printed = linn("consume", "lines", "--no-follow", "--format", "json", "--no-ack").stdout
    messages = [json.loads(line) for line in printed.splitlines()]
    assert [message["value"] for message in messages] == ["one", "", "thrée"]
    for message in messages:
        assert message["labels"] == {"n": 4, "s": "x y"}
        assert (message["key"], message["routing_key"], message["headers"]) == ("k", "a.b", [["h", "1"]])
    assert quick("consume", "lines", "--count", "2").stdout == "one\n\n", "it was not acked, so it came again"
    assert quick("consume", "lines", "--no-follow").stdout == "thrée\n", "two were acked, the third was not taken"
    assert quick("consume", "lines", "--no-follow").stdout == ""


def test_a_stream_is_read_from_a_given_start_and_a_group_continues(quick) -> None:
    quick("topics", "create", "history", "kind=stream")
    quick("publish", "history", "a", "b", "c")
    assert quick("consume", "history", "--no-follow").stdout == "a\nb\nc\n"
    assert quick("consume", "history", "--no-follow", "--since", "1").stdout == "b\nc\n"
    assert quick("consume", "history", "--no-follow", "--since", "latest").stdout == ""
    assert quick("consume", "history", "--group", "g", "--count", "2").stdout == "a\nb\n"
    assert quick("consume", "history", "--group", "g", "--no-follow").stdout == "c\n"


def test_unknown_names_are_one_line_without_the_names_of_others(quick, line_of) -> None:
    quick("topics", "create", "parcels")
    for command in (("publish", "parcel", "x"), ("consume", "parcel"), ("topics", "describe", "parcel")):
        done = quick(*command)
        assert done.returncode == 1
        assert line_of(done.stderr) == 'linn: there is no topic "parcel" [topic.unknown]'
    done = quick("publish", "--exchange", "none", "x")
    assert done.returncode == 1
    assert "[exchange.unknown]" in line_of(done.stderr)


def test_a_message_over_the_limit_is_refused_and_the_next_one_taken(linn, quick, line_of) -> None:
    quick("topics", "create", "small", "message_bytes_max=1KiB")
    done = linn("publish", "small", stdin="x" * 1025)
    assert done.returncode == 1
    assert "[message.too_large]" in line_of(done.stderr)
    linn("publish", "small", stdin="x" * 1000)
    assert quick("consume", "small", "--no-follow").stdout == "x" * 1000 + "\n"


def test_a_reader_that_leaves_is_no_accident(linn, quick, broker: BrokerProcess) -> None:
    quick("topics", "create", "long", "kind=stream")
    linn("publish", "long", stdin="a line that fills a pipe\n" * 20_000)
    command = [sys.executable, "-m", "linn", "consume", "long", "--no-follow", "--url", broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        assert consuming.stdout.readline() == b"a line that fills a pipe\n"
        consuming.stdout.close()
        assert consuming.stderr.read() == b""
        assert consuming.wait(30) == 141


def test_ctrl_c_while_consuming_prints_nothing_more(quick, broker: BrokerProcess) -> None:
    quick("topics", "create", "waiting")
    quick("publish", "waiting", "first")
    command = [sys.executable, "-m", "linn", "consume", "waiting", "--url", broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        assert consuming.stdout.readline() == b"first\n"
        consuming.send_signal(signal.SIGINT)
        assert consuming.wait(30) == 130
        (said,) = consuming.stderr.read().splitlines()
        assert said.startswith(b"linn: in a pipe, ")


def test_bench_measures_both_ways(linn, quick) -> None:
    quick("topics", "create", "load")
    published = json.loads(linn("bench", "publish", "load", "--count", "5000", "--batch", "1000", "--json").stdout)
    assert (published["messages"], published["bytes"]) == (5000, 5000 * 128)
    assert published["messages_per_s"] > 0
    assert published["call_p50_ms"] <= published["call_p99_ms"]
    consumed = json.loads(linn("bench", "consume", "load", "--count", "5000", "--json").stdout)
    assert consumed["messages"] == 5000
    assert quick("consume", "load", "--no-follow").stdout == "", "they were acked"


def test_no_broker(within, line_of) -> None:
    done = within("topics", url="linn://127.0.0.1:1")
    assert done.returncode == 4
    assert "[connection.failed]" in line_of(done.stderr)


def test_a_bug_shows_its_traceback() -> None:
    code = (
        "from linn.cli.exit_code import boundary\nwith boundary():\n    raise ExceptionGroup('', [ValueError('a bug')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=300)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
