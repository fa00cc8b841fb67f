"""linn: a message broker in which every topic is a queue, a stream, or both, chosen per topic in TOML.

`linn.connect(url)` opens a client; see `linn.client`. The broker begins in `linn.core.broker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linn.client import connect

__all__ = ["__version__", "connect"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The client is loaded when it is asked for, so that a broker starts without it.
    if name == "connect":
        from linn.client import connect

        return connect
    raise AttributeError(f"module 'linn' has no attribute {name!r}")
