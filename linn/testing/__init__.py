"""Tools for tests of programs and plugins that use linn, loaded on first use.

For programs: `BrokerThread` (a broker in this process, for trio, asyncio and blocking code), `VirtualWorld` (broker and
clients in simulated time) and `CrashableBroker` (a process to kill); the pytest fixtures `linn_broker`, `linn_virtual`
and `linn_crash` give them to a test. For plugins: a conformance suite for each kind, see `engines`, `semantics`,
`protocols`, `exchanges`, `partitioners`, `assignors`, `interceptors` and `participants`. For linn itself: `SimEnv`
and `run_simulation`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linn.testing.broker_thread import BrokerThread
    from linn.testing.crashable_broker import CrashableBroker
    from linn.testing.deterministic import run_simulation
    from linn.testing.process import BrokerProcess
    from linn.testing.sim_env import SimEnv
    from linn.testing.virtual_world import VirtualWorld

__all__ = ["BrokerProcess", "BrokerThread", "CrashableBroker", "SimEnv", "VirtualWorld", "run_simulation"]

_PLACES = {
    "BrokerProcess": "process",
    "BrokerThread": "broker_thread",
    "CrashableBroker": "crashable_broker",
    "SimEnv": "sim_env",
    "VirtualWorld": "virtual_world",
    "run_simulation": "deterministic",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
