"""Bugs in how clients follow the leaders of a cluster, and followers a log that is thinned; and of queues there."""

from __future__ import annotations

from mutation import Mutation

_QUEUES = "queues over brokers"

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
    Mutation(
        name="a follower of a thinned log is not told its producers",
        breaks="A replica that was sent thinned batches knows the producers of their records before it can lead.",
        guarantee="What several brokers promise",
        module="linn.core.replicas.follower_seat",
        original="if any(batch.end_offset - batch.base_offset > batch.count for batch in batches):",
        planted="if False:",
        simulation="thinned replicas",
        seed=0,
        says="was stored again",
    ),
    Mutation(
        name="thinning takes the end of an epoch",
        breaks="The epochs of a thinned log are those of its batches.",
        guarantee="What several brokers promise",
        module="linn.storage_engines.segmented_log.thinning",
        original="if batch.end_offset in ends:",
        planted="if batch.end_offset == segment.end_offset:",
        simulation="thinned replicas",
        seed=1,
        says="the batches are of other epochs",
    ),
    Mutation(
        name="an ack is answered before other brokers have it",
        breaks="A record that was acked is not delivered again, whichever broker leads.",
        guarantee="At least once",
        module="linn.core.log.state_log",
        original="self.committed = self.partition.committed",
        planted="self.committed = self.partition.durable",
        simulation=_QUEUES,
        seed=36,
        says="was delivered after its settlement was confirmed",
    ),
)
