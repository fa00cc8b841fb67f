"""One client for each broker and process, since pickled readers carry no sockets and workers read task after task."""

from __future__ import annotations

import gc
import os
from time import monotonic, sleep  # noqa: TID251 (a Spark task has no Env)

from linn.client.blocking.generated.client import Client, connect
from linn.core.errors.tree import ConnectFailed, ConnectionLost

OUTAGE_S_MAX = 30.0
"""Time for which a task waits for a broker that restarts, as long as a connected client waits to reconnect."""
ATTEMPT_PAUSE_S = 0.25

_clients: dict[tuple[int, str], Client] = {}
"""Clients by process and URL: a forked process makes its own."""


def pooled_client(url: str, *, wait_s: float = 0.0) -> Client:
    """Return this process's client of a broker, connected at the first call.

    `wait_s`: time for which it tries again while no broker answers. Raises ConnectFailed, ConnectionLost and others.
    """
    place = os.getpid(), url
    client = _clients.get(place)
    if client is None:
        client = _clients[place] = _connected(url, monotonic() + wait_s)
        # PySpark's worker collects garbage after each task: imported objects need not be visited each time.
        gc.freeze()
    return client


def _connected(url: str, until_s: float) -> Client:
    while True:
        try:
            return connect(url, name="linn-spark")
        except (ConnectFailed, ConnectionLost):
            if monotonic() >= until_s:
                raise
            sleep(ATTEMPT_PAUSE_S)


def forget_client(url: str) -> None:
    """Close this process's client of a broker, so that the next task connects again."""
    client = release_client(url)
    if client is not None:
        client.close()


def release_client(url: str) -> Client | None:
    """Hand this process's client of a broker over to the caller, who closes it. The next task connects again."""
    return _clients.pop((os.getpid(), url), None)
