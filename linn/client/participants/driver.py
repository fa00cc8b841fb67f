"""Database drivers: optional libraries, imported when a participant is made."""

from __future__ import annotations

import importlib


def require_driver(module: str, participant: str, extra: str) -> None:
    """Import a driver. Raises ImportError, which names the extra of linn that installs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{participant} needs {module}: pip install 'linn[{extra}]'", name=module) from error
