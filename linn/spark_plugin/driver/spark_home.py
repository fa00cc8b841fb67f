"""A home of Spark whose workers import PySpark from where it is installed."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pyspark


def use_unzipped_home() -> None:
    """Let sessions of this process start Spark without its `python/lib/pyspark.zip`, unless SPARK_HOME is set.

    Spark puts that archive first on the path of Python's workers, and Python compiles a module from an archive again
    in each process, which takes 0.8 s; the installed package is read from its bytecode. The home is a folder of links,
    which is removed when the process ends.

    Raises OSError: the links can't be written.
    """
    if "SPARK_HOME" in os.environ:
        return
    home = Path(tempfile.mkdtemp(prefix="linn-spark-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for folder in Path(pyspark.__file__).parent.iterdir():
        if folder.is_dir() and folder.name != "python":
            (home / folder.name).symlink_to(folder)
    os.environ["SPARK_HOME"] = str(home)
