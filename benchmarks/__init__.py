"""Benchmarks of linn, as ratios of rates in one run: `python -m benchmarks`, which `make bench` calls.

Laws: a ratio compares two servers that ran in this run, in turns, in processes of their own, under the same load from
the same generator; every process is ended by its id and every folder removed, whatever happens.

Read on: `floor` and `relay` (the servers that linn is measured against), `load` (the generator), `servers` (processes
and their CPU time), `line` and `report` (the results), and one file per kind of line: `publish`, `consume`, `client`,
`blocking_client`, `latency`, `start`, `routing`. `matrix` is a package: tables and plots of many points. `peers` is a
measurement of its own, beside other brokers. docs/how-to/measure.md explains the figures.
"""
