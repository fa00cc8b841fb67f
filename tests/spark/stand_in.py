"""The configuration of a broker whose Spark drivers are `stand_in_driver.py`, and a Java that says that it is one."""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

DRIVER = Path(__file__).with_name("stand_in_driver.py")
HEARD_S_MAX = 300.0
"""Longest wait for a word of a process, on a machine that is busy."""


def stand_in(folder: Path, **spark: object) -> str:
    """Write the programs into a folder, which is JAVA_HOME; returns the table `[spark]`, with these keys as well."""
    _script(folder / "driver", f'exec "{sys.executable}" "{DRIVER}" "$@"')
    _script(folder / "bin" / "java", "echo 'openjdk version \"17.0.9\" 2023-10-17' >&2")
    keys = {"python": str(folder / "driver"), **spark}
    return "[spark]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


class Alive:
    """A pipe that a driver and its child hold open while they live, and write words into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._reads = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def word(self) -> str:
        """Wait for what they write next; "" once all of them are gone."""
        assert select.select([self._reads], [], [], HEARD_S_MAX)[0], "they say nothing, and live on"
        return os.read(self._reads, 100).decode().strip()

    def close(self) -> None:
        os.close(self._reads)
