"""The parts of the broker that sessions work with."""

from __future__ import annotations

from dataclasses import dataclass

from linn.core.admin.administration import Administration
from linn.core.admin.audit import AuditTrail
from linn.core.batch.format import Formats
from linn.core.config.tables import BrokerSettings
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.loop.long_work import LongWork
from linn.core.metrics.registry import MetricRegistry
from linn.core.publish.producer_ids import ProducerIds
from linn.core.publish.publisher import Publisher
from linn.core.security.policy import Policy
from linn.core.topics.catalog import Catalog
from linn.core.transactions.cluster_transactions import ClusterTransactions
from linn.core.transactions.coordinator import TransactionCoordinator


@dataclass(frozen=True, slots=True, eq=False)
class Rooms:
    """The parts of a broker behind its gateway. Protocols do not see them."""

    settings: BrokerSettings
    long_work: LongWork
    catalog: Catalog
    groups: GroupCoordinator
    formats: Formats
    publisher: Publisher
    transactions: TransactionCoordinator
    producer_ids: ProducerIds
    administration: Administration
    metrics: MetricRegistry
    policy: Policy
    audit: AuditTrail
    cluster_transactions: ClusterTransactions | None = None
    """The broker's part in the transactions of its cluster; None: it is alone."""

    @property
    def node(self) -> int:
        """The broker's number in its cluster; 0: it is in none."""
        cluster = self.administration.cluster
        return cluster.number if cluster is not None else 0
