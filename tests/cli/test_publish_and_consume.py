"""Input from the command line and its rate, and output and its formats."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer

import linn.sync as linn_client
from linn.cli.moment import place_of, seconds_of
from linn.cli.outgoing_message import OutgoingMessage, message_from_json
from linn.cli.render.message_format import FIELDS
from linn.cli.typed_value import rate_per_s
from linn.client.produce.bulk import BulkColumns
from linn.core.errors.tree import MessageInvalid, MessageTooLarge
from linn.testing.process import BrokerProcess


@pytest.fixture
def stream(quick, request: pytest.FixtureRequest) -> str:
    """A stream of its own for each test."""
    name = request.node.name.replace("[", ".").replace("]", "")[:80]
    quick("topics", "create", name, "kind=stream")
    return name


def printed(quick, topic: str, *options: str) -> list[str]:
    done = quick("browse", topic, *options)
    assert done.stderr == ""
    return done.stdout.splitlines()


def consumed(quick, topic: str, *options: str) -> list[str]:
    done = quick("consume", topic, "--no-follow", *options)
    assert done.stderr == ""
    return done.stdout.splitlines()


# --- publish ---------------------------------------------------------------------------------------------------------


def test_json_output_of_consume_can_be_published_again_unchanged(linn, quick, stream: str) -> None:
    said = [
        {"value": "text", "key": "k", "routing_key": "a.b", "labels": {"n": 1, "s": "x"}, "headers": {"h": "v"}},
        {"value": {"base64": "/wA="}, "headers": [["h", "1"], ["h", None]]},
        {"value": None, "key": {"base64": "gA=="}},
    ]
    linn("publish", stream, "--input", "json", stdin="\n\n".join(map(json.dumps, said)))
    first = printed(quick, stream, "--format", "json")
    linn("publish", stream, "--input", "json", stdin="\n".join(first))
    keep = ("value", "key", "routing_key", "labels", "headers")
    messages = [{key: json.loads(line)[key] for key in keep} for line in printed(quick, stream, "--format", "json")]
    assert messages[3:] == messages[:3]
    assert messages[0] == {**said[0], "headers": [["h", "v"]]}
    assert messages[1]["value"] == {"base64": "/wA="}
    assert messages[2]["value"] is None


def test_messages_that_are_published_with_a_ttl_expire(quick, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    quick("topics", "create", name)
    quick("publish", name, "for ever")
    quick("publish", name, "for a moment", "--ttl", "1ms")
    assert consumed(quick, name) == ["for ever"]
    quick("topics", "alter", name, "ttl=1ms")
    quick("publish", name, "too late")
    assert consumed(quick, name) == []


def test_messages_that_are_published_with_a_delay_or_a_time_come_later(quick, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    quick("topics", "create", name)
    assert f"scheduled 1 message for {name} (id 0/0)" in quick("publish", name, "in time", "--delay", "5s").stdout
    assert json.loads(quick("publish", name, "in 2100", "--at", "2100-01-31T09:00+01:00", "--json").stdout) == {
        "count": 1,
        "topic": name,
        "copies": 1,
        "partitions": {"0": [1, 1]},
        "scheduled": True,
    }
    quick("publish", name, "now")
    assert quick("consume", name, "--count", "2").stdout.splitlines() == ["now", "in time"]
    assert consumed(quick, name) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be an object"),
        (b'{"key": "k"}', '"value" is missing'),
        (b'{"vlaue": "v"}', 'did you mean "value"?'),
        (b'{"value": {"a": 1}}', "a JSON document goes in as text"),
        (b'{"value": {"base64": "?"}}', "is not base64"),
        (b'{"value": "v", "labels": []}', '"labels" must be an object'),
        (b'{"value": "v", "headers": [["a"]]}', '"headers" must be'),
        (b'{"value": "\\ud800"}', "half a surrogate pair"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_message_is_reported_with_its_number_and_reason(line: bytes, said: str) -> None:
    with pytest.raises(MessageInvalid) as caught:
        message_from_json(line, 7, OutgoingMessage(None))
    assert caught.value.text.startswith("line 7: ")
    assert said in caught.value.text


def test_options_are_defaults_for_each_line(linn, quick, stream: str) -> None:
    lines = '{"value": "a"}\n{"value": "b", "key": "own"}'
    linn("publish", stream, "--input", "json", "--key", "all", "--label", "n=1", stdin=lines)
    assert printed(quick, stream, "--format", "{value} {key} {label.n}") == ["a all 1", "b own 1"]


def test_a_wrong_line_ends_it_with_one_line(linn, line_of, stream: str) -> None:
    done = linn("publish", stream, "--input", "json", stdin='{"value": "a"}\n{"value": 1}\n')
    assert done.returncode == 1
    assert "line 2: " in line_of(done.stderr)


def test_files_are_messages_and_begin_again_for_a_count(
    quick, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"first\nof two lines")
    (tmp_path / "b").write_bytes(b"\xff\0")
    files = ("--file", "a", "--file", "b")
    assert "published 3 messages" in quick("publish", stream, *files, "--count", "3").stdout
    values = [json.loads(line)["value"] for line in printed(quick, stream, "--format", "json")]
    assert values == ["first\nof two lines", {"base64": "/wA="}, "first\nof two lines"]


def test_values_begin_again_for_a_count_and_stdin_ends_with_it(linn, quick, stream: str) -> None:
    quick("publish", stream, "a", "b", "--count", "5")
    linn("publish", stream, "--count", "2", stdin="c\nd\ne\n")
    assert printed(quick, stream) == ["a", "b", "a", "b", "a", "c", "d"]


def test_a_rate_is_not_exceeded(quick, stream: str) -> None:
    began = time.monotonic()
    done = quick("publish", stream, "x", "--count", "60", "--rate", "60/s")
    assert "published 60 messages" in done.stdout
    assert time.monotonic() - began > 0.9


def test_messages_confirmed_before_a_failure_are_reported(linn, quick, line_of, stream: str) -> None:
    quick("topics", "alter", stream, "message_bytes_max=1KiB")
    done = linn("publish", stream, "--rate", "20/s", stdin="a\n" + "x" * 2000)
    assert done.returncode == 1
    said = "message 2 has 2,000 bytes, more than the message_bytes_max of 1,024; confirmed before: 1 message"
    assert f"{said} [message.too_large]" in line_of(done.stderr)


def test_ctrl_c_says_how_many_were_confirmed(quick, broker: BrokerProcess, stream: str) -> None:
    command = [sys.executable, "-m", "linn", "publish", stream, "x", "--count", "100000", "--rate", "100/s"]
    with subprocess.Popen(
        [*command, "--url", broker.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as publishing:
        while len(printed(quick, stream)) < 20:
            assert publishing.poll() is None
        publishing.send_signal(signal.SIGINT)
        out, errors = publishing.communicate(timeout=300)
    assert (out, publishing.returncode) == ("", 130)
    found = re.fullmatch(r"linn: interrupted: (\d+) messages confirmed(?:, (\d+) more may be stored)?\n", errors)
    assert found is not None, errors
    confirmed, more = int(found[1]), int(found[2] or 0)
    assert 10 <= confirmed <= len(printed(quick, stream)) <= confirmed + more


def test_a_message_that_is_too_large_is_counted_over_the_whole_input(linn, quick, line_of) -> None:
    quick("topics", "create", "spread", "kind=stream", "partitions=4", "message_bytes_max=1KiB")
    lines = [json.dumps({"value": "v", "key": str(number)}) for number in range(200)]
    lines[130] = json.dumps({"value": "x" * 1000, "key": "130", "headers": {"head": "y" * 40}})
    done = linn("publish", "spread", "--rate", "2000/s", "--input", "json", stdin="\n".join(lines))
    assert "message 131 has 1,047 bytes, " in line_of(done.stderr)
    assert "; confirmed before: 100 messages" in done.stderr


def test_a_message_that_is_too_large_is_counted_over_its_call_and_not_its_partition() -> None:
    values = [b"v"] * 50 + [b"x" * 20] + [b"v"] * 50
    columns = BulkColumns.checked(values, [b"%d" % number for number in range(101)], None, None, None)
    (part,) = [part for part in columns.by_partition(8).values() if values[50] in part.values]
    with pytest.raises(MessageTooLarge, match="message 50 has 22 bytes, more than the message_bytes_max of 10"):
        part.check_sizes(0, len(part.values), 10)


@pytest.fixture
def mail(quick) -> str:
    """An exchange with one binding, and its topic."""
    quick("topics", "create", "letters", "kind=stream")
    quick("exchanges", "create", "mail", "type=direct")
    quick("bindings", "create", "mail", "letters", "--key", "here")
    return "mail"


def by_key(*keys: str) -> str:
    return "".join(json.dumps({"value": "v", "routing_key": key}) + "\n" for key in keys)


def test_a_mandatory_message_that_no_topic_takes_is_an_error(linn, quick, line_of, mail: str) -> None:
    before = len(printed(quick, "letters"))
    lines = by_key("here", "here", "there", "here", "there")
    done = linn("publish", "--exchange", mail, "--mandatory", "--input", "json", stdin=lines)
    assert done.returncode == 1
    said = "no binding of exchange mail leads message 3 to a topic, nor 1 after it; confirmed: 3 messages, 2 of "
    assert said in line_of(done.stderr)
    assert done.stderr.endswith("[exchange.unroutable]\n")
    assert len(printed(quick, "letters")) == before + 3


def test_messages_are_counted_from_the_first_also_where_a_rate_parts_them(linn, line_of, mail: str) -> None:
    lines = by_key("here", "here", "there", "here")
    options = ("--mandatory", "--rate", "50/s", "--input", "json")
    done = linn("publish", "--exchange", mail, *options, stdin=lines)
    assert "leads message 3 to a topic; " in line_of(done.stderr)
    assert "2 of them before it" in done.stderr


def test_unroutable_records_are_no_error_without_mandatory(linn, quick, mail: str) -> None:
    options = ("publish", "--exchange", mail, "--routing-key")
    assert "no binding took any" in quick(*options, "there", "v").stdout
    assert quick(*options, "there", "v", "--mandatory").returncode == 1
    assert quick(*options, "here", "v", "--mandatory").returncode == 0


def test_a_record_that_was_not_published_is_not_reported_as_unroutable(linn, quick, mail: str) -> None:
    assert linn("publish", "--exchange", mail).stdout == "published 0 messages to mail\n"
    two = quick("publish", "--exchange", mail, "--routing-key", "here", "v", "w")
    assert two.stdout == "published 2 messages to mail: 2 copies stored\n"


@pytest.mark.parametrize("acks", ["leader", "all"])
def test_a_publish_waits_for_one_broker_or_for_all(quick, stream: str, acks: str) -> None:
    assert (
        quick("publish", stream, "v", "--acks", acks).stdout
        == f"published 1 message to {stream} (partition 0, offset 0)\n"
    )


def test_a_publish_waits_for_somebody(quick, stream: str) -> None:
    refused = quick("publish", stream, "v", "--acks", "none")
    assert refused.returncode == 2
    assert "must be all or leader" in refused.stderr


def test_a_topic_takes_every_mandatory_message(quick, stream: str) -> None:
    assert quick("publish", stream, "v", "--mandatory").returncode == 0


@pytest.mark.parametrize(("text", "per_s"), [("5", 5), ("5/s", 5), ("30/m", 0.5), ("36/h", 0.01), ("0.5/s", 0.5)])
def test_rates(text: str, per_s: float) -> None:
    assert rate_per_s(text) == pytest.approx(per_s)


# --- consume ---------------------------------------------------------------------------------------------------------


def test_a_template_prints_every_field_and_braces(quick, stream: str) -> None:
    quick("publish", stream, "v", "--key", "k", "--label", "n=1.5", "--header", "h=w", "--routing-key", "r")
    template = r"{{{value}}} {key} {routing_key} {label.n} {label.none}|{header.h} {size} {partition}/{offset}\t."
    assert printed(quick, stream, "--format", template) == ["{v} k r 1.5 |w 1 0/0\t."]
    every = " ".join(f"{{{name}}}" for name in FIELDS)
    (line,) = printed(quick, stream, "--format", every)
    assert line.startswith(f"v k r {stream} 0 0 0 ")


def test_pretty_is_json_for_people(linn, quick, stream: str) -> None:
    values = ['{"flight": "LH 454", "legs": [1, 2]}', "plain \u009b2J", "NaN", '"\\ud800"', "[" * 100_000, "1" * 10_000]
    said = [*({"value": value} for value in values), {"value": {"base64": "/wA="}}, {"value": None}]
    linn("publish", stream, "--input", "json", stdin="\n".join(map(json.dumps, said)))
    text = quick("browse", stream, "--format", "pretty").stdout
    assert text.startswith(f'{{\n  "topic": "{stream}",\n')
    assert list(json.loads(text[: text.index("\n}\n") + 3]))[5:7] == ["timestamp_ms", "time"]
    assert "\u009b" not in text
    assert "\x1b" not in text, "colours are for terminals"
    shown = _documents(text)
    first = {"flight": "LH 454", "legs": [1, 2]}
    expected = [first, *values[1:3], "\ud800", *values[4:], {"base64": "/wA="}, None]
    assert [message["value"] for message in shown] == expected
    lines = [json.loads(line) for line in printed(quick, stream, "--format", "json")]
    assert [message | {"value": 0} for message in shown] == [
        line | {"value": 0, "time": _wall_clock(line["timestamp_ms"])} for line in lines
    ]


def _documents(text: str) -> list[dict[str, Any]]:
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        found.append(document)
        at += 1
    return found


def _wall_clock(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms // 1000).isoformat()


def on_a_terminal(*arguments: str, errors: str = "strict") -> str:
    """The output of a command on a terminal."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "20"}
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "linn", *arguments]
    subprocess.run(command, stdout=theirs, env=environment, check=True, timeout=300)
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # The end of a terminal that nobody holds.
        while piece := os.read(ours, 65_536):
            written += piece
    os.close(ours)
    return written.decode(errors=errors).replace("\r\n", "\n")


def test_pretty_has_colours_on_a_terminal_and_for_no_command(broker: BrokerProcess, quick, stream: str) -> None:
    quick("publish", stream, '{"n": 1}')
    pretty = (stream, "--format", "pretty", "--url", broker.url)
    coloured = on_a_terminal("browse", *pretty)
    assert "\x1b[" in coloured
    (message,) = _documents(re.sub(r"\x1b\[[\d;]*m", "", coloured))
    assert message["value"] == {"n": 1}
    assert _documents(on_a_terminal("consume", *pretty, "--no-follow", "--exec", "cat")) == [message]


HOSTILE = b"\xe2\x80\xae\x1b]0;owned\x07\x1b[2J\xc2\x9b31m\x9b31m\r\x00 \xff \xf0\x9f\x98\x80\tb\nc"


TEMPLATE = "{offset} {value} {key} {label.a} {header.h} {routing_key}"


@pytest.mark.parametrize("command", ["browse", "consume"])
@pytest.mark.parametrize("form", ["text", "json", "pretty", TEMPLATE], ids=["text", "json", "pretty", "template"])
def test_control_characters_of_a_message_do_not_reach_the_terminal(
    broker: BrokerProcess, stream: str, command: str, form: str
) -> None:
    evil = "\x1b[31m\x9b"
    with linn_client.connect(broker.url) as client, client.producer(stream) as producer:
        headers = [("h", HOSTILE)]
        producer.publish(HOSTILE, key=HOSTILE, routing_key=evil, labels={"a": evil, evil: 1}, headers=headers)
    follow = ("--no-follow",) if command == "consume" else ()
    written = on_a_terminal(command, stream, "--format", form, *follow, "--url", broker.url)
    written = re.sub(r"\x1b\[[\d;]*m", "", written) if form == "pretty" else written
    assert [letter for letter in written if not letter.isprintable() and letter not in "\n\t"] == []
    assert "owned" in written or form in ("json", "pretty"), "base64"


def test_text_is_exact_in_a_pipe_and_with_raw(broker: BrokerProcess, stream: str) -> None:
    with linn_client.connect(broker.url) as client, client.producer(stream) as producer:
        producer.publish(HOSTILE)
    for options in ((), ("--raw",)):
        command = [sys.executable, "-m", "linn", "browse", stream, *options, "--url", broker.url]
        assert subprocess.run(command, capture_output=True, timeout=60).stdout == HOSTILE + b"\n"
    shown = on_a_terminal("browse", stream, "--url", broker.url)
    assert shown == "\\u202e\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\x9b31m\\r\\x00 \\xff 😀\tb\nc\n"
    assert "\x1b]0;owned\x07" in on_a_terminal("browse", stream, "--raw", "--url", broker.url, errors="replace")


def test_raw_is_for_text_and_templates(within) -> None:
    for form in ("json", "pretty"):
        assert within("browse", "t", "--raw", "--format", form).returncode == 2


def test_text_has_the_time_before_each_value_if_asked(quick, stream: str) -> None:
    quick("publish", stream, "a", "b")
    ((_, first), (_, second)) = [
        (line, _wall_clock(int(line))) for line in printed(quick, stream, "--format", "{timestamp_ms}")
    ]
    assert printed(quick, stream, "--time") == [f"{first} a", f"{second} b"]
    assert consumed(quick, stream, "--time", "--count", "1") == [f"{first} a"]
    assert printed(quick, stream, "--format", "{time}|{value}") == [f"{first}|a", f"{second}|b"]
    assert consumed(quick, stream, "--since", first) == ["a", "b"]


def test_a_time_is_local(broker: BrokerProcess, stream: str) -> None:
    with linn_client.connect(broker.url) as client, client.producer(stream) as producer:
        producer.publish(b"v", timestamp_ms=1_700_000_000_123)
        producer.publish(b"in no calendar", timestamp_ms=1 << 60)
    command = [sys.executable, "-m", "linn", "browse", stream, "--time", "--url", broker.url]
    for zone, moment in (("UTC", "2023-11-14T22:13:20"), ("Asia/Kolkata", "2023-11-15T03:43:20")):
        done = subprocess.run(command, env={**os.environ, "TZ": zone}, capture_output=True, text=True, timeout=300)
        assert done.stdout.splitlines() == [f"{moment} v", f"{1 << 60} in no calendar"]


def test_a_time_column_is_for_text(within) -> None:
    for form, instead in (("json", "json has the time"), ("{value}", "a template has {time}")):
        done = within("browse", "t", "--time", "--format", form)
        assert done.returncode == 2
        assert instead in " ".join(re.sub(r"[│\s]+", " ", done.stderr).split())


@pytest.mark.parametrize(
    "template", ["{valeu}", "{", "}", "a}b{", "{label.}", "plain", "{value!r}", "{value.__class__}"]
)
def test_a_template_that_is_none_is_refused(within, template: str) -> None:
    done = within("consume", "t", "--format", template)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_stream_is_read_from_a_time(quick, stream: str) -> None:
    quick("publish", stream, "old")
    time_ms = int(printed(quick, stream, "--format", "{timestamp_ms}")[0])
    while int(time.time() * 1000) <= time_ms:
        pass
    quick("publish", stream, "new")
    assert consumed(quick, stream, "--since", "1h") == ["old", "new"]
    moment = printed(quick, stream, "--since", "1", "--format", "{timestamp}")[0]
    assert consumed(quick, stream, "--since", moment) == ["new"]


@pytest.mark.parametrize("text", ["earliest", "latest"])
def test_ends_are_places(text: str) -> None:
    assert place_of(text, "--since") == text


def test_times_and_durations() -> None:
    now = time.time()
    assert place_of("17", "--since") == 17
    place = place_of("10m", "--since")
    assert not isinstance(place, str | int)
    assert place.timestamp() == pytest.approx(now - 600, abs=5)
    utc = place_of("2026-01-31T12:00:00+00:00", "--since")
    assert not isinstance(utc, str | int)
    assert utc.timestamp() == 1769860800
    assert seconds_of("1.5h", "--duration") == 5400
    with pytest.raises(typer.BadParameter):
        seconds_of("soon", "--duration")


def test_where_passes_over_the_rest_of_a_stream(quick, stream: str) -> None:
    for number in (10, 70, 90):
        quick("publish", stream, str(number), "--label", f"delay={number}")
    assert consumed(quick, stream, "--where", "label.delay > 60") == ["70", "90"]
    assert consumed(quick, stream, "--where", "label.delay > 60", "--group", "late", "--count", "1") == ["70"]
    assert consumed(quick, stream, "--group", "late") == ["90"], "what was passed over does not come again"
    assert quick("consume", stream, "--where", "label.delay > 60", "--count", "2").stdout == "70\n90\n"
    assert quick("browse", stream, "--where", "label.delay > 60 and size = 2").stdout == "70\n90\n"
    assert quick("browse", stream, "--where", "label.delay > 60").stdout == "70\n90\n"


@pytest.mark.parametrize("options", [(), ("--group", "late"), ("--group", "late", "--no-ack"), ("--exec", "cat >&2")])
def test_the_end_comes_behind_all_that_a_filter_passes_over(
    quick,
    broker: BrokerProcess,
    stream: str,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("linn.cli.commands.consume.IDLE_S", 0.001)  # No broker is as quick.
    stream = re.sub(r"\W", "-", stream)
    quick("topics", "create", stream, "kind=stream", "partitions=2")
    labels = [{"late": number in (0, 59_999)} for number in range(60_000)]
    with linn_client.connect(broker.url) as client, client.producer(stream) as producer:
        producer.publish_many([b"%d" % number for number in range(60_000)], labels=labels)
    found = consumed(quick, stream, "--where", "label.late = true", *options) + capfd.readouterr().err.split()
    assert sorted(found) == ["0", "59999"]
    assert consumed(quick, stream, "--where", "label.late = false and label.late = true", *options) == []


def test_where_on_a_queue_is_refused_and_takes_nothing(quick) -> None:
    quick("topics", "create", "choosy")
    quick("publish", "choosy", "a")
    done = quick("consume", "choosy", "--where", "size = 9")
    assert done.returncode == 2
    assert "linn browse choosy" in done.stderr
    assert quick("consume", "choosy", "--count", "1").stdout == "a\n"


def test_since_on_a_queue_is_refused_and_takes_nothing(quick) -> None:
    quick("topics", "create", "placeless", "kind=both")
    quick("publish", "placeless", "a", "b")
    for place in ("1", "earliest", "latest", "1h"):
        done = quick("consume", "placeless", "--since", place, "--count", "1")
        assert (done.returncode, done.stdout) == (2, "")
        assert "linn browse placeless --since" in " ".join(done.stderr.split())
    assert quick("consume", "placeless", "--group", "g", "--since", "1", "--count", "1").stdout == "b\n"
    assert quick("consume", "placeless", "--count", "2").stdout == "a\nb\n"


def test_a_group_continues_at_its_commit_despite_since(quick, stream: str) -> None:
    quick("publish", stream, "a", "b", "c")
    assert consumed(quick, stream, "--group", "g", "--since", "1", "--count", "1") == ["b"]
    assert consumed(quick, stream, "--group", "g", "--since", "0") == ["c"]


def test_a_predicate_that_is_none_shows_its_place(within, line_of) -> None:
    for command in ("consume", "browse"):
        done = within(command, "t", "--where", "label.a = ")
        assert done.returncode == 1
        assert "[predicate.invalid]" in line_of(done.stderr)


# --- browse ----------------------------------------------------------------------------------------------------------


def test_browsing_a_queue_shows_unsettled_records_and_leaves_them(quick) -> None:
    quick("topics", "create", "shelf")
    quick("publish", "shelf", "a", "b", "c", "d")
    quick("consume", "shelf", "--count", "1")
    for _ in range(2):
        assert quick("browse", "shelf").stdout == "b\nc\nd\n"
    assert quick("browse", "shelf", "--count", "2").stdout == "b\nc\n"
    assert quick("browse", "shelf", "--where", 'size = 1 and not routing_key = "x"', "--count", "1").stdout == "b\n"
    assert quick("consume", "shelf", "--no-follow").stdout == "b\nc\nd\n"


def test_messages_of_a_higher_priority_are_consumed_first(quick) -> None:
    quick("topics", "create", "wards", "order=priority")
    for value, priority in (("cough", "0"), ("heart", "9"), ("leg", "4")):
        quick("publish", "wards", value, "--priority", priority)
    assert quick("consume", "wards", "--no-follow").stdout == "heart\nleg\ncough\n"


OUT_OF_ORDER = """
import sys
import trio, linn

async def main():
    async with linn.connect(sys.argv[1]) as client, client.consumer("gaps") as worker:
        for _ in range(3):
            message = await anext(worker)
            if message.offset == 1:
                await message.ack()

trio.run(main)
"""


def test_browsing_a_queue_omits_records_settled_out_of_order(quick, broker: BrokerProcess) -> None:
    quick("topics", "create", "gaps")
    quick("publish", "gaps", "a", "b", "c")
    subprocess.run([sys.executable, "-c", OUT_OF_ORDER, broker.url], check=True, timeout=300)
    assert quick("browse", "gaps").stdout == "a\nc\n"
    assert quick("browse", "gaps", "--since", "earliest").stdout == "a\nb\nc\n"


def test_browsing_a_stream_by_place_and_partition(quick) -> None:
    quick("topics", "create", "wide", "kind=stream", "partitions=2")
    quick("publish", "wide", "a", "b", "--key", "one")
    partition = quick("browse", "wide", "--format", "{partition}").stdout[0]
    other = "1" if partition == "0" else "0"
    assert quick("browse", "wide", "--partition", partition, "--since", "1").stdout == "b\n"
    assert quick("browse", "wide", "--partition", other).stdout == ""
    assert quick("browse", "wide", "--since", "latest").stdout == ""
    assert quick("browse", "wide", "--since", "99").stdout == ""
    assert quick("browse", "wide", "--since", "1h").stdout == "a\nb\n"


def test_browsing_a_missing_topic(quick, line_of) -> None:
    quick("topics", "create", "single")
    for command, code in ((("singel",), "topic.unknown"), (("single", "--partition", "3"), "topic.partition_unknown")):
        done = quick("browse", *command)
        assert done.returncode == 1
        assert f"[{code}]" in line_of(done.stderr)


def test_in_a_pipe_it_says_what_an_ack_is(linn, quick, stream: str) -> None:
    quick("topics", "create", "piped")
    quick("publish", "piped", "a", "b")
    publish = quick("publish", stream, "a")
    assert publish.returncode == 0
    done = linn("consume", "piped", "--count", "1")
    assert done.stderr.startswith("linn: in a pipe, messages are acked once they are written, even if the reader fails")
    assert "`linn move`" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert linn("consume", stream, "--group", "piped", "--count", "1").stderr == done.stderr
    for silent in (("piped", "--no-ack"), (stream,), ("piped", "--exec", "cat")):
        assert linn("consume", *silent, "--count", "1").stderr == ""


def test_a_commands_message_is_acked_once_it_exits_with_0(linn, quick, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    quick("topics", "create", "given", "max_deliveries=2")
    quick("publish", "given", *"abcdef")
    done = linn("consume", "given", "--count", "2", "--exec", f"cat >> {seen}; exit 3")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"linn: cat >> {seen}; exit 3 ended with 3: what it was given is not acked\n"
    assert linn("consume", "given", "--count", "1", "--exec", "kill -9 $$").stderr.count("was ended by signal 9") == 1
    assert linn("consume", "given", "--no-follow", "--no-ack", "--exec", "true").returncode == 0
    left = json.loads(quick("queues", "describe", "given", "--json").stdout)["unsettled"]
    assert left == 4, "a and b had two attempts"
    assert linn("consume", "given", "--count", "1", "--exec", f"cat >> {seen}").returncode == 0
    assert linn("consume", "given", "--no-follow", "--format", "{attempt} {value}", "--exec", "cat").stdout != ""
    assert quick("browse", "given").stdout == ""
    assert seen.read_text() == "a\nb\nc\n"


def test_a_command_that_publishes_loses_nothing_where_it_fails(linn, quick) -> None:
    quick("topics", "create", "from-here")
    quick("topics", "create", "to-there")
    quick("publish", "from-here", *"abc")
    publish = f"{sys.executable} -m linn publish %s --input json"
    take = ("consume", "from-here", "--no-follow", "--format", "json", "--exec")
    failed = linn(*take, publish % "nowhere")
    assert (failed.returncode, failed.stderr.count("[topic.unknown]")) == (1, 1)
    assert quick("browse", "from-here").stdout == "a\nb\nc\n"
    assert linn(*take, publish % "to-there").returncode == 0
    assert quick("browse", "from-here").stdout == ""
    assert quick("browse", "to-there").stdout == "a\nb\nc\n"


def test_a_group_goes_on_where_a_command_failed(linn, quick, stream: str) -> None:
    quick("publish", stream, *"abc")
    take = ("consume", stream, "--group", "g", "--no-follow", "--exec")
    assert linn(*take, "exit 1").returncode == 1
    assert linn(*take, "cat").stdout == "a\nb\nc\n"
    assert linn(*take, "cat").stdout == ""
    assert linn(*take, " ").returncode == 2


def until_settled(url: str, queue: str) -> None:
    """Wait until a queue has no unsettled message; each look is a round trip."""
    with linn_client.connect(url) as client:
        while client.admin.subscription(queue)["unsettled"]:
            pass


def test_consume_goes_on_where_the_broker_died_before_an_ack(tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"cat; while [ ! -e {go} ]; do sleep 0.05; done"
    with BrokerProcess(tmp_path, '[broker]\ndefault_storage = "segmented-log"\n[topics.jobs]\n') as broker:
        linn = [sys.executable, "-m", "linn"]
        subprocess.run([*linn, "publish", "jobs", "it", "--url", broker.url], check=True, capture_output=True)
        with subprocess.Popen(
            [*linn, "consume", "jobs", "--exec", command, "--url", broker.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as consumer:
            assert consumer.stdout is not None
            try:
                assert consumer.stdout.readline() == "it\n"
                broker.kill()
                go.touch()  # Now the message is acked, by a connection that is lost.
                broker.start()
                assert consumer.stdout.readline() == "it\n", "it was not acked, and comes again"
                until_settled(broker.url, "jobs")
            finally:
                consumer.send_signal(signal.SIGINT)
                consumer.wait(10)


def test_consume_resumes_when_the_broker_returns(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, '[broker]\ndefault_storage = "segmented-log"\n[topics.jobs]\n') as broker:
        url = ["--url", broker.url]
        linn = [sys.executable, "-m", "linn"]
        with subprocess.Popen(
            [*linn, "consume", "jobs", *url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as consumer:
            assert consumer.stdout is not None
            assert consumer.stderr is not None
            try:
                subprocess.run([*linn, "publish", "jobs", "before", *url], check=True, capture_output=True)
                assert consumer.stdout.readline() == "before\n"
                assert "in a pipe" in consumer.stderr.readline()
                until_settled(broker.url, "jobs")
                broker.kill()
                assert re.fullmatch(r"connection lost, connecting again: .*\n", consumer.stderr.readline())
                with pytest.raises(subprocess.TimeoutExpired):
                    consumer.wait(4)  # Longer than it once tried.
                broker.start()
                assert re.fullmatch(r"connected to .* again after .* s\n", consumer.stderr.readline())
                subprocess.run([*linn, "publish", "jobs", "after", *url], check=True, capture_output=True)
                assert consumer.stdout.readline() == "after\n"
            finally:
                consumer.send_signal(signal.SIGINT)
                consumer.wait(10)
