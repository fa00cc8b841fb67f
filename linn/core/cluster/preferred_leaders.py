"""The return of leaderships to preferred replicas: the time at which each is due.

Laws: a replica is due to lead again when it has been in sync, in one session, for `IN_SYNC_S`: a node that comes and
goes gets nothing back. A few are due at a time, since clients of a topic wait for a moment while its leader changes.
All times are in the memory of the controller: the next one begins to count anew.
"""

from __future__ import annotations

from collections import deque

from linn.core.cluster.entries import ClusterState, PartEntry
from linn.core.cluster.moves import drains

IN_SYNC_S = 300.0
"""Time that a replica has to be in sync before it leads again."""
A_MINUTE_MAX = 20
"""Limit of leaderships that return in a minute."""
AGAIN_S = 1.0
"""Pause before leaderships that are due, and have not returned, are tried again."""
_MINUTE_S = 60.0


class PreferredLeaders:
    """Partitions that other nodes lead than the preferred ones, as the controller sees them."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}
        """By key, the session of the preferred replica, and since when it is in sync in it."""
        self._returned_s: deque[float] = deque()
        """Times at which the last ones became due, at most `A_MINUTE_MAX`."""

    def due(self, state: ClusterState, now_s: float) -> set[str]:
        """The keys of partitions whose preferred replicas are to lead, from now on."""
        since: dict[str, tuple[str, float]] = {}
        for key, part in state.parts.items():
            if _may_return(state, part):
                session = state.sessions[part.replicas[0]].session
                before, then_s = self._since.get(key, ("", 0.0))
                since[key] = session, (then_s if before == session else now_s)
        self._since = since
        waiting = sorted((then_s, key) for key, (_, then_s) in since.items() if now_s - then_s >= IN_SYNC_S)
        due = {key for _, key in waiting[: self._room(now_s)]}
        self._returned_s.extend([now_s] * len(due))
        return due

    def _room(self, now_s: float) -> int:
        while self._returned_s and now_s - self._returned_s[0] >= _MINUTE_S:
            self._returned_s.popleft()
        return A_MINUTE_MAX - len(self._returned_s)

    def wait_s(self, now_s: float) -> float:
        """The time until something may be due."""
        if not self._since:
            return float("inf")
        first_s = min(then_s for _, then_s in self._since.values()) + IN_SYNC_S
        if self._room(now_s) == 0:
            first_s = max(first_s, self._returned_s[0] + _MINUTE_S)
        return max(AGAIN_S, first_s - now_s)


def _may_return(state: ClusterState, part: PartEntry) -> bool:
    """Whether the preferred replica may lead, and neither does nor is about to."""
    node = part.replicas[0]
    is_fit = node in part.isr and node in state.sessions and node not in part.unfit and not drains(state, node)
    return is_fit and node not in (part.leader, part.successor) and not part.target and part.leader in state.sessions
