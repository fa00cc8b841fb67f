"""One test vector: a file's bytes, and what a reader must make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Vector:
    """`says` goes into the manifest as it is: what the file holds, or the code of the error that it must give."""

    name: str
    what: str
    content: bytes
    says: dict[str, Any]
