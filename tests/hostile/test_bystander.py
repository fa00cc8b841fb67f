"""The harness notices what it is there to notice: a broker that stands still, a disturbed bystander, no verdict."""

from __future__ import annotations

import gc
import signal
import socket
import threading
import warnings

import pytest
import wire
from attack import Peer, WatchedBroker, attacked

from linn.wire import messages as m


@pytest.mark.perf
def test_a_broker_that_does_nothing_for_a_second_fails_the_attack(broker: WatchedBroker) -> None:
    def stand_still() -> None:
        with attacked(broker) as attack:
            attack.connect().is_served()
            broker.signal(signal.SIGSTOP)
            threading.Event().wait(1.0)
            broker.signal(signal.SIGCONT)

    with pytest.raises(AssertionError, match="rate kept"):
        stand_still()


def test_an_attacker_whose_outcome_is_not_checked_fails_the_attack(broker: WatchedBroker) -> None:
    def forget() -> None:
        with attacked(broker) as attack:
            attack.connect()

    with pytest.raises(AssertionError, match="the test says how"):
        forget()


@pytest.mark.perf
def test_memory_and_processor_time_over_their_bounds_fail_the_attack(broker: WatchedBroker) -> None:
    def cost(values: int, **bounds: float) -> None:
        with attacked(broker, **bounds) as attack:  # type: ignore[arg-type]
            peer = attack.connect()
            for _ in range(20):
                assert isinstance(peer.ask(m.Publish("t"), wire.plain([bytes(500_000)] * values)), m.Failed)
            peer.is_served()

    cost(4, cpu_s=1.0, memory_bytes=64 << 20)
    with pytest.raises(AssertionError, match="rate kept"):
        cost(4, cpu_s=0.0001, memory_bytes=64 << 20)
    with pytest.raises(AssertionError, match="rate kept"):
        cost(15, cpu_s=1.0, memory_bytes=1000)  # More than the process has kept from before.


def test_a_record_that_is_not_its_own_disturbs_the_bystander(broker: WatchedBroker) -> None:
    def interfere() -> None:
        with attacked(broker) as attack:
            peer = attack.connect()
            peer.ask(m.Publish("bystander-queue"), wire.plain([b"alien"]))
            peer.is_served()

    with pytest.raises(AssertionError, match="in the place of"):
        interfere()


def test_an_attacker_that_is_not_let_in_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        hangs_up = threading.Thread(target=lambda: server.accept()[0].close())
        hangs_up.start()
        with pytest.raises(EOFError):
            Peer(f"127.0.0.1:{server.getsockname()[1]}", greeted=True)
        hangs_up.join()
        gc.collect()
    assert [warning.category for warning in warned] == []
