"""linn beside its peers: `python -m benchmarks.peers`. The same work, the same records, one machine, one run.

Laws: every server runs on loopback with a data folder of its own, and is ended by its id; records are numbered, and
what was confirmed is counted and looked at when it is consumed, or the measurement fails; what a system does not offer
is said, not imitated; the figures go to the page as they came out.

Read on: `peer` (what a system has to be able to do), `cargo` (the records, and the proof that they came back),
`stopwatch`, `plan` (sizes and times), `trial` (which work is done, in which order), `figure` and `page` (what comes
out). Then one file per system: `linn_broker`, `rabbitmq` with `amqp_session`, `kafka`, `jetstream`, `redis_streams`;
and what they share: `systems`, `server_process`, `jars`, `tool`, `tool_output`.
"""
