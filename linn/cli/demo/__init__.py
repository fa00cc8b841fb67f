"""Demo: a year of flights through a real broker, with a consumer and the broker itself killed on the way.

Read `story` first; `flights` is the input, `tally` counts it, `progress` keeps the queue's ledger, `worker` runs in
processes of its own, `stream_reading` reads the stream, `view` shows it all.
"""
