"""Configuration of the demo's broker: one exchange, queues and streams, and where there is Spark, two pipelines."""

from __future__ import annotations

import json
from pathlib import Path

from linn.cli.demo.flights import LATE_MINUTES

PARTITIONS = 4
MICRO_BATCHES = 6
"""Number of micro-batches of a pipeline, so that the driver can be killed between two of them."""
SINK, HOURS = "departures", "late-by-hour"
"""Names of the pipelines: the topic that goes to Parquet, and the queue that gets the counts."""

TOML = f"""\
[broker]
drain_timeout = "5s"

[exchanges.flights]
type = "topic"

[topics.delays]                 # late departures: work to be done, once each
kind = "queue"
lease = "60s"
[[topics.delays.bindings]]
exchange = "flights"
key = "departed.*.late"

[topics.departures]             # all departures: a history to be read
kind = "stream"
partitions = {PARTITIONS}
[[topics.departures.bindings]]
exchange = "flights"
key = "departed.#"

[topics.cancellations]
kind = "stream"
[[topics.cancellations.bindings]]
exchange = "flights"
key = "cancelled.*"

[topics.payments]               # money to be moved, exactly once
kind = "queue"
delivery = "exactly-once"

[topics.payments-again]         # the same, at least once, to compare
kind = "queue"
"""

_SPARK = """
[spark]
enabled = {enabled}
conf = {{ "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" }}  # starts faster

[topics.departures.spark_sink]  # all departures, to Parquet by origin
format = "parquet"
path = {path}
partition_by = ["origin"]
value = "json"
schema = "{schema}"
trigger = "200ms"
source_options = {{ maxOffsetsPerTrigger = "{offsets}" }}

[topics.late-by-hour]
kind = "queue"

[[spark.pipelines]]             # late departures, counted by origin and hour; each change of a count is a message
name = "late-by-hour"
topics = ["departures"]
format = "linn"
options = {{ topic = "late-by-hour" }}
output_mode = "update"
value = "json"
schema = "{schema}"
trigger = "200ms"
source_options = {{ maxOffsetsPerTrigger = "{offsets}" }}
sql = '''
SELECT concat(origin, ' ', hour) AS key, to_json(struct(origin, hour, late)) AS value
FROM (
  SELECT origin, date_format(window.start, 'yyyy-MM-dd HH:mm') AS hour, count(*) AS late
  FROM departures
  WHERE delay_min >= {late}
  GROUP BY
    origin,
    window(make_timestamp(2013, month, day, int(left(scheduled, 2)), int(right(scheduled, 2)), 0), '1 hour')
)'''
"""
_SCHEMA = "number long, month int, day int, scheduled string, delay_min int, origin string"


def toml_with_spark(lake: Path, flights: int, *, enabled: bool = True) -> str:
    """Return the configuration with both pipelines.

    Args:
        lake: folder of the Parquet files.
        flights: number of flights, which are spread over some micro-batches.
        enabled: whether the broker starts the driver.
    """
    return TOML + _SPARK.format(
        enabled=str(enabled).lower(),
        path=json.dumps(str(lake)),
        schema=_SCHEMA,
        offsets=max(1, flights // MICRO_BATCHES),
        late=LATE_MINUTES,
    )
