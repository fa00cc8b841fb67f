"""The systems by name. What one of them needs is imported only when it is measured."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from benchmarks.peers.peer import Peer, PeerMissing

SYSTEMS = {
    "linn": "linn_broker",
    "rabbitmq": "rabbitmq",
    "kafka-3.9": "kafka",
    "kafka-4.1": "kafka",
    "nats": "jetstream",
    "redis": "redis_streams",
    "linn-three": "linn_broker",
    "kafka-3.9-three": "kafka",
    "kafka-4.1-three": "kafka",
}
ALONE = [name for name in SYSTEMS if not name.endswith("-three")]
"""Systems of one broker: those of three are measured on request."""


def peer(name: str) -> Peer:
    """Raises PeerMissing, which says what to install."""
    try:
        module = import_module(f"benchmarks.peers.{SYSTEMS[name]}")
    except ModuleNotFoundError as error:
        raise PeerMissing(f"{error.name} is not installed: pip install 'linn[peers]'") from error
    found = cast(Peer, module.PEERS[name])
    found.check()
    return found
