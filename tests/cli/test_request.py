"""`linn request`: the replies, none, and wrong arguments."""

import json

from replying import replying

import linn.sync


def test_the_reply_is_a_line_of_output(quick, broker) -> None:
    with linn.sync.connect(broker.url) as client:
        client.admin.create_topic("echo")
    with replying(broker.url, "echo"):
        done = quick("request", "echo", "hello", "--header", "h=v", "--label", "n=1", "--key", "k")
        assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 0)
        shown = json.loads(quick("request", "echo", "hello", "--replies", "2", "--timeout", "0.5", "--json").stdout)
    assert shown == {"replies": [{"value": "hello", "headers": []}]}, "fewer than asked for are no failure"


def test_a_request_that_gets_no_reply_fails_and_says_why(quick, line_of) -> None:
    quick("topics", "create", "idle")
    quick("exchanges", "create", "nowhere")
    for arguments, code in (
        (("idle", "hello", "--timeout", "0.2"), "request.no_reply"),
        (("absent", "hello"), "topic.unknown"),
        (("--exchange", "nowhere", "hello"), "exchange.unroutable"),
    ):
        done = quick("request", *arguments)
        assert line_of(done.stderr).endswith(f"[{code}]")
        assert (done.stdout, done.returncode) == ("", 1)


def test_a_request_has_one_value(quick) -> None:
    for arguments in (("idle",), ("idle", "a", "b"), ("--exchange", "x", "a", "b"), ()):
        assert quick("request", *arguments).returncode == 2
