"""The participant for Redis keeps the port's promises, and those of its own, on a real server."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from database_servers import redis_server
from redis.client import Pipeline

from linn.errors import ParticipantConflict, TransactionEnded
from linn.participants import Floor, Mark, RedisParticipant
from linn.testing.participants import PLACE, ParticipantConformance, ParticipantHarness

NO_FLOOR = Floor(0, 0)
KEY = f"linn:place:{PLACE.topic_id}:0:billing"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with redis_server() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    """URL of a database that is empty."""
    with closing(redis.Redis.from_url(server)) as client:
        client.flushall()
    return server


def write(handle: Pipeline, text: str) -> None:
    handle.rpush("effects", text)


def effects(url: str) -> list[str]:
    with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
        return list(client.lrange("effects", 0, -1))  # type: ignore[arg-type]


def end(handle: Pipeline) -> None:
    """Execute what is queued, past the methods of the handle."""
    for name in ("execute", "reset"):
        delattr(handle, name)
    write(handle, "executed by the application")
    handle.execute()


def stored(url: str) -> int:
    """Keys beside the effects, and marks in them."""
    with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
        keys = list(client.scan_iter("linn:place:*"))
        return len(keys) + sum(str(client.get(key)).count("[") for key in keys)


class TestRedis(ParticipantConformance):
    @pytest.fixture
    def harness(self, url: str) -> ParticipantHarness:
        return ParticipantHarness(
            make=lambda: RedisParticipant(url),
            write=write,
            effects=lambda: effects(url),
            end=end,
            stored=lambda: stored(url),
        )


# --- of its own ------------------------------------------------------------------------------------------------------


@pytest.fixture
def participant(url: str) -> Iterator[RedisParticipant]:
    with closing(RedisParticipant(url)) as participant:
        participant.open()
        yield participant


def applied(participant: RedisParticipant, mark: Mark) -> list[tuple[int, int]]:
    participant.begin(PLACE)
    found = list(participant.applied(mark))
    participant.rollback()
    return found


@pytest.mark.parametrize(
    "call",
    [lambda handle: handle.execute(), lambda handle: handle.reset(), lambda handle: handle.__exit__(None, None, None)],
)
def test_methods_that_would_end_the_transaction_are_refused_and_do_nothing(
    url: str, participant: RedisParticipant, call: Callable[[Pipeline], None]
) -> None:
    handle = participant.begin(PLACE)
    write(handle, "once")
    with pytest.raises(TransactionEnded):
        call(handle)
    assert effects(url) == []
    participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    assert effects(url) == ["once"]
    assert applied(participant, Mark(1, 0, 9)) == [(7, 8)]


def test_a_command_that_redis_does_not_take_stores_nothing(url: str, participant: RedisParticipant) -> None:
    handle = participant.begin(PLACE)
    write(handle, "undone")
    handle.execute_command("NOSUCHCOMMAND")
    with pytest.raises(redis.ResponseError):
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
    participant.rollback()
    assert effects(url) == []
    assert participant.floor(PLACE) == NO_FLOOR
    assert applied(participant, Mark(1, 0, 9)) == []


def test_a_command_that_fails_in_the_transaction_is_an_error_and_the_others_have_their_marks(
    url: str, participant: RedisParticipant
) -> None:
    handle = participant.begin(PLACE)
    write(handle, "once")
    handle.incr("effects")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    participant.rollback()
    assert effects(url) == ["once"]
    assert applied(participant, Mark(1, 0, 9)) == [(7, 8)]


def test_scripts_of_the_application_are_loaded(url: str, participant: RedisParticipant) -> None:
    handle = participant.begin(PLACE)
    with closing(redis.Redis.from_url(url)) as client:
        script = client.register_script("return redis.call('RPUSH', 'effects', ARGV[1])")
    script(args=["once"], client=handle)
    participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    assert effects(url) == ["once"]


def test_answers_may_be_decoded(url: str) -> None:
    with closing(RedisParticipant(url, decode_responses=True)) as participant:
        participant.open()
        participant.begin(PLACE)
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
        assert applied(participant, Mark(1, 0, 9)) == [(0, 5), (7, 8)]


def test_a_place_that_changed_since_the_begin_is_looked_at_again(url: str, participant: RedisParticipant) -> None:
    with closing(RedisParticipant(url)) as other:
        other.open()
        write(participant.begin(PLACE), "mine")
        write(other.begin(PLACE), "the other's")
        other.commit([Mark(1, 0, 5)], NO_FLOOR)
        participant.commit([Mark(1, 5, 9)], NO_FLOOR)
        assert effects(url) == ["the other's", "mine"]
        assert applied(other, Mark(1, 0, 20)) == [(0, 9)]


def pass_on(listener: socket.socket, path: str, at_exec: Callable[[], object], answers: bool) -> None:
    """Connect clients with a server, until the listener is shut down. Before the first EXEC something happens; its
    answer is kept back, and the connection closed, if it gets none.
    """
    has_executed = False
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        loses = False
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(path)
            while ready := select.select([client, server], [], [])[0]:
                received = ready[0].recv(1 << 20)
                if not received or (loses and ready[0] is server):
                    break
                if b"EXEC" in received and not has_executed:
                    has_executed, loses = True, not answers
                    at_exec()
                (server if ready[0] is client else client).sendall(received)


@pytest.fixture
def between(url: str) -> Iterator[Callable[..., str]]:
    """Start what is between a client and the server; the URL for the client."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(at_exec: Callable[[], object] = lambda: None, *, answers: bool) -> str:
        arguments: list[Any] = [listener, url.removeprefix("unix://"), at_exec, answers]
        threads.append(threading.Thread(target=pass_on, args=arguments))
        threads[0].start()
        return f"redis://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join()


def test_a_commit_whose_answer_is_lost_is_recognised(url: str, between: Callable[..., str]) -> None:
    with closing(RedisParticipant(between(answers=False))) as participant:
        participant.open()
        write(participant.begin(PLACE), "once")
        participant.commit([Mark(1, 7, 8)], NO_FLOOR)
        assert effects(url) == ["once"]
        assert applied(participant, Mark(1, 0, 9)) == [(7, 8)]


@pytest.mark.parametrize("mark", [Mark(1, 8, 9), Mark(1, 7, 8)], ids=["other records", "the same records"])
def test_a_place_that_changes_between_the_look_and_the_commit_is_looked_at_again(
    url: str, participant: RedisParticipant, between: Callable[..., str], mark: Mark
) -> None:
    def commit_first() -> None:
        with closing(RedisParticipant(url)) as other:
            other.open()
            write(other.begin(PLACE), "the other's")
            other.commit([Mark(1, 7, 8)], NO_FLOOR)

    with closing(RedisParticipant(between(commit_first, answers=True))) as slow:
        slow.open()
        write(slow.begin(PLACE), "mine")
        if mark.first == 7:
            with pytest.raises(ParticipantConflict):
                slow.commit([mark], NO_FLOOR)
            assert effects(url) == ["the other's"]
        else:
            slow.commit([mark], NO_FLOOR)
            assert effects(url) == ["the other's", "mine"]
    assert applied(participant, Mark(1, 0, 20)) == [(7, mark.end)]


def test_a_server_that_is_not_there_is_rediss_error(tmp_path: Any) -> None:
    with closing(RedisParticipant(f"unix://{tmp_path}/nothing")) as participant, pytest.raises(redis.ConnectionError):
        participant.open()
