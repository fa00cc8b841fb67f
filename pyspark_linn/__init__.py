"""Discovery by PySpark, which imports all modules named `pyspark_*` and takes their `DefaultSource`.

Law: importing this never fails, since PySpark would find no source of anybody's then. Without the extra `linn[spark]`
there is none here.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from linn.spark_plugin import LinnDataSource as DefaultSource  # noqa: F401
