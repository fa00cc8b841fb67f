"""Listeners inside TLS: who gets in, what the two sides are told, and what hostile clients cost."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextlib import nullcontext as nothing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from tls_world import HOST, OURS, authority, context_of_client, inline, pair, tls_table, write_pair
from trio.testing import MockClock

import linn
from linn.client.connection.secure import secured
from linn.core.broker.broker import Broker
from linn.core.connections.certificates import RELOAD_INTERVAL_S
from linn.core.env.env import Stream
from linn.core.env.real.env import RealEnv
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.tls import TlsFailed, TlsInvalid, TlsRequired
from linn.core.errors.tree import AddressInvalid, ConnectionLost, LinnError
from linn.testing import BrokerThread
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import plugin_broker
from linn.testing.sim_env import SimEnv

TABLES = """
[listeners.native]
address = "127.0.0.1:0"
tls = "edge"
[listeners.plain]
address = "127.0.0.1:0"
[listeners.metrics]
protocol = "metrics"
address = "127.0.0.1:0"
tls = "edge"
[topics.jobs]
kind = "queue"
storage = "dram"
"""


@asynccontextmanager
async def broker_at(folder: Path, more: str = "") -> AsyncIterator[Broker]:
    """Run a broker with the TLS table `edge`, which has the settings `more` too."""
    text = f'[broker]\ndata_dir = "{folder}/data"\n{tls_table(folder, more)}{TABLES}'
    async with plugin_broker(RealEnv(), text) as broker:
        yield broker


def url_of(broker: Broker, scheme: str = "linns", listener: str = "native") -> str:
    return f"{scheme}://{broker.addresses[listener]}"


def tls_of(folder: Path, **options: Path) -> linn.Tls:
    return linn.Tls(ca=folder / "ca.pem", **options)


def shown_by_client(folder: Path, name: str = "worker", by: str = OURS) -> dict[str, Path]:
    """Write a client's certificate; return the options of `linn.Tls` that name it."""
    certificate, key = pair(name, by=by)
    (folder / f"{name}.pem").write_bytes(certificate)
    (folder / f"{name}-key.pem").write_bytes(key)
    return {"certificate": folder / f"{name}.pem", "key": folder / f"{name}-key.pem"}


async def tls_stream(broker: Broker, context: ssl.SSLContext, listener: str = "native") -> TlsStream:
    """Connect and shake hands with nothing else."""
    stream = TlsStream(await RealEnv().net.connect(broker.addresses[listener]), context, server_name=HOST)
    try:
        with trio.fail_after(10):
            await stream.handshake(inline)
    except BaseException:
        await stream.aclose()
        raise
    return stream


# --- clients get in ---------------------------------------------------------------------------------------------------


async def test_messages_go_through_tls_both_ways(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, linn.connect(url_of(broker), tls=tls_of(tmp_path)) as client:
        values = [bytes([index]) * 300_000 for index in range(20)]
        async with client.producer("jobs") as producer, client.consumer("jobs") as consumer:
            await producer.publish_many(values)
            for value in values:
                message = await anext(consumer)
                assert message.value == value
                await message.ack()


def test_a_blocking_client_and_one_under_asyncio_get_in(tmp_path: Path) -> None:
    with BrokerThread(topics={"jobs": {"kind": "queue"}}, tls=True) as broker:
        assert broker.url.startswith("linns://")
        with linn.sync.connect(broker.url, tls=broker.tls) as client, client.producer("jobs") as producer:
            producer.publish(b"blocking" * 100_000)

        async def main() -> None:
            async with linn.connect(broker.url, tls=broker.tls) as client, client.consumer("jobs") as consumer:
                message = await anext(consumer)
                assert message.value == b"blocking" * 100_000
                await message.ack()

        asyncio.run(main())


async def test_metrics_are_read_through_tls(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker:
        stream = await tls_stream(broker, context_of_client(), "metrics")
        await stream.send([b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"])
        buffer, page = memoryview(bytearray(65536)), b""
        while count := await stream.receive_into(buffer):
            page += buffer[:count]
        await stream.aclose()
    days = [float(line.split()[-1]) for line in page.decode().splitlines() if line.startswith("linn_tls_certificate")]
    assert len(days) == 1
    assert days[0] > 300


# --- clients are told what is wrong -----------------------------------------------------------------------------------


async def test_a_client_without_tls_is_told_to_use_it(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker:
        with pytest.raises(TlsRequired, match="linns://"):
            async with linn.connect(url_of(broker, "linn")):
                pass


async def test_a_client_with_tls_is_told_that_the_listener_has_none(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker:
        with pytest.raises(TlsFailed, match=r"does not speak TLS: its URL begins with linn://"):
            async with linn.connect(url_of(broker, listener="plain"), tls=tls_of(tmp_path)):
                pass


async def test_an_authority_that_is_not_trusted_is_refused_by_the_client(tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_bytes(authority("others").cert_pem.bytes())
    async with broker_at(tmp_path) as broker:
        for tls in (linn.Tls(ca=tmp_path / "other.pem"), None):
            with pytest.raises(TlsFailed, match="certificate of the other side is not accepted"):
                async with linn.connect(url_of(broker), tls=tls):
                    pass


async def test_a_certificate_for_another_host_is_refused_by_the_client(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker:
        write_pair(tmp_path, *pair("elsewhere.example"))
        broker.certificates.reload()
        with pytest.raises(TlsFailed, match="not valid for"):
            async with linn.connect(url_of(broker), tls=tls_of(tmp_path)):
                pass


async def test_a_client_with_tls_options_and_a_plain_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LinnError, match="without TLS"):
        async with linn.connect("linn://127.0.0.1:1", tls=linn.Tls()):
            pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ca": "no-such.pem"}, "ca: can't read .*no-such.pem: No such file"),
        ({"ca": "key.pem"}, "ca: .*has no certificate"),
        ({"certificate": "cert.pem", "key": "ca.pem"}, "key: .*ca.pem: the file has no private key"),
    ],
)
async def test_wrong_files_of_a_client_are_named(tmp_path: Path, options: dict[str, str], text: str) -> None:
    async with broker_at(tmp_path) as broker:
        with pytest.raises(LinnError, match=text):
            async with linn.connect(
                url_of(broker), tls=linn.Tls(**{name: tmp_path / file for name, file in options.items()})
            ):
                pass


# --- certificates of clients ------------------------------------------------------------------------------------------


def client_ca(folder: Path, ask: str) -> str:
    return f'client_ca = "{folder}/ca.pem"\nclient_certificate = "{ask}"'


async def test_a_required_certificate_lets_in_who_has_one(tmp_path: Path) -> None:
    options = shown_by_client(tmp_path)
    stranger = shown_by_client(tmp_path, "stranger", by="others")
    async with broker_at(tmp_path, client_ca(tmp_path, "required")) as broker:
        async with linn.connect(url_of(broker), tls=tls_of(tmp_path, **options)) as client:
            assert client.broker
        with pytest.raises(TlsFailed, match="requires a certificate"):
            async with linn.connect(url_of(broker), tls=tls_of(tmp_path)):
                pass
        with pytest.raises(TlsFailed, match="does not trust"):
            async with linn.connect(url_of(broker), tls=tls_of(tmp_path, **stranger)):
                pass


async def test_an_optional_certificate_is_checked_if_it_is_shown(tmp_path: Path) -> None:
    stranger = shown_by_client(tmp_path, "stranger", by="others")
    async with broker_at(tmp_path, client_ca(tmp_path, "optional")) as broker:
        for shown in ({}, shown_by_client(tmp_path)):
            async with linn.connect(url_of(broker), tls=tls_of(tmp_path, **shown)) as client:
                assert client.broker
        with pytest.raises(TlsFailed, match="does not trust"):
            async with linn.connect(url_of(broker), tls=tls_of(tmp_path, **stranger)):
                pass


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lowest", "wanted", "is_let_in"),
    [
        ("1.3", ssl.TLSVersion.TLSv1_3, True),
        ("1.3", ssl.TLSVersion.TLSv1_2, False),
        ("1.2", ssl.TLSVersion.TLSv1_2, True),
        ("1.2", ssl.TLSVersion.TLSv1_1, False),
    ],
)
async def test_older_versions_are_refused(tmp_path: Path, lowest: str, wanted: ssl.TLSVersion, is_let_in: bool) -> None:
    context = context_of_client()
    with pytest.warns(DeprecationWarning, match="TLSv1_1") if wanted == ssl.TLSVersion.TLSv1_1 else nothing():
        context.minimum_version = wanted
        context.maximum_version = wanted
    if wanted == ssl.TLSVersion.TLSv1_1:
        context.set_ciphers("ALL:@SECLEVEL=0")
    async with broker_at(tmp_path, f'versions = "{lowest}"') as broker:
        if is_let_in:
            await (await tls_stream(broker, context)).aclose()
        else:
            with pytest.raises(TlsFailed):
                await tls_stream(broker, context)
            with trio.fail_after(5):
                while not broker.connections.traffic["native"].failed:
                    await trio.sleep(0.01)
            assert broker.connections.traffic["native"].failed == {"tls.failed": 1}


# --- the files, at the start and later --------------------------------------------------------------------------------


def expired() -> tuple[bytes, bytes]:
    return pair(HOST, not_after=datetime(2020, 1, 1, tzinfo=UTC))


def spoil(folder: Path, how: str) -> None:
    """Change the files of `tls_table`."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    if how == "open to others":
        key.chmod(0o640)
    elif how == "expired":
        write_pair(folder, *expired())
    elif how == "of another":
        write_pair(folder, certificate.read_bytes(), pair("another")[1])
    elif how == "half written":
        certificate.write_bytes(certificate.read_bytes()[:300])
    elif how == "half a key":
        key.write_bytes(key.read_bytes()[:100])
    else:
        certificate.unlink()
        if how == "a folder":
            certificate.mkdir()
        elif how == "a FIFO":
            os.mkfifo(certificate)
        elif how == "huge":
            certificate.write_bytes(bytes(2 << 20))


SPOILED = {
    "open to others": r"tls\.edge\.key: can't use .*key\.pem: others may use it \(mode 0640\)",
    "expired": r"tls\.edge\.certificate: .*cert\.pem: the certificate has expired",
    "of another": r"tls\.edge\.key: .*key\.pem: the key does not belong to the certificate",
    "half written": r"tls\.edge\.certificate: .*cert\.pem: the file has no certificate in PEM",
    "half a key": r"tls\.edge\.key: .*key\.pem: the file has no private key in PEM, or a damaged one",
    "missing": r"tls\.edge\.certificate: can't read .*cert\.pem: No such file",
    "a folder": r"tls\.edge\.certificate: can't read .*cert\.pem: it is not a file",
    "a FIFO": r"tls\.edge\.certificate: can't read .*cert\.pem: it is not a file",
    "huge": r"tls\.edge\.certificate: can't read .*cert\.pem: it has 2097152 bytes",
}


@pytest.mark.parametrize("how", SPOILED)
async def test_a_broker_with_files_of_no_use_does_not_start(tmp_path: Path, how: str) -> None:
    table = tls_table(tmp_path)
    spoil(tmp_path, how)
    text = f'[broker]\ndata_dir = "{tmp_path}/data"\n{table}{TABLES}'
    with trio.fail_after(5), pytest.raises(TlsInvalid, match=SPOILED[how]):
        async with plugin_broker(RealEnv(), text):
            pass
    assert not (tmp_path / "data").exists(), "it is refused before anything is made"


@pytest.mark.parametrize("how", SPOILED)
async def test_files_of_no_use_replace_nothing_and_are_logged_once(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_at(tmp_path) as broker:
        spoil(tmp_path, how)
        for _ in range(3):
            broker.certificates.reload()
        async with linn.connect(url_of(broker), tls=tls_of(tmp_path)) as client:
            assert client.broker
    assert len([record for record in caplog.records if re.search(SPOILED[how], record.getMessage())]) == 1


async def test_a_new_pair_is_for_new_connections_and_old_ones_go_on(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker:
        async with linn.connect(url_of(broker), tls=tls_of(tmp_path)) as client:
            old = await tls_stream(broker, context_of_client())
            write_pair(tmp_path, *pair(HOST, "renewed"))
            broker.certificates.reload()
            new = await tls_stream(broker, context_of_client())
            assert old.server_end_point != new.server_end_point
            await client.describe()
            for stream in (old, new):
                await stream.aclose()


def test_the_files_are_read_again_by_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_at(tmp_path) as broker:
            before = broker.certificates.wrap("edge", await unused_stream(broker)).server_end_point
            write_pair(tmp_path, *pair(HOST, "renewed"))
            await trio.sleep(RELOAD_INTERVAL_S + 1)
            after = broker.certificates.wrap("edge", await unused_stream(broker)).server_end_point
            assert before != after

    trio.run(main, clock=MockClock(autojump_threshold=0.05))


async def unused_stream(broker: Broker) -> Stream:
    stream = await RealEnv().net.connect(broker.addresses["plain"])
    await stream.aclose()
    return stream


async def test_a_client_comes_back_when_the_certificate_is_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_at(tmp_path) as broker:
        async with linn.connect(url_of(broker), tls=tls_of(tmp_path), backoff_max_s=0.02) as client:
            write_pair(tmp_path, *pair(HOST, by="others"))
            broker.certificates.reload()
            (connection,) = broker.connections.traffic["native"].open.values()
            broker.connections.close(connection.number, "to try")
            with trio.fail_after(10):
                while not broker.connections.traffic["native"].failed.get("tls.failed", 0):
                    await trio.sleep(0.01)
            write_pair(tmp_path, *pair(HOST, "renewed"))
            broker.certificates.reload()
            assert (await client.describe()).topics


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", ".example"])
async def test_a_host_that_no_certificate_can_have_is_an_invalid_address(tmp_path: Path, host: str) -> None:
    async with broker_at(tmp_path) as broker:
        stream = await plain_stream(broker)
        with pytest.raises(AddressInvalid):
            await secured(stream, host, linn.Tls(ca=tmp_path / "ca.pem"))


# --- facts about a connection -----------------------------------------------------------------------------------------


async def test_both_sides_know_the_servers_certificate_and_the_broker_the_clients(tmp_path: Path) -> None:
    seen: list[TlsStream] = []

    async def serve(self: object, stream: TlsStream, gateway: object) -> None:
        seen.append(stream)

    options = shown_by_client(tmp_path, "spiffe.example")
    context = context_of_client(shown=(options["certificate"].read_bytes(), options["key"].read_bytes()))
    async with broker_at(tmp_path, client_ca(tmp_path, "required")) as broker:
        certificate = ssl.PEM_cert_to_DER_cert((tmp_path / "cert.pem").read_text().split("-----END")[0] + END)
        for listener in broker.listening._listeners:
            listener.server = type("Seen", (), {"serve": serve})()
        stream = await tls_stream(broker, context)
        with trio.fail_after(5):
            while not seen:
                await trio.sleep(0.01)
        shown = seen[0].peer_certificate()
        assert shown is not None
        assert shown.dns_names == ("spiffe.example",)
        assert shown.uris == ()
        assert stream.server_end_point == seen[0].server_end_point == hashlib.sha256(certificate).digest()
        assert seen[0].version == "TLSv1.3"
        await stream.aclose()


END = "-----END CERTIFICATE-----\n"

# --- hostile clients --------------------------------------------------------------------------------------------------


async def plain_stream(broker: Broker, listener: str = "native") -> Stream:
    return await RealEnv().net.connect(broker.addresses[listener])


async def ended(stream: Stream) -> None:
    """Wait until the other side has ended a connection."""
    buffer = memoryview(bytearray(4096))
    with contextlib.suppress(ConnectionLost), trio.fail_after(10):
        while await stream.receive_into(buffer):
            pass
    await stream.aclose()


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = context_of_client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HALVES = {
    "silence": b"",
    "a byte": b"\x16",
    "half a hello": client_hello()[:200],
    "a hello": client_hello(),
    "a record that never ends": b"\x16\x03\x01\x40\x00",
}


async def test_half_a_handshake_ends_after_its_time_and_holds_up_nobody(tmp_path: Path) -> None:
    async with broker_at(tmp_path, 'handshake_timeout = "500ms"') as broker:
        streams = []
        for beginning in HALVES.values():
            for _ in range(20):
                stream = await plain_stream(broker)
                await stream.send([beginning])
                streams.append(stream)
        began = trio.current_time()
        async with linn.connect(url_of(broker), tls=tls_of(tmp_path)) as client:
            assert client.broker
        assert trio.current_time() - began < 5
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(ended, stream)
        failed = broker.connections.traffic["native"].failed
        assert failed == {"request.timeout": len(streams)}


async def test_a_byte_at_a_time_costs_one_computation_per_record(tmp_path: Path) -> None:
    steps = []
    env = RealEnv()

    class CountedThreads:
        async def run(self, work: Callable[[], Any]) -> Any:
            steps.append(work)
            return work()

    env.threads = CountedThreads()  # type: ignore[assignment]
    text = f'[broker]\ndata_dir = "{tmp_path}/data"\n{tls_table(tmp_path)}{TABLES}'
    async with plugin_broker(env, text) as broker:
        stream = await plain_stream(broker)
        for byte in client_hello():
            await stream.send([bytes([byte])])
            await trio.sleep(0)
        assert await stream.receive_into(memoryview(bytearray(100))) > 0
        await stream.aclose()
    assert len(steps) <= 2


GARBAGE = {
    "zeros": bytes(1000),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "a record too large": b"\x16\x03\x01\xff\xff" + bytes(70_000),
    "a record of noise": b"\x16\x03\x01\x02\x00" + bytes(range(256)) * 2,
}


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_ends_its_own_connection_alone(tmp_path: Path, kind: str) -> None:
    async with broker_at(tmp_path) as broker, linn.connect(url_of(broker), tls=tls_of(tmp_path)) as client:
        for listener in ("native", "metrics"):
            stream = await plain_stream(broker, listener)
            with contextlib.suppress(ConnectionLost):
                await stream.send([GARBAGE[kind]])
            await ended(stream)
        await client.describe()
        assert "linn.internal" not in broker.connections.traffic["native"].failed


async def test_a_connection_that_is_cut_off_is_lost_and_not_ended(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker:
        raw = await plain_stream(broker)
        stream = TlsStream(raw, context_of_client(), server_name=HOST)
        await stream.handshake(inline)
        await raw.aclose()
        with trio.fail_after(5):
            while not broker.connections.traffic["native"].failed:
                await trio.sleep(0.01)
        assert broker.connections.traffic["native"].failed == {"connection.lost": 1}


async def test_silent_connections_hold_up_neither_readiness_nor_other_clients(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker:
        silent = [await plain_stream(broker) for _ in range(300)]
        with trio.fail_after(20):
            stream = await tls_stream(broker, context_of_client(), "metrics")
            await stream.send([b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n"])
            buffer = memoryview(bytearray(4096))
            assert bytes(buffer[: await stream.receive_into(buffer)]).startswith(b"HTTP/1.1 200")
            await stream.aclose()
            async with (
                linn.connect(url_of(broker), tls=tls_of(tmp_path)) as client,
                client.producer("jobs") as producer,
            ):
                await producer.publish(b"x" * 1_000_000)
        for each in silent:
            await each.aclose()


async def test_too_many_connections_are_closed_without_a_handshake(tmp_path: Path) -> None:
    text = f'[broker]\nconnections_max = 1\ndata_dir = "{tmp_path}/data"\n{tls_table(tmp_path)}{TABLES}'
    async with plugin_broker(RealEnv(), text) as broker:
        async with linn.connect(url_of(broker), tls=tls_of(tmp_path)):
            with pytest.raises(ConnectionLost, match=r"during the TLS handshake|reset by peer"):
                async with linn.connect(url_of(broker), tls=tls_of(tmp_path)):
                    pass


# --- a simulated network ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_client_comes_back_through_a_simulated_network_that_is_severed(tmp_path: Path, seed: int) -> None:
    table = tls_table(tmp_path)

    async def main(env: SimEnv) -> None:
        env.disk.make_dir(str(tmp_path))
        for name in ("cert.pem", "key.pem"):
            file = env.disk.open(f"{tmp_path}/{name}", create=True)
            file.write([(tmp_path / name).read_bytes()])
            file.close()
        client_env = SimEnv(seed, name="client", world=env.world)
        text = f'{table}[listeners.native]\naddress = "127.0.0.1:5466"\ntls = "edge"\n[topics.jobs]\n'
        async with plugin_broker(env, text):
            async with linn.connect("linns://127.0.0.1:5466", env=client_env, tls=tls_of(tmp_path)) as client:
                async with client.producer("jobs") as producer, client.consumer("jobs") as consumer:
                    for number in range(20):
                        if number % 5 == 4:
                            env.world.sever("client", "node")
                        await producer.publish(bytes([number]) * 50_000)
                    found: list[bytes | None] = []
                    while len(set(found)) < 20:
                        message = await anext(consumer)
                        found.append(message.value)
                        message.ack()
        assert found[:1] == [bytes(50_000)]

    run_simulation(seed, main)
