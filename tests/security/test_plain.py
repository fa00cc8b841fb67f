"""PLAIN: what is a message, what a password costs, and for how long a success counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from linn.core.security.sasl.mechanism import SaslError
from linn.core.security.sasl.plain import KNOWN_MAX, KNOWN_S, WAITING_MAX, PlainPasswords, parse_plain
from linn.core.security.sasl.scram import make_verifier

pytestmark = pytest.mark.quick

FEW = 4_096
ANN = make_verifier("opensesame", b"salt", FEW)


class Threads:
    """Counts computations, and holds them until `go` is set."""

    def __init__(self) -> None:
        self.count = 0
        self.go = trio.Event()
        self.go.set()

    async def run(self, work: Callable[[], bool]) -> bool:
        self.count += 1
        await self.go.wait()
        return work()


class World:
    def __init__(self) -> None:
        self.users = {"ann": ANN}
        self.now_s = 1_000.0
        self.threads = Threads()
        self.passwords = PlainPasswords(self.users.get, b"s" * 32, lambda: self.now_s, self.threads.run)


def test_a_message_has_a_user_and_a_password() -> None:
    assert parse_plain(b"\0ann\0open=,sesame") == ("ann", "open=,sesame")
    assert parse_plain(b"ann\0ann\0opensesame") == ("ann", "opensesame")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ann\0opensesame",
        b"bob\0ann\0opensesame",
        b"\0ann\0open\0sesame",
        b"\0\0opensesame",
        b"\0ann\0",
        b"\0ann\0\xff",
        b"\0\xef\xbd\x81nn\0opensesame",
        b"\0" + b"a" * (64 << 10) + b"\0opensesame",
        b"\0ann\0" + b"p" * 1_025,
    ],
)
def test_other_messages_are_refused(data: bytes) -> None:
    with pytest.raises(SaslError):
        parse_plain(data)


async def test_a_success_is_remembered_for_a_minute_and_a_failure_never() -> None:
    world = World()
    await world.passwords.check("ann", "opensesame")
    await world.passwords.check("ann", "opensesame")
    assert world.threads.count == 1
    world.now_s += KNOWN_S
    await world.passwords.check("ann", "opensesame")
    assert world.threads.count == 2
    for _ in range(2):
        with pytest.raises(SaslError, match="a wrong password, or an unknown user"):
            await world.passwords.check("ann", "opensesam")
    assert world.threads.count == 4


async def test_a_new_password_ends_the_old_one_at_once() -> None:
    world = World()
    await world.passwords.check("ann", "opensesame")
    world.users["ann"] = make_verifier("another", b"salt", FEW)
    with pytest.raises(SaslError):
        await world.passwords.check("ann", "opensesame")
    del world.users["ann"]
    with pytest.raises(SaslError):
        await world.passwords.check("ann", "another")


async def test_an_unknown_user_costs_as_much() -> None:
    world = World()
    with pytest.raises(SaslError, match="a wrong password, or an unknown user"):
        await world.passwords.check("bob", "opensesame")
    assert world.threads.count == 1


async def test_only_so_many_passwords_wait() -> None:
    world = World()
    world.threads.go = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(WAITING_MAX):
            nursery.start_soon(world.passwords.check, "ann", "opensesame")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(SaslError, match="wait to be checked"):
            await world.passwords.check("ann", "opensesame")
        world.threads.go.set()
    world.now_s += KNOWN_S
    await world.passwords.check("ann", "opensesame")


async def test_only_so_many_successes_are_remembered() -> None:
    world = World()
    for number in range(KNOWN_MAX + 1):
        world.users[f"u{number}"] = ANN._replace(iterations=1)
    one = make_verifier("opensesame", b"salt", 1)
    world.users.update(dict.fromkeys(world.users, one))
    for name in list(world.users):
        await world.passwords.check(name, "opensesame")
    assert len(world.passwords._known) == KNOWN_MAX
