"""The session of a node, as a state machine: when to renew its lease, and how old the last sign of it is.

Laws: an age counts from when the renewal was sent, on the monotonic clock, so that a session is never younger here than
in the store. A lease that the store has ended is never used again: the next session has a new one.
"""

from __future__ import annotations

RENEWALS_PER_TTL = 3
"""Renewals in the time of a lease: two may be lost."""
RETRIES_PER_TTL = 12


class SessionLease:
    """One lease, from its grant to its end."""

    def __init__(self, lease: int, ttl_s: float, sent_s: float) -> None:
        """Begin; `sent_s`: when the grant was asked for, on the monotonic clock."""
        self.lease = lease
        self.ttl_s = ttl_s
        self._sent_s = sent_s
        self._next_s = sent_s + ttl_s / RENEWALS_PER_TTL
        self.is_lost = False
        """Whether the store has ended it."""

    def age_s(self, now_s: float) -> float:
        """Time since the last renewal that was answered was sent."""
        return now_s - self._sent_s

    def is_expired(self, now_s: float) -> bool:
        """Whether the store may have ended it: this node must count with having been given up."""
        return self.is_lost or self.age_s(now_s) >= self.ttl_s

    def wait_s(self, now_s: float) -> float:
        """Time until the next renewal is sent."""
        return max(0.0, self._next_s - now_s)

    def renewed(self, sent_s: float) -> None:
        """Take over an answer to the renewal that was sent then. Answers out of order change nothing."""
        if sent_s > self._sent_s:
            self._sent_s = sent_s
            self._next_s = sent_s + self.ttl_s / RENEWALS_PER_TTL

    def failed(self, now_s: float) -> None:
        """Take over that a renewal had no answer: the next one comes sooner."""
        self._next_s = now_s + self.ttl_s / RETRIES_PER_TTL

    def lost(self) -> None:
        """Take over that the store has ended it."""
        self.is_lost = True
