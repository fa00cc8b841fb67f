"""linn beside its peers: `python -m benchmarks.peers`. The same work, the same records, one machine, in rounds.

Laws: every server runs on loopback with a data folder of its own, and is ended by its id; records are numbered, and all
that was confirmed is compared with what is consumed, or the system has no figures; what a system does not offer is
said, not imitated; what the documentation says is made from the raw data, also where linn loses.

Read on: `peer` (what a system has to be able to do), `cargo` (the records, and the proof that they came back),
`stopwatch`, `plan` (sizes, times, the window), `rounds` (which work is done, in which order), `ratios` (the
statistics), `result` (the raw data) and `report` (what comes out). Then one file per system: `linn_broker`, `rabbitmq`
with `amqp_session` and `stream_session`, `kafka`, `jetstream`, `redis_streams`; and what they share: `systems`,
`server_process`, `jars` and `modules` (programs in Java and Go), `tool`, `tool_output`.
"""
