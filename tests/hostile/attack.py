"""Attacks on a running broker, and what they may cost: `with attacked(broker) as attack: ...`.

Laws, checked when the block ends, whatever was done in it: the bystander lost nothing, saw no error and kept its order;
the broker's memory never went over its bound; the attacker was answered or closed; its connections are gone; nothing in
the log looks like a bug. In `make perf` also: the bystander kept at least four fifths of the rate that it had before,
the broker's processor time never went over its bound, and the attacker was answered or closed in time.

How a rate is measured on a machine that is shared: the bystander works at a fixed pace, so that its rate is the same on
every machine that isn't overloaded, and the time in which the broker or the bystander was ready to run, and the kernel
(/proc/PID/schedstat) or the hypervisor ran somebody else, is left out, up to what they are late. What the attack makes
the broker do is not left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bystander import PERIOD_S, TOPICS, Bystander, Report
from stopwatch import MEASURES

from linn.testing.process import BrokerProcess
from linn.wire import messages as m
from linn.wire.codec import decode, encode
from linn.wire.connection import hello

RATE_KEPT_MIN = 0.8
"""The share of its rate that a bystander keeps while it shares the machine with the broker and the attackers."""
YARDSTICK_ADDITIONS = 50_000
YARDSTICK_S = 0.007
"""Processor time of so many additions on the machine that the bounds were found on. Machines that are shared are at
times a third as fast as at others."""
ROUNDS_MIN = 25
"""Half a second: what one attack is watched for at least, where rates are measured."""
ROUNDS_UNMEASURED_MIN = 3
WARM_UP_ROUNDS = 15
CPU_S_MAX = 0.15
MEMORY_BYTES_MAX = 8 << 20
PAUSE_S_MAX = 0.25
ANSWER_S_MAX = 3.0
GONE_S_MAX = 30.0
WAIT_S_MAX = 30.0
"""A test fails by its own bound; this one only keeps it from hanging."""


class Usage:
    """The resources that a process has used, from /proc."""

    def __init__(self, pid: int) -> None:
        self._proc = Path("/proc", str(pid))

    def cpu_and_waiting_s(self) -> tuple[float, float]:
        """Processor time, and time in which it was ready to run and did not: of all threads, in seconds."""
        ran = waited = 0
        for task in self._proc.glob("task/*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # A thread that has just ended.
                numbers = task.read_text().split()
                ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
        return ran / 1e9, waited / 1e9

    def _status_bytes(self, field: str) -> int:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"/proc/PID/status has no {field}")

    def memory_bytes(self) -> int:
        """Resident now."""
        return self._status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        """The most that was resident since `forget_peak`."""
        return self._status_bytes("VmHWM")

    def forget_peak(self) -> None:
        """Let the peak begin anew."""
        (self._proc / "clear_refs").write_text("5")

    def sockets(self) -> int:
        """Open sockets."""
        count = 0
        for descriptor in (self._proc / "fd").iterdir():
            with contextlib.suppress(OSError):
                count += os.readlink(descriptor).startswith("socket:")
        return count


def machine_slowness() -> float:
    """The slowness of this machine now, relative to the one on which the time limits were found; 1 at least."""
    began_s, total = time.thread_time(), 0
    for number in range(YARDSTICK_ADDITIONS):
        total += number
    return max(1.0, (time.thread_time() - began_s) / YARDSTICK_S)


def stolen_s() -> float:
    """Processor time, of all processors, that the machine below this one gave to others since it was started."""
    ticks = Path("/proc/stat").read_text().split(maxsplit=9)[8]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


class WatchedBroker(BrokerProcess):
    """`linn serve` with a bystander at work. Use it with `with`; `config` is TOML beside the bystander's topics."""

    bystander: Bystander

    def __init__(self, folder: Path, config: str = "") -> None:
        super().__init__(folder, config + TOPICS, listen=() if "[listeners." in config else ("127.0.0.1:0",))

    def __enter__(self) -> WatchedBroker:
        with contextlib.ExitStack() as started:
            self.start()
            started.callback(self.kill)
            self.usage = Usage(self.pid)
            self.bystander = started.enter_context(Bystander(self.url))
            self.bystander.report(ROUNDS_UNMEASURED_MIN)  # From here on it is connected.
            if MEASURES:
                self._measure_before()
            self._started = started.pop_all()
        return self

    def _measure_before(self) -> None:
        self.bystander.report(WARM_UP_ROUNDS)
        before = Span(self)
        before.end(ROUNDS_MIN)
        self.rate_before = before.rate
        self.cpu_share_before = before.cpu_s / before.elapsed_s
        assert self.rate_before > RATE_KEPT_MIN / PERIOD_S, "this machine can't even keep the bystander's pace"

    def __exit__(self, *exc: object) -> None:
        self._started.close()


class Span:
    """The bystander's progress and the broker's usage, from one round to a later one."""

    def __init__(self, broker: WatchedBroker) -> None:
        self._broker = broker
        self._usages = (broker.usage, Usage(broker.bystander.pid))
        self._first = broker.bystander.report()
        broker.bystander.take_longest_s()
        self._cpu_s, self._waiting_s = self._used()
        self.last: Report

    def _used(self) -> tuple[float, float]:
        (cpu_s, waiting_s), (_, also_waiting_s) = (usage.cpu_and_waiting_s() for usage in self._usages)
        return cpu_s, waiting_s + also_waiting_s + stolen_s()

    def end(self, rounds_min: int) -> None:
        """Wait until so many rounds have passed since the beginning, and count."""
        done = self._broker.bystander.report()
        self.last = self._broker.bystander.report(max(0, rounds_min - (done.rounds - self._first.rounds)))
        cpu_s, waiting_s = self._used()
        self.cpu_s, self.starved_s = cpu_s - self._cpu_s, waiting_s - self._waiting_s
        self.elapsed_s = self.last.at_s - self._first.at_s
        rounds = self.last.rounds - self._first.rounds
        # Time that nobody gave it is left out, but no more than what it is late.
        late_s = max(0.0, self.elapsed_s - rounds * PERIOD_S)
        self.rate = rounds / (self.elapsed_s - min(late_s, self.starved_s))
        self.longest_s = max(0.0, self._broker.bystander.take_longest_s() - self.starved_s)


class Peer:
    """An attacker's connection: bytes out, frames in. Every wait has an end."""

    def __init__(self, address: str, greeted: bool) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=WAIT_S_MAX)
        try:
            self._begin(greeted)
        except BaseException:
            self.socket.close()  # Nobody else knows it, and its warning would fail another test.
            raise

    def _begin(self, greeted: bool) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer_s = 0.0
        """The longest time from the end of a `send` to the answer that was asked for, or to the close."""
        self.judged = False
        """Whether a test has asked what the broker did to it."""
        self._sent_s = time.monotonic()
        self._buffer = bytearray()
        self._ended = False
        if greeted:
            self.send(request(hello("attacker"), 1))
            correlation, welcome = self.frame()
            assert correlation == 1
            assert isinstance(welcome, m.Welcome)
            self.welcome = welcome

    def send(self, *parts: bytes | bytearray | memoryview) -> bool:
        """Send it all; False where the broker closed first."""
        try:
            for part in parts:
                self.socket.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            return False
        finally:
            self._sent_s = time.monotonic()
        return True

    def ask(self, message: m.Message, *batches: bytes | bytearray | memoryview, correlation: int = 7) -> m.Message:
        """Send a request that is well-formed, with batches that need not be; the answer."""
        return self.ask_raw(request(message, correlation, len(batches)), *batches, correlation=correlation)

    def ask_raw(self, *parts: bytes | bytearray | memoryview, correlation: int = 7) -> m.Message:
        """The answer to a request that was made by hand; what is pushed meanwhile is dropped."""
        self.send(*parts)
        answered, answer = self.frame()
        while answered == 0 and not isinstance(answer, m.Failed):
            answered, answer = self.frame()
        assert answered == correlation, answer
        return answer

    def subscribe(self, topic: str, **options: Any) -> int:
        """Subscribe; the subscription's number."""
        answer = self.ask(m.Subscribe(topic, **options))
        assert isinstance(answer, m.Subscribed), answer
        return answer.subscription

    def administer(self, verb: str, **arguments: object) -> Any:
        """Carry out a verb and return its result."""
        answer = self.ask(m.Administer(verb, json.dumps(arguments)))
        assert isinstance(answer, m.Administered), answer
        return json.loads(answer.result)

    # --- what came ---

    def frame(self) -> tuple[int, m.Message]:
        """The next control message, with its correlation. Raises EOFError."""
        correlation, message, _ = self.event()
        return correlation, message

    def event(self) -> tuple[int, m.Message, list[bytes]]:
        """The next control message with its correlation and its batches' bytes. Raises EOFError."""
        decoded = decode(memoryview(self._message()))
        return decoded.correlation, decoded.message, [self._message() for _ in range(decoded.batches)]

    def _message(self) -> bytes:
        head = self._exactly(8)
        segments = 1 + int.from_bytes(head[:4], "little")
        head += self._exactly(segments // 2 * 8)
        words = struct.unpack_from(f"<{segments}I", head, 4)
        return head + self._exactly(8 * sum(words))

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if not self._receive():
                raise EOFError("the broker closed the connection")
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self._buffer += data
        self._ended = not data
        return bool(data)

    def _answered(self) -> None:
        self.judged = True
        self.answer_s = max(self.answer_s, time.monotonic() - self._sent_s)

    # --- what the broker must do ---

    def is_failed(self, code: str, correlation: int = 7) -> str:
        """The broker answers a request, or the records that it published, with this error, and goes on with the
        connection; the error's text.
        """
        answered, answer = self.frame()
        self._answered()
        failed = error_of(answer)
        assert failed, answer
        assert (answered, failed.code) == (correlation, code), f"{failed.code}: {failed.text}"
        self.is_served()
        return failed.text

    def is_answered(self, correlation: int = 7) -> None:
        """The broker answers a request with anything but an error, and goes on with the connection."""
        answered, answer = self.frame()
        self._answered()
        assert answered == correlation
        assert not isinstance(answer, m.Failed), answer
        self.is_served()

    def is_served(self) -> None:
        """The connection goes on: a ping is answered, and no error comes before it."""
        assert self.ask(m.Ping(), correlation=99) == m.Pong()
        self._answered()

    def is_refused(self, *codes: str, answers: int = 0) -> str:
        """The broker answers what is under way, says one of these errors about the connection, and closes it."""
        for _ in range(answers):
            correlation, _ = self.frame()
            assert correlation
        correlation, failed = self.frame()
        self._answered()
        assert isinstance(failed, m.Failed), failed
        assert correlation == 0
        assert failed.code in codes, f"{failed.code}: {failed.text}"
        self.says_no_more()
        self.is_closed()
        return failed.text

    def is_closed(self) -> None:
        """The broker closes the connection, and says nothing more."""
        while not self._ended:
            self._receive()
        assert not self._buffer, bytes(self._buffer)
        self._answered()

    def leaves(self) -> None:
        """End the connection from this side, with requests in flight; the block's end checks that the broker closes it
        too.
        """
        self.close()
        self.judged = True

    def says_no_more(self) -> None:
        """Close this side of the connection only."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Leave. Idempotent."""
        self.socket.close()


def error_of(answer: m.Message) -> m.Failed | m.RefusedRecords | None:
    """Return the error of an answer to a request, or to the records that it published; None if there is none."""
    if isinstance(answer, m.Published):
        return next((refusal for placement in answer.placements for refusal in placement.refused), None)
    return answer if isinstance(answer, m.Failed) else None


class Attack:
    """The object that the block of `attacked` works with; afterwards it has the measured cost."""

    def __init__(self, broker: WatchedBroker) -> None:
        self._broker = broker
        self._peers: list[Peer] = []
        self.rate_kept = self.cpu_s = self.answer_s = self.longest_round_s = 0.0
        self.memory_bytes = 0
        """The growth of the broker's memory, at its peak."""

    def connect(self, *, greeted: bool = True) -> Peer:
        """A connection; hello and welcome are behind it unless told otherwise."""
        peer = Peer(self._broker.address, greeted)
        self._peers.append(peer)
        return peer

    def tries(self, cases: Mapping[str, tuple[bytes, str]], *, greeted: bool = True) -> None:
        """Send each case's bytes on a connection of its own, and ask whether what it says becomes of it.

        That is `refused CODE...`, `failed CODE`, `answered`, `closed` or `served`: see `Peer`. Where only its silence
        can end a case, it closes its own side first.
        """
        for name, (data, outcome) in cases.items():
            peer = self.connect(greeted=greeted)
            verdict, *codes = outcome.split()
            try:
                peer.send(data)
                if verdict == "closed" or codes == ["connection.lost"]:
                    peer.says_no_more()
                getattr(peer, f"is_{verdict}")(*codes)
            except Exception as error:
                error.add_note(f"it was sent {name}")
                raise

    def lets_pass(self, rounds: int) -> None:
        """Do nothing until the bystander has done so many more rounds."""
        self._broker.bystander.report(rounds)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Do nothing until the condition holds; it is checked after each of the bystander's rounds."""
        until_s = time.monotonic() + WAIT_S_MAX
        while not holds():
            assert time.monotonic() < until_s, f"it has not come to it that {what}"
            self.lets_pass(1)

    def leave(self) -> None:
        """Close all connections."""
        for peer in self._peers:
            peer.close()
            self.answer_s = max(self.answer_s, peer.answer_s)

    def is_judged(self) -> bool:
        """Whether the test has asked of each connection what became of it."""
        return bool(self._peers) and all(peer.judged for peer in self._peers)

    def __repr__(self) -> str:
        return (
            f"<Attack rate kept {self.rate_kept:.0%}, longest round {1000 * self.longest_round_s:.1f} ms, "
            f"CPU {1000 * self.cpu_s:.1f} ms, memory {self.memory_bytes >> 10} KiB, answer {self.answer_s:.3f} s>"
        )


@contextlib.contextmanager
def attacked(
    broker: WatchedBroker,
    *,
    cpu_s: float = CPU_S_MAX,
    memory_bytes: int = MEMORY_BYTES_MAX,
    answer_s: float = ANSWER_S_MAX,
    pause_s: float = PAUSE_S_MAX,
    bugs: Sequence[str] = (),
) -> Iterator[Attack]:
    """Attack a broker within these bounds; the module's docstring says what holds when the block ends.

    Args:
        cpu_s: of the broker, more than it would have used for the bystander; on a slow machine in proportion more.
        memory_bytes: by which the broker may grow, at its peak, over what it had when the block began.
        answer_s: until an attacker is answered or closed.
        pause_s: the longest round of the bystander.
        bugs: texts of which a traceback in the broker's log must have one; none: there must be no traceback.
    """
    usage, attack = broker.usage, Attack(broker)
    log_began, sockets = len(broker.log_text()), usage.sockets()
    usage.forget_peak()
    memory_before = usage.memory_bytes()
    try:
        with _in_bounds_of_time(broker, attack, cpu_s, answer_s, pause_s) if MEASURES else _at_work(broker):
            yield attack
            attack.leave()
            assert attack.is_judged(), "each attacker is answered or closed, and the test says how"
    finally:
        attack.leave()
    attack.memory_bytes = max(0, usage.peak_bytes() - memory_before)
    assert attack.memory_bytes <= memory_bytes, attack
    _assert_gone(broker, sockets)
    tracebacks = broker.log_text()[log_began:].split("Traceback (most recent call last)")[1:]
    assert [text for text in tracebacks if not any(bug in text for bug in bugs)] == []


@contextlib.contextmanager
def _at_work(broker: WatchedBroker) -> Iterator[None]:
    """The bystander is served before and after, however long that takes."""
    broker.bystander.report()
    yield
    broker.bystander.report(ROUNDS_UNMEASURED_MIN)


@contextlib.contextmanager
def _in_bounds_of_time(
    broker: WatchedBroker, attack: Attack, cpu_s: float, answer_s: float, pause_s: float
) -> Iterator[None]:
    """Check the time limits of `attacked`."""
    slowness, span = machine_slowness(), Span(broker)
    yield
    span.end(ROUNDS_MIN)
    slowness = max(slowness, machine_slowness())
    attack.rate_kept = span.rate / broker.rate_before
    attack.cpu_s = max(0.0, span.cpu_s - broker.cpu_share_before * span.elapsed_s)
    attack.longest_round_s = span.longest_s
    assert attack.rate_kept >= RATE_KEPT_MIN, attack
    assert attack.longest_round_s <= pause_s, attack
    assert attack.cpu_s <= cpu_s * slowness, attack
    assert attack.answer_s <= answer_s * slowness, attack


def _assert_gone(broker: WatchedBroker, sockets: int) -> None:
    deadline = time.monotonic() + GONE_S_MAX
    while broker.usage.sockets() > sockets:
        assert time.monotonic() < deadline, "connections of the attacker are left behind"
        broker.bystander.report(1)  # The broker has served another round, and so had its time for the others.


def request(message: m.Message, correlation: int = 7, batches: int = 0) -> bytes:
    """A well-formed control message that announces so many batches."""
    return bytes(encode(message, correlation, batches))
