"""linn: a message broker in which every topic is a queue, a stream, or both, chosen per topic in TOML.

`linn.connect(url)` opens a client, see `linn.client`; `linn.sync.connect(url)` a blocking one. `Client`, `Producer`,
`Consumer` and `Message` are the async client's classes, for annotations; `Password`, `Token` and `Tls` are options of
both clients. `linn.errors` has the errors of both, `linn.descriptions` the types of what `client.admin` returns, and
`linn.participants` the stores that take part in exactly-once delivery. The broker begins in `linn.core.broker.broker`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linn import client, descriptions, errors, participants, sync
    from linn.client import Client, Consumer, Message, Password, Producer, Tls, Token, connect

_OF_CLIENT = ("Client", "Consumer", "Message", "Password", "Producer", "Tls", "Token", "connect")
__all__ = [
    "Client",
    "Consumer",
    "Message",
    "Password",
    "Producer",
    "Tls",
    "Token",
    "__version__",
    "client",
    "connect",
    "descriptions",
    "errors",
    "participants",
    "sync",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The clients are loaded when they are asked for, so that a broker starts without them.
    if name in _OF_CLIENT:
        return getattr(importlib.import_module("linn.client"), name)
    if name in __all__:
        return importlib.import_module(f"linn.{name}")
    raise AttributeError(f"module 'linn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
