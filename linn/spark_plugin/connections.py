"""One client for each broker and process, since pickled readers carry no sockets and workers read task after task; and
waiting for a leader, since a streaming query ends with the first error of its planning.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from time import monotonic, sleep  # noqa: TID251 (a Spark task has no Env)
from typing import TypeVar

from linn.client.blocking.generated.client import Client
from linn.core.errors.peers import PeerError
from linn.core.errors.replication import NotLeader
from linn.core.errors.tls import TlsFailed
from linn.core.errors.tree import ConnectFailed, ConnectionLost
from linn.spark_plugin.place import BrokerPlace

OUTAGE_S_MAX = 30.0
"""Time for which a task waits for a broker that restarts, or for a topic's next leader, as long as a connected client
waits to reconnect.
"""
ATTEMPT_PAUSE_S = 0.25

_clients: dict[tuple[int, BrokerPlace], Client] = {}
"""Clients by process and place: a forked process makes its own."""


def pooled_client(place: BrokerPlace, *, wait_s: float = 0.0) -> Client:
    """Return this process's client of a broker, connected at the first call.

    `wait_s`: time for which it tries again while no broker answers. Raises ConnectFailed, ConnectionLost, AuthFailed
    and others; a login or a certificate that is refused is not tried again.
    """
    mine = os.getpid(), place
    client = _clients.get(mine)
    if client is None:
        client = _clients[mine] = _connected(place, monotonic() + wait_s)
        # PySpark's worker collects garbage after each task: imported objects need not be visited each time.
        gc.freeze()
    return client


def _connected(place: BrokerPlace, until_s: float) -> Client:
    while True:
        try:
            return place.connect("linn-spark")
        except TlsFailed:
            raise
        except (ConnectFailed, ConnectionLost):
            if monotonic() >= until_s:
                raise
            sleep(ATTEMPT_PAUSE_S)


R = TypeVar("R")


def patiently(ask: Callable[[], R]) -> R:
    """Return the answer to a request, which is repeated while its topic has no leader that answers.

    Raises the request's errors; NotLeader, PeerError: no leader has answered within OUTAGE_S_MAX.
    """
    until_s = monotonic() + OUTAGE_S_MAX
    while True:
        try:
            return ask()
        except (NotLeader, PeerError):
            if monotonic() >= until_s:
                raise
            sleep(ATTEMPT_PAUSE_S)


def forget_client(place: BrokerPlace) -> None:
    """Close this process's client of a broker, so that the next task connects again."""
    client = release_client(place)
    if client is not None:
        client.close()


def release_client(place: BrokerPlace) -> Client | None:
    """Hand this process's client of a broker over to the caller, who closes it. The next task connects again."""
    return _clients.pop((os.getpid(), place), None)
