"""The extent of a measurement: for people, and a tiny one for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
RING_BYTES = 128 * MIB
"""Size of the topic `ring`: small enough to stay in memory, where each batch replaces an old one."""


@dataclass(frozen=True)
class MatrixPlan:
    """The extent of the group `matrix`."""

    rounds: int = 5
    is_whole: bool = True
    """Whether all values of an axis are measured, or its first two."""
    run_bytes: int = 64 * MIB
    """Bytes of one run of publishing or consuming, limited by `run_batches` as well."""
    run_batches: int = 4_000
    queue_records: int = 1_000_000
    """Records of one run through a queue with batch acks."""
    single_records: int = 100_000
    """The same with single acks."""
    loads: tuple[float, ...] = (0.01, 0.5, 0.8)
    """Fractions of linn's sustained rate at which latency is measured."""
    load_s: float = 6.0
    """Duration of one run at one load."""
    load_rounds: int = 3
    saturating: int = 40_000
    """Messages of the run that finds linn's saturated rate."""
    backlogs: tuple[int, ...] = (1_000_000, 10_000_000, 100_000_000)
    backlog_records: int = 1_000_000
    """Records of one run at one backlog."""


QUICK_MATRIX = MatrixPlan(
    rounds=1,
    is_whole=False,
    run_bytes=1 * MIB,
    run_batches=100,
    queue_records=5_000,
    single_records=1_000,
    load_s=0.2,
    load_rounds=1,
    saturating=500,
    backlogs=(100_000, 200_000),
    backlog_records=100_000,
)


@dataclass(frozen=True)
class ClusterPlan:
    """The extent of the group `cluster`."""

    rounds: int = 5
    is_whole: bool = False
    """Whether all combinations are measured, or those that have a target and their neighbours."""
    run_bytes: int = 16 * MIB
    """Bytes of one run in batches."""
    run_records: int = 100_000
    """Limit of its records."""
    single_calls: int = 200
    """Calls of one run of single publishes."""


@dataclass(frozen=True)
class Plan:
    """Sizes and counts of all measurements."""

    folder: Path
    """Parent of temporary folders, on the disk to measure."""
    rounds: int = 11
    """Number of rounds; with many short runs, a long disturbance affects both sides."""
    batch_kib: tuple[int, ...] = (64, 128, 256)
    publish_bytes: int = 128 * MIB
    """Bytes of one run."""
    turn_bytes: int = RING_BYTES * 7 // 8
    """Bytes of the run before the first: two of them fill the topic `ring`, of which the first fits into it."""
    stock_bytes: int = 128 * MIB
    """Bytes in the stream that is consumed."""
    passes: int = 2
    """Number of passes over the stream in a run."""
    records: int = 500_000
    """Records of one run of a client."""
    single_calls: int = 500
    """Calls of one run of a latency measurement."""
    starts: int = 5
    returning_clients: int = 1_000
    """Clients that log in at once."""
    idempotence_rounds: int = 31
    """Pairs of runs with and without numbers: more than `rounds`, as the difference is small."""
    producers: int = 10_000
    """Number of idempotent producers whose memory is measured."""
    producer_partitions: int = 1_000
    """Number of partitions of the topic that they publish to."""
    partitions_of_producer: int = 20
    """Number of these that each publishes to, so that a storage remembers as many as it can."""
    large_transactions: int = 240
    """Transactions of 1,000 records in one run."""
    small_transactions: int = 2_000
    """Transactions of 10 records in one run."""
    two_phase_records: int = 100_000
    """Records of one run of a consumer that stores the effect of each once."""
    order_rounds: int = 5
    ordered_records: int = 200_000
    """Records of one run through a queue with an order, and of one without."""
    ordered_single_records: int = 50_000
    """The same with single acks."""
    fair_jobs: int = 500
    """Jobs of 99 tenants whose times are measured, alone and beside a flood of one more."""
    flood_records: int = 200_000
    waiting_records: int = 10_000_000
    """Records of a queue whose memory is measured."""
    scheduled_records: int = 1_000_000
    """Messages that wait for their time, whose memory is measured."""
    schedule_rounds: int = 3
    due_ms: int = 3_000
    """Time in which 10 messages a millisecond are due."""
    routings: int = 2_000
    """Batches, or matches, of one run through an exchange."""
    spark_rounds: int = 5
    spark_rows: int = 4_000_000
    """Rows that one job of Spark reads."""
    spark_sink_rows: int = 500_000
    """Rows that one job of Spark writes."""
    spark_batches: int = 60
    """Micro-batches of one row each in one run of a query."""
    matrix: MatrixPlan = field(default_factory=MatrixPlan)
    cluster: ClusterPlan = field(default_factory=ClusterPlan)


def quick_plan(folder: Path) -> Plan:
    """A plan that only shows that everything works: its figures are meaningless."""
    return Plan(
        folder,
        rounds=1,
        batch_kib=(64,),
        publish_bytes=2 * MIB,
        turn_bytes=1 * MIB,
        stock_bytes=2 * MIB,
        passes=1,
        records=5_000,
        single_calls=20,
        starts=1,
        returning_clients=5,
        idempotence_rounds=1,
        producers=50,
        producer_partitions=10,
        partitions_of_producer=2,
        large_transactions=8,
        small_transactions=16,
        two_phase_records=2_000,
        order_rounds=1,
        ordered_records=2_000,
        ordered_single_records=1_000,
        fair_jobs=20,
        flood_records=500,
        waiting_records=2_000,
        scheduled_records=2_000,
        schedule_rounds=1,
        due_ms=50,
        routings=20,
        spark_rounds=1,
        spark_rows=20_000,
        spark_sink_rows=5_000,
        spark_batches=8,
        matrix=QUICK_MATRIX,
        cluster=ClusterPlan(rounds=1, run_bytes=1 * MIB, run_records=2_000, single_calls=20),
    )
