"""Quotas: a user's rates, over all of the user's connections, kept by reading less and delivering later.

A rate is a token bucket with the tokens of one second. Bytes are counted after they have arrived or were sent, so that
the bucket may go into debt; the next read or delivery waits until the debt is paid. Nothing is refused or lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

PAUSE_S_MAX = 5.0
"""Longest single pause: after it the rate is looked up again, which may have been raised meanwhile."""

Rate = Annotated[int, msgspec.Meta(ge=1)]
BytesPerSecond = Annotated[int, msgspec.Meta(ge=1024)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of one user; None: none."""

    receive_bytes_per_s: BytesPerSecond | None = None
    send_bytes_per_s: BytesPerSecond | None = None
    requests_per_s: Rate | None = None


class Bucket:
    """A token bucket of one second."""

    __slots__ = ("_at_s", "_level", "rate")

    def __init__(self) -> None:
        self.rate: float | None = None
        """Tokens a second; None: unlimited."""
        self._level = 0.0
        self._at_s = 0.0

    def take(self, tokens: int, now_s: float) -> None:
        """Take tokens, which may leave the bucket in debt."""
        if self.rate is not None:
            self._fill(self.rate, now_s)
            self._level -= tokens

    def pause_s(self, now_s: float) -> float:
        """Return the time until the bucket is out of debt; 0 if that is less than one token."""
        if self.rate is None:
            return 0.0
        self._fill(self.rate, now_s)
        return min(-self._level / self.rate, PAUSE_S_MAX) if self._level <= -1 else 0.0

    def _fill(self, rate: float, now_s: float) -> None:
        self._level = min(rate, self._level + (now_s - self._at_s) * rate)
        self._at_s = now_s


class Quota:
    """The rates of one user, shared by all of the user's sessions."""

    __slots__ = ("__weakref__", "_monotonic", "_received", "_requests", "_sent", "is_limited", "limits")

    def __init__(self, monotonic: Callable[[], float], limits: Limits) -> None:
        self._monotonic = monotonic
        self._received, self._sent, self._requests = Bucket(), Bucket(), Bucket()
        self.change(limits)

    def change(self, limits: Limits) -> None:
        """Put other limits into force."""
        self.limits = limits
        self._received.rate, self._sent.rate = limits.receive_bytes_per_s, limits.send_bytes_per_s
        self._requests.rate = limits.requests_per_s
        self.is_limited = any(bucket.rate is not None for bucket in (self._received, self._sent, self._requests))

    def received(self, size: int, requests: int) -> None:
        """Count bytes and requests that have arrived."""
        now_s = self._monotonic()
        self._received.take(size, now_s)
        self._requests.take(requests, now_s)

    def sent(self, size: int) -> None:
        """Count bytes to be sent."""
        self._sent.take(size, self._monotonic())

    def receive_pause_s(self) -> float:
        """Return the time for which nothing more should be read."""
        now_s = self._monotonic()
        return max(self._received.pause_s(now_s), self._requests.pause_s(now_s))

    def send_pause_s(self) -> float:
        """Return the time for which nothing more should be delivered."""
        return self._sent.pause_s(self._monotonic())
