"""All planted bugs: one for each law, and one for each rule of replication."""

from __future__ import annotations

from broker_mutations import BROKER_MUTATIONS
from cluster_mutations import CLUSTER_MUTATIONS
from producer_mutations import PRODUCER_MUTATIONS
from queue_life_mutations import QUEUE_LIFE_MUTATIONS
from queue_mutations import QUEUE_MUTATIONS
from replication_mutations import REPLICATION_MUTATIONS
from storage_mutations import STORAGE_MUTATIONS
from transaction_mutations import TRANSACTION_MUTATIONS
from two_phase_mutations import TWO_PHASE_MUTATIONS

ALL = (
    *STORAGE_MUTATIONS,
    *QUEUE_MUTATIONS,
    *QUEUE_LIFE_MUTATIONS,
    *BROKER_MUTATIONS,
    *PRODUCER_MUTATIONS,
    *TWO_PHASE_MUTATIONS,
    *TRANSACTION_MUTATIONS,
    *REPLICATION_MUTATIONS,
    *CLUSTER_MUTATIONS,
)
