"""The Cap'n Proto schemas, loaded once. They lie in `schema/`, the contract for every language."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import capnp

_PACKAGE = Path(__file__).resolve().parent.parent
# In a wheel the schemas lie inside the package, in a source checkout beside it.
SCHEMA_DIR = _PACKAGE / "schema" if (_PACKAGE / "schema").is_dir() else _PACKAGE.parent / "schema"


@cache
def load(name: str) -> Any:
    """The module of `schema/{name}.capnp`."""
    capnp.remove_import_hook()
    return capnp.load(str(SCHEMA_DIR / f"{name}.capnp"))
