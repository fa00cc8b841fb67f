"""The Cap'n Proto schemas, loaded once. The files in `schema/` are the contract for every language."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import capnp

_PACKAGE = Path(__file__).resolve().parents[2]
# In a wheel the schemas are inside the package, in a source checkout beside it.
SCHEMA_DIR = _PACKAGE / "schema" if (_PACKAGE / "schema").is_dir() else _PACKAGE.parent / "schema"


@cache
def load(name: str) -> Any:
    """The module of `schema/{name}.capnp`."""
    capnp.remove_import_hook()
    return capnp.load(str(SCHEMA_DIR / f"{name}.capnp"))
