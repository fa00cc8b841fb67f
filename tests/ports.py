"""Ports for servers that must be told theirs before they start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

LOWEST = 10_240
"""Above the ports of well-known services."""
LINUX_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports that Linux gives to connections and to listeners at port 0."""


def free_ports(count: int) -> list[int]:
    """Find ports that nobody uses, and that no connection of another test is given before the server listens."""
    highest = int(LINUX_RANGE.read_text().split()[0]) if LINUX_RANGE.exists() else 32_768
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(range(LOWEST, highest), highest - LOWEST):
            if len(found) == count:
                return found
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"no {count} free ports from {LOWEST} to {highest}")
