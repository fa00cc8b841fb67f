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
    """Time for which the group keeps the share of a silent member; 0: only while the connection lasts.
    """
    is_static: bool = False
    shared: str = ""
    """Name of the shared subscription that the consumer competes for; "": none."""
    is_two_phase: bool = False
    """Whether a participant stores the effects of messages."""
    is_uncommitted: bool = False
    """Whether records of open and aborted transactions are read as well."""
    priority: int = 0
    """Consumers of a higher priority get a queue's records first."""


class Heartbeats:
    """Heartbeats of one subscription: several per session timeout, and one when revoked partitions are released."""

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
        """Epoch of the latest assignment whose revoked partitions were released."""
        if session_s:
            self._later(self._interval_s, self._beat)

    @property
    def must_release(self) -> bool:
        """Whether the broker may wait for partitions."""
        return self._released_epoch < self.epoch

    def release_revoked(self) -> None:
        """Tell the broker that all revoked partitions are released."""
        self._released_epoch = self.epoch
        self._send(self.epoch)

    def _beat(self) -> None:
        if self._send(self._released_epoch):
            self._later(self._interval_s, self._beat)
