"""Configuration of the demo's broker: one exchange, a queue and two streams."""

from __future__ import annotations

PARTITIONS = 4

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
