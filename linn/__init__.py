"""linn: a message broker in which every topic is a queue, a stream, or both, chosen per topic in TOML.

`linn.connect(url)` opens a client, see `linn.client`; `linn.sync.connect(url)` a blocking one. The broker begins in
`linn.core.broker.broker`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linn import sync
    from linn.client import connect

__all__ = ["__version__", "connect", "sync"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The clients are loaded when they are asked for, so that a broker starts without it.
    if name == "connect":
        from linn.client import connect

        return connect
    if name == "sync":
        return importlib.import_module("linn.sync")
    raise AttributeError(f"module 'linn' has no attribute {name!r}")
