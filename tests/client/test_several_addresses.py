"""URLs with several addresses: the first that answers, and another after a loss."""

from __future__ import annotations

import logging
import socket

import pytest
from both_loops import on_both_loops
from scripted_peer import Peer, running_peer

import linn
from linn.client.connection.url import ADDRESSES_MAX, BrokerUrl, parse_url
from linn.core.errors.tree import AddressInvalid, ConnectFailed, VersionUnsupported
from linn.wire import messages as m


def closed_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def named(peer: Peer, name: str) -> None:
    """Give a peer a name, by which a client knows it."""
    peer.answers[m.Hello] = lambda session, event: m.Welcome(1, [], name, 64 << 20, 8 << 20, 1 << 20, 0, 64, 16)


def both(*peers: Peer) -> str:
    """The URL of several peers."""
    return "linn://" + ",".join(peer.url.removeprefix("linn://") for peer in peers)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("linn://a,b:5467,c", ["a:5466", "b:5467", "c:5466"]),
        ("linn://[::1]:7,[::2]/", ["[::1]:7", "[::2]:5466"]),
        ("linn://a,a:5466,b", ["a:5466", "b:5466"]),
        ("linn+unix:///run/a,b.sock", ["unix:/run/a,b.sock"]),
    ],
)
def test_a_url_names_several_addresses(url: str, addresses: list[str]) -> None:
    assert [place.address for place in parse_url(url)] == addresses


def test_each_address_has_the_host_of_its_own_certificate() -> None:
    assert parse_url("linns://a,b:1") == [BrokerUrl("a:5466", "a"), BrokerUrl("b:1", "b")]


@pytest.mark.parametrize(
    "url", ["linn://a,", "linn://,a", "linn://a,,b", "linn://a,linn://b", "linn://a/x,b", "linn://a,b:99999", "a,b"]
)
def test_a_url_with_one_wrong_address_is_refused(url: str) -> None:
    with pytest.raises(AddressInvalid) as caught:
        parse_url(url)
    assert repr(url) in str(caught.value)


def test_the_number_of_addresses_is_limited() -> None:
    names = [f"host-{number}" for number in range(ADDRESSES_MAX + 1)]
    assert len(parse_url("linn://" + ",".join(names[:-1]))) == ADDRESSES_MAX
    with pytest.raises(AddressInvalid, match=f"at most {ADDRESSES_MAX} addresses"):
        parse_url("linn://" + ",".join(names))


@on_both_loops
async def test_the_first_address_that_answers_is_used() -> None:
    async with running_peer() as first, running_peer() as second:
        named(first, "first")
        named(second, "second")
        async with linn.connect(both(first, second)) as client:
            assert client.broker == "first"
        async with linn.connect(f"linn://127.0.0.1:{closed_port()},{second.url.removeprefix('linn://')}") as client:
            assert client.broker == "second"


@on_both_loops
async def test_without_any_broker_the_error_names_all_addresses() -> None:
    first, second = closed_port(), closed_port()
    with pytest.raises(ConnectFailed) as caught:
        async with linn.connect(f"linn://127.0.0.1:{first},127.0.0.1:{second}"):
            raise AssertionError
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


@on_both_loops
async def test_a_refusal_that_no_attempt_mends_comes_before_a_broker_that_is_away(peer: Peer) -> None:
    peer.answers[m.Hello] = lambda session, event: m.Failed("protocol.version_unsupported", "9 only", False)
    with pytest.raises(VersionUnsupported, match="9 only"):
        async with linn.connect(f"{peer.url},127.0.0.1:{closed_port()}", wait_s=60):
            raise AssertionError


@on_both_loops
async def test_after_a_loss_the_next_address_is_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "linn.client")
    async with running_peer() as first, running_peer() as second:
        named(first, "first")
        named(second, "second")
        async with linn.connect(both(first, second), backoff_s=0.001) as client:
            async with client.producer("orders") as producer:
                await producer.publish(b"one")
                await first.cut()
                await producer.publish(b"two")
                assert client.broker == "second"
                await second.cut()
                await producer.publish(b"three")
            assert client.broker == "first"
        assert first.logs == {"orders/0": [b"one", b"three"]}
        assert second.logs == {"orders/0": [b"two"]}
    told = [record.getMessage() for record in caplog.records]
    assert any(text.startswith(f"connected to {second.url.removeprefix('linn://')} again") for text in told)
