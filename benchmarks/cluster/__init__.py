"""The group `cluster`: what replication, and brokers that share topics, cost beside one broker.

Read on: `processes` (etcd, three brokers, workers), `work` (the runs), `lines` (the results).
"""
