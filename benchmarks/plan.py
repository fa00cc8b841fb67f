"""How much is measured: for people, and tiny for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
RING_BYTES = 128 * MIB
"""What the topic `ring` holds: few enough that they stay in memory, where each batch takes the place of an old one."""


@dataclass(frozen=True)
class Plan:
    """Sizes and counts of everything."""

    folder: Path
    """Where temporary folders are made: on the disk that is to be measured."""
    rounds: int = 11
    """Many short runs: what disturbs the machine for longer than two of them disturbs both sides."""
    batch_kib: tuple[int, ...] = (64, 128, 256)
    publish_bytes: int = 128 * MIB
    """Of one run."""
    turn_bytes: int = RING_BYTES * 7 // 8
    """Of the run before the first: two of them fill the topic `ring`, of which the first fits into it."""
    stock_bytes: int = 128 * MIB
    """In the stream that is consumed."""
    passes: int = 2
    """How often a run consumes it."""
    records: int = 500_000
    """Of one run of a client."""
    single_calls: int = 500
    """Of one run of a latency measurement."""
    starts: int = 5
    routings: int = 2_000
    """Batches, or matches, of one run through an exchange."""


def quick_plan(folder: Path) -> Plan:
    """Shows that everything works, and nothing else: its figures mean nothing."""
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
        routings=20,
    )
