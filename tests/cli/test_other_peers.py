"""A peer that is no broker of this version: every command says so in one line, and ends with 4, soon."""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from test_every_command import WITH_BROKER

import linn
from linn.wire import codec
from linn.wire.messages import Done, Failed, Message, Welcome

PEER_TIMEOUT_S = 300
COMMAND_S_MAX = 5
"""Time limit of a command in this process that is answered at once; on a busy machine it takes a tenth of it."""


def framed(message: Message) -> bytes:
    return bytes(codec.encode(message, 1))


REFUSED = Failed("protocol.version_unsupported", "this broker speaks versions 2 to 3")
OTHER_VERSION = Welcome(2, [], "a broker of tomorrow", 1 << 20, 1 << 20, 1 << 20, 0, 100, 100)
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
ANSWERS = {
    "a broker that refuses the version": (framed(REFUSED), "protocol.version_unsupported", "versions 2 to 3"),
    "a broker that welcomes in another": (
        framed(OTHER_VERSION),
        "protocol.version_unsupported",
        "version 2, this client 1",
    ),
    "a broker that answers something else": (framed(Done()), "protocol.malformed", "no linn broker"),
    "an HTTP server": (HTTP, "protocol.malformed", "no linn broker"),
    "an SSH server": (b"SSH-2.0-OpenSSH_9.2\r\n", "protocol.malformed", "no linn broker"),
    "a server that hangs up": (b"", "connection.lost", "closed the connection"),
}


class OtherPeer:
    """Listens, and gives each who connects the same bytes once it has said something; None: nothing, for ever."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.url = f"linn://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            stream.settimeout(PEER_TIMEOUT_S)
            if self._answer is None:
                self._open.append(stream)
                continue
            with stream:
                stream.recv(1 << 16)
                stream.sendall(self._answer)
                stream.shutdown(socket.SHUT_WR)
                while stream.recv(1 << 16):
                    pass

    def close(self) -> None:
        # Closing alone does not wake a thread that is in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PEER_TIMEOUT_S)
        for stream in self._open:
            stream.close()


@pytest.fixture(scope="module")
def peer_that() -> Iterator[Callable[[bytes | None], OtherPeer]]:
    peers: dict[bytes | None, OtherPeer] = {}

    def peer(answer: bytes | None) -> OtherPeer:
        if answer not in peers:
            peers[answer] = OtherPeer(answer)
        return peers[answer]

    yield peer
    for each in peers.values():
        each.close()


@pytest.mark.parametrize("peer", ANSWERS)
@pytest.mark.parametrize("command", WITH_BROKER, ids=" ".join)
def test_a_server_other_than_this_version_of_linn_is_one_line_and_4(
    within, line_of, peer_that, command: tuple[str, ...], peer: str
) -> None:
    answer, code, said = ANSWERS[peer]
    began = time.monotonic()
    done = within(*command, url=peer_that(answer).url)
    assert time.monotonic() - began < COMMAND_S_MAX
    line = line_of(done.stderr)
    assert line.endswith(f"[{code}]")
    assert said in line
    assert (done.returncode, done.stdout) == (4, "")


@pytest.mark.parametrize("command", WITH_BROKER, ids=" ".join)
def test_a_silent_port_ends_with_one_line_and_4(
    within, line_of, peer_that, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linn, "connect", partial(linn.connect, connect_timeout_s=0.1))
    done = within(*command, url=peer_that(None).url)
    assert "did not answer within 0.1 s [connection.failed]" in line_of(done.stderr)
    assert (done.returncode, done.stdout) == (4, "")


def test_a_silent_port_is_given_up_after_five_seconds(run, line_of, peer_that) -> None:
    began = time.monotonic()
    done: subprocess.CompletedProcess[str] = run("topics", url=peer_that(None).url)
    assert time.monotonic() - began > 5
    assert "did not answer within 5 s [connection.failed]" in line_of(done.stderr)
    assert done.returncode == 4


@pytest.mark.parametrize("peer", ANSWERS)
def test_the_doctor_reports_it_and_continues(within, peer_that, peer: str) -> None:
    answer, code, _ = ANSWERS[peer]
    done = within("doctor", "--json", url=peer_that(answer).url)
    assert "Traceback" not in done.stderr
    assert f"[{code}]" in done.stdout
    assert '"name": "broker"' in done.stdout
