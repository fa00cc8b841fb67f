"""Settings of a driver's Spark session. Pure; docs/how-to/tune-spark.md has the figures behind them."""

from __future__ import annotations

import os
import re

from linn.spark_plugin.spec import DriverSpec


def session_settings(spec: DriverSpec) -> dict[str, str]:
    """Return the settings of Spark; those of the specification's `conf` win."""
    settings = {
        "spark.app.name": f"linn-{spec.group}",
        "spark.master": spec.master,
        "spark.log.structuredLogging.enabled": "false",
        # A task's exchange with its Python worker over TCP stalls for 40 ms.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.sql.warehouse.dir": f"{spec.state_dir}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    slots = local_slots(spec.master)
    if slots is not None:
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # Each task costs some 40 ms: Spark's default of 200 would take 4 s and more for each micro-batch.
            "spark.sql.shuffle.partitions": str(slots),
        }
    return settings | spec.conf


def local_slots(master: str) -> int | None:
    """Return the number of tasks that run at a time in this process, or None for a cluster."""
    found = re.match(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?$", master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)
