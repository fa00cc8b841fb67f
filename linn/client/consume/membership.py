"""Membership of a consumer in its group or shared subscription: name, session, and heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

BEATS_PER_SESSION = 3
"""Heartbeats per session."""


class Membership(NamedTuple):
    """Name of a consumer, and the session of a group's member."""

    name: str = ""
    session_s: float = 0.0
    """Time for which the group keeps the share of the member when it is not heard of; 0: no longer than the connection.
    """
    is_static: bool = False
    shared: str = ""
    """Name of the shared subscription that the consumer competes for; "": none."""
    is_two_phase: bool = False
    """Whether a participant stores the effects of what is consumed."""
    is_uncommitted: bool = False
    """Whether records of transactions that are open, or were aborted, are read as well."""


class Heartbeats:
    """Heartbeats of one subscription: some in each session, and one when revoked partitions are let go of."""

    def __init__(
        self, session_s: float, send: Callable[[int], bool], later: Callable[[float, Callable[[], None]], None]
    ) -> None:
        """`send` sends a heartbeat of an epoch; it returns False when the subscription is over."""
        self._interval_s = session_s / BEATS_PER_SESSION
        self._send = send
        self._later = later
        self.epoch = 0
        """Epoch of the latest assignment."""
        self._released_epoch = 0
        """Epoch of the latest assignment whose revoked partitions were let go of."""
        if session_s:
            self._later(self._interval_s, self._beat)

    @property
    def must_release(self) -> bool:
        """Whether the broker may wait for partitions."""
        return self._released_epoch < self.epoch

    def release_revoked(self) -> None:
        """Tell the broker that all revoked partitions are let go of."""
        self._released_epoch = self.epoch
        self._send(self.epoch)

    def _beat(self) -> None:
        if self._send(self._released_epoch):
            self._later(self._interval_s, self._beat)
