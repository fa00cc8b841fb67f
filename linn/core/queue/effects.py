"""Effects: the result of a step of a shared subscription, which its caller performs."""

from __future__ import annotations

from typing import NamedTuple


class Effects(NamedTuple):
    """The number of records that a step moved to each state, which tells the caller what to do next."""

    settled: int = 0
    """The topic may be trimmed if `settled_before` has moved."""
    ready: int = 0
    """Offer these to consumers."""
    delayed: int = 0
    """`next_deadline` may be earlier than before."""
    dead: int = 0
    """Copy these to the dead-letter topic."""
    decided: int = 0
    """Tell their consumer, once the event is committed."""

    def plus(self, other: Effects) -> Effects:
        """The sum of both."""
        return Effects(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))
