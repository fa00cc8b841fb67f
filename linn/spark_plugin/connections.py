"""One client for each broker and process, since pickled readers carry no sockets and workers read task after task."""

from __future__ import annotations

import gc
import os

from linn.client.blocking.client import Client, connect

_clients: dict[tuple[int, str], Client] = {}
"""Clients by process and URL: a forked process makes its own."""


_uses: dict[str, int] = {}
"""Calls of `fresh_client` since it was made."""


def pooled_client(url: str) -> Client:
    """Return this process's client of a broker, connected at the first call. Raises ConnectFailed and others."""
    place = os.getpid(), url
    client = _clients.get(place)
    if client is None:
        client = _clients[place] = connect(url, name="linn-spark")
        # PySpark's worker collects garbage after each task: what was imported need not be looked through each time.
        gc.freeze()
    return client


def fresh_client(url: str, uses_max: int) -> Client:
    """Return this process's client of a broker, and another one after so many calls. Raises as `pooled_client`."""
    if _uses.get(url, 0) >= uses_max:
        forget_client(url)
    _uses[url] = _uses.get(url, 0) + 1
    return pooled_client(url)


def forget_client(url: str) -> None:
    """Close this process's client of a broker, so that the next task connects again."""
    _uses.pop(url, None)
    client = _clients.pop((os.getpid(), url), None)
    if client is not None:
        client.close()
