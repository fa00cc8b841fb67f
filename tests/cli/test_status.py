"""`linn status`: states of messages, and waiting for their end."""

import json

import linn.sync

UNKNOWN = "5f0c954e-7d47-4b1c-9a1e-0d6a5f7f9a11"


def test_the_states_of_messages_are_shown_and_waited_for(quick, broker) -> None:
    with linn.sync.connect(broker.url) as client:
        client.admin.create_topic("tasks", status="1h")
        with client.producer("tasks") as producer:
            ids = [str(producer.publish(b"%d" % number).id) for number in range(2)]
        done = quick("status", "tasks", *ids, UNKNOWN)
        lines = [line for line in done.stdout.splitlines() if "-" in line and any(id in line for id in (*ids, UNKNOWN))]
        assert ["stored" in line for line in lines] == [True, True, False]
        assert "unknown" in lines[2]
        waited = quick("status", "tasks", ids[0], "--wait", "100ms")
        assert (waited.returncode, "stored" in waited.stdout) == (1, True)
        with client.consumer("tasks") as consumer:
            next(consumer).ack()
            next(consumer).reject("no")
        shown = quick("status", "tasks", *ids, "--wait", "10s", "--json")
        assert shown.returncode == 0
        found = json.loads(shown.stdout)
        assert [(each["state"], each["reason"], each["offset"]) for each in found] == [
            ("settled", "", 0),
            ("dead", "rejected", 1),
        ]


def test_wrong_questions_fail_and_say_why(quick, line_of) -> None:
    quick("topics", "create", "plain")
    quick("topics", "create", "asked", "status=1h")
    for arguments, code in (
        (("plain", UNKNOWN), "message.status_unsupported"),
        (("absent", UNKNOWN), "topic.unknown"),
        (("asked", "seven"), "message.invalid"),
        (("asked", *[UNKNOWN] * 1001), "limit.exceeded"),
    ):
        done = quick("status", *arguments)
        assert line_of(done.stderr).endswith(f"[{code}]")
        assert (done.stdout, done.returncode) == ("", 1)
    assert quick("status", "asked", UNKNOWN, "--wait", "soon").returncode == 2
    assert quick("status", "asked").returncode == 2
