from __future__ import annotations

import ast
import socket
from pathlib import Path

import anyio
import pytest
from both_loops import on_both_loops
from scripted_peer import Peer, running_peer

import linn
from linn.client.connection.url import parse_url
from linn.core.errors.tree import AddressInvalid, ConnectFailed, ConnectionLost, ProtocolError, VersionUnsupported
from linn.testing.process import BrokerProcess
from linn.wire import messages as m


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("linn://localhost", "localhost:5466"),
        ("linn://10.0.0.1:7", "10.0.0.1:7"),
        ("linn://[::1]:7/", "[::1]:7"),
        ("linn+unix:///run/linn.sock", "unix:/run/linn.sock"),
    ],
)
def test_a_url_names_an_address(url: str, address: str) -> None:
    assert [place.address for place in parse_url(url)] == [address]


@pytest.mark.parametrize(
    "url", ["", "localhost:5466", "kafka://x", "linn://", "linn://x:y", "linn://x:99999", "linn://x/y", "linn+unix://x"]
)
def test_any_other_url_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(AddressInvalid) as caught:
        parse_url(url)
    assert "\n" not in str(caught.value)
    assert repr(url) in str(caught.value)


def test_the_environment_is_read_by_the_commands_alone(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(linn.__file__).parent
    reading = [
        str(module.relative_to(package))
        for module in package.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "getenvb"))
        or (isinstance(node, ast.Constant) and node.value == "LINN_URL")
    ]
    assert reading
    # Programs that the broker or a test starts are given their environment; a Spark driver is such a program. The
    # broker's configuration may name variables that hold secrets.
    others = ("core/env/real/process.py", "core/env/real/programs.py", "spark_plugin/driver/", "testing/process.py")
    assert [module for module in reading if not module.startswith(("cli/", *others))] == []
    monkeypatch.setenv("LINN_URL", "linn://nowhere.invalid")
    with linn.sync.connect(broker) as client:
        assert client.broker
    with pytest.raises(AddressInvalid):
        linn.sync.connect("")


@on_both_loops
async def test_connect_without_a_broker_fails_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed, match="can't connect to 127"):
            async with linn.connect(f"linn://127.0.0.1:{taken.getsockname()[1]}"):
                raise AssertionError


@on_both_loops
async def test_a_silent_peer_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(ConnectFailed, match=r"did not answer within 0\.1 s"):
            async with linn.connect(f"linn://127.0.0.1:{silent.getsockname()[1]}", connect_timeout_s=0.1):
                raise AssertionError


@on_both_loops
async def test_a_program_may_start_before_its_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "linn.sock"
    async with anyio.create_task_group() as tasks:

        async def connect() -> None:
            async with linn.connect(f"linn+unix://{place}", wait_s=60, backoff_s=0.001, backoff_max_s=0.001) as client:
                assert client.broker
            tasks.cancel_scope.cancel()

        tasks.start_soon(connect)
        while "trying for up to 60 s: can't connect to unix:" not in caplog.text:
            await anyio.lowlevel.checkpoint()
        async with await anyio.create_unix_listener(place) as listener:
            await listener.serve(Peer().accept)
    assert caplog.text.count("no broker yet") == 1


@on_both_loops
async def test_a_wait_for_a_broker_ends_in_time_and_says_how_long_it_was(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match=r"no broker after waiting for 0\.1 s: can't connect to unix:"):
        async with linn.connect(f"linn+unix://{tmp_path}/linn.sock", wait_s=0.1):
            raise AssertionError
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(ConnectFailed, match=r"waiting for 0\.1 s: 127.* did not answer"):
            async with linn.connect(f"linn://127.0.0.1:{silent.getsockname()[1]}", wait_s=0.1):
                raise AssertionError


@on_both_loops
async def test_a_wait_for_a_broker_can_be_cancelled(tmp_path: Path) -> None:
    with anyio.move_on_after(0.05) as scope:
        async with linn.connect(f"linn+unix://{tmp_path}/linn.sock", wait_s=600):
            raise AssertionError
    assert scope.cancelled_caught


@on_both_loops
async def test_what_no_wait_can_mend_is_raised_at_once(peer: Peer) -> None:
    peer.answers[m.Hello] = lambda session, event: m.Failed("protocol.version_unsupported", "9 only", False)
    with pytest.raises(VersionUnsupported, match="9 only"):
        async with linn.connect(peer.url, wait_s=600):
            raise AssertionError


@on_both_loops
async def test_a_broker_of_another_version_says_so(peer: Peer) -> None:
    peer.answers[m.Hello] = lambda session, event: m.Failed("protocol.version_unsupported", "9 only", False)
    with pytest.raises(VersionUnsupported, match="9 only"):
        async with linn.connect(peer.url):
            raise AssertionError


@on_both_loops
async def test_another_server_is_distinguished_from_a_broker() -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await anyio.sleep_forever()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        with pytest.raises(ProtocolError):
            async with linn.connect(f"linn://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"):
                raise AssertionError
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_an_error_of_the_block_leaves_it_as_it_is(peer: Peer) -> None:
    with pytest.raises(KeyError):
        async with linn.connect(peer.url):
            raise KeyError


@on_both_loops
async def test_cancelling_the_block_ends_it(peer: Peer) -> None:
    with anyio.move_on_after(0.05) as scope:
        async with linn.connect(peer.url):
            await anyio.sleep_forever()
    assert scope.cancelled_caught


@on_both_loops
async def test_a_client_keeps_its_connection_alive(peer: Peer) -> None:
    peer.keepalive_ms = 40
    async with linn.connect(peer.url):
        await peer.until(lambda: len(peer.messages(m.Ping)) >= 3)
        assert len(peer.messages(m.Hello)) == 1


@on_both_loops
async def test_a_broker_that_falls_silent_is_given_up(peer: Peer) -> None:
    peer.keepalive_ms = 20
    del peer.answers[m.Ping]
    async with linn.connect(peer.url):
        await peer.until(lambda: len(peer.messages(m.Hello)) >= 2)


@on_both_loops
async def test_a_client_that_gave_up_tries_again_when_it_is_asked(peer: Peer) -> None:
    async with linn.connect(peer.url, retries_max=2, backoff_s=0.01) as client:
        peer.answers[m.Hello] = lambda session, event: m.Failed("broker.stopping", "not now", True)
        await peer.cut()
        with pytest.raises(Exception, match="not now"):
            await client.describe("x")
        peer.answers[m.Hello] = peer.welcome
        assert (await client.describe("x")).broker == "peer"


@on_both_loops
async def test_requests_in_flight_are_completed_after_goodbye() -> None:
    async with running_peer() as peer:
        del peer.answers[m.Describe]
        async with linn.connect(peer.url) as client, anyio.create_task_group() as tasks:
            answers: list[str] = []

            async def describe(topic: str) -> None:
                answers.append((await client.describe(topic)).topics[0].name)

            tasks.start_soon(describe, "before")
            await peer.until(lambda: len(peer.messages(m.Describe)) == 1)
            (session,) = peer.sessions
            asked = peer.events[-1]
            await session.send(m.Goodbye("stopping"))
            await session.send(m.Ping(), 7)
            await peer.until(lambda: len(peer.messages(m.Pong)) == 1)
            peer.answers[m.Describe] = peer.describe
            tasks.start_soon(describe, "after")
            await session.send(peer.describe(session, asked), asked.correlation)
            while not answers:
                await anyio.sleep(0.001)
            assert len(peer.messages(m.Describe)) == 1
            await peer.cut()
    assert answers == ["before", "after"]


@pytest.mark.system
@on_both_loops
async def test_the_same_client_speaks_over_a_unix_socket(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, listen=(f"unix:{tmp_path}/s",)) as process:
        assert process.url == f"linn+unix://{tmp_path}/s"
        async with linn.connect(process.url) as client:
            await client.admin.create_topic("t")
            async with client.producer("t") as producer:
                assert (await producer.publish(b"1")).offset == 0


@on_both_loops
async def test_objects_that_outlive_the_client_raise_client_closed(broker: str, name: str) -> None:
    async with linn.connect(broker) as client:
        producer = client.producer(name)
        with pytest.raises(ConnectionLost, match="not entered"):
            await producer.publish(b"1")
    with pytest.raises(ConnectionLost, match="closed"):
        await client.admin.topics()
