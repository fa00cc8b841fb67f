"""Spark pipelines that the broker supervises: `[spark]`, `[[spark.pipelines]]` and `[topics.NAME.spark_sink]`.

Law: importing this package imports neither PySpark nor pyarrow; only the driver, a process of its own, does.

Read on: `settings` (the tables), `checks`, `pipeline` (their result), `driver_group` (the state machine of one
driver and its pipelines, without I/O), `driver_run` (its process), `service` (all groups), `plugin`.
"""
