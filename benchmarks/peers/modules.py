"""Programs in Go: built from the module proxy by the ordinary client, once per version."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.peers.peer import PeerMissing
from benchmarks.peers.server_process import program

TIMEOUT_S = 600.0
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linn-peers"


def built(package: str, version: str) -> str:
    """The path of the program that a package makes. Raises PeerMissing."""
    folder = CACHE / f"{package.replace('/', '-')}-{version}"
    name = next(part for part in reversed(package.split("/")) if not _is_major(part))
    found = folder / name
    if found.exists():
        return str(found)
    go = program("go", "see go.dev/doc/install, or apt-get install golang")
    try:
        done = subprocess.run(
            [go, "install", f"{package}@{version}"],
            env=dict(os.environ) | {"GOBIN": str(folder)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"go did not build {package} within {TIMEOUT_S:g} s") from None
    if done.returncode or not found.exists():
        raise PeerMissing(f"go could not build {package} {version}: {done.stderr[-300:].strip()}")
    return str(found)


def _is_major(part: str) -> bool:
    return part[:1] == "v" and part[1:].isdigit()
