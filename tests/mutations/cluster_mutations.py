"""Bugs in how clients follow the leaders of a cluster."""

from __future__ import annotations

from mutation import Mutation

CLUSTER_MUTATIONS = (
    Mutation(
        name="a reader goes on in the epoch of its subscription",
        breaks="A reader goes on in the epoch of the last records that it read: a leader elected again has them.",
        guarantee="What several brokers promise",
        module="linn.client.consume.subscription",
        original="self._epochs[partition] = batches[-1].leader_epoch",
        planted="pass",
        simulation="leaders",
        seed=4,
        says="lost the records from offset",
    ),
)
