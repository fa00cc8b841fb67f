"""The process that runs pipelines on Spark: `python -m linn.spark_plugin.driver`, started by the broker.

Law: only this package holds a Spark session, and no module outside it imports it.

Read in this order: `__main__` (start and exit codes), `driver` (the loop), `running_pipeline`, `pipeline_settings`,
`frames` (from topics to DataFrames), `json_values`, `sinks`, `lake_sink` with `delta_sink` and `iceberg_sink`; beside
them `session`, `checkpoint`, `status`, `failure`, `control`.
"""
