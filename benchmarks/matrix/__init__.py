"""The speed matrix: one axis at a time around a default point, the floor beside linn at every place.

Read on: `point` (what a broker is asked for) and `axis` (what varies), `shipment` (frames made before), `traffic` (the
load over many connections), then one file per kind of figure: `throughput`, `working_queue`, `open_loop`, `backlog`.
`report` writes what comes out: `page` the tables, `chart` the plots.
"""
