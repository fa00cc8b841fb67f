"""Requirements of Spark pipelines beyond the requirements of linn itself: PySpark, pyarrow, and Java 17 or newer."""

from __future__ import annotations

import re
from importlib.util import find_spec

import trio

from linn.api import ProgramEnded, ProgramNotStarted
from linn.core.env.env import Programs

JAVA_MIN = 17
"""Oldest major version of Java that PySpark 4 takes."""
JAVA_ANSWERS_S = 30.0
"""Longest wait for `java -version`, also on a machine that is busy."""
_LINES_MAX = 50
"""Lines of `java -version` that are read: it has three, and options of the environment add some."""
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def missing_package() -> str | None:
    """Return the line that says what to install; None if there is everything. Imports nothing."""
    if all(find_spec(package) is not None for package in ("pyspark", "pyarrow")):
        return None
    return "Spark pipelines need PySpark and pyarrow: pip install 'linn[spark]'"


async def missing_java(programs: Programs) -> str | None:
    """Return the line that says what to install; None if there is a Java that is new enough."""
    java = programs.find("java", "JAVA_HOME")
    if java is None:
        return f"Spark pipelines need Java {JAVA_MIN} or newer, and there is none: install it, or set JAVA_HOME"
    version = await _java_version(programs, java)
    if version is None:
        return f"Spark pipelines need Java {JAVA_MIN} or newer, and {java} does not say its version"
    if version < JAVA_MIN:
        return f"Spark pipelines need Java {JAVA_MIN} or newer, and {java} is Java {version}: install a newer one"
    return None


async def _java_version(programs: Programs, java: str) -> int | None:
    """Return the major version of a Java; None if it does not print one."""
    with trio.move_on_after(JAVA_ANSWERS_S):
        try:
            async with programs.run([java, "-version"]) as program:
                for _ in range(_LINES_MAX):
                    line = await program.receive_output()
                    if line is None:
                        break
                    found = _VERSION.search(line)
                    if found is not None:  # Versions before 9 are written 1.8 and the like.
                        return int(found[2]) if found[1] == "1" and found[2] else int(found[1])
        except (ProgramNotStarted, ProgramEnded):
            pass
    return None
