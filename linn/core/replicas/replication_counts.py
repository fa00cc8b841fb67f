"""Counters of all replicas of one broker, for its metrics. They only grow; each batch or answer adds to them once."""

from __future__ import annotations


class ReplicationCounts:
    """The counters, from the start of the broker."""

    def __init__(self) -> None:
        self.elections = 0
        """Epochs of topics that this broker began to lead."""
        self.expansions = 0
        """In-sync sets to which it has added members, as the leader."""
        self.shrinkages = 0
        """In-sync sets from which it has removed members, as the leader."""
        self.sent_bytes = 0
        """Bytes of batches that its followers asked for."""
        self.received_bytes = 0
        """Bytes of batches that leaders have sent to it."""
