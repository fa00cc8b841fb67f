"""The speed matrix: one axis at a time around a default point, with the floor beside linn at every point.

Read on: `point` (the parameters of a run) and `axis` (the one that varies), `shipment` (prebuilt frames), `traffic`
(the load over many connections), then one file per kind of figure: `throughput`, `working_queue`, `open_loop`,
`backlog`. `report` writes the results: `page` the tables, `chart` the plots.
"""
