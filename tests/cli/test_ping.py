"""`linn ping`: a broker that answers, and one that does not."""

import json
import socket

from linn import __version__


def test_each_answer_has_its_client_and_its_latency(quick) -> None:
    done = quick("ping", "--count", "3", "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["version"] == __version__
    assert len(answer["round_trips_ms"]) == 3
    assert all(took > 0 for took in answer["round_trips_ms"])
    shown = quick("ping").stdout
    assert shown.startswith(f"{answer['broker']}, linn {__version__}: ")
    assert shown.endswith(" ms\n")


def test_a_listener_that_never_answers_is_given_up_in_time(within, line_of) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"linn://127.0.0.1:{mute.getsockname()[1]}"
        done = within("ping", "--timeout", "0.2", url=url)
    assert done.returncode == 4
    assert line_of(done.stderr) == f"linn: the broker at {url} did not answer within 0.2 s [connection.failed]"
