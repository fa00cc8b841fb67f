"""Quotas: a user's rates, over all of the user's connections, kept by reading less and delivering later.

A user may have rates for each of its clients as well: for all connections that give the same client name. Clients
choose their names, so these rates divide what a user has among programs that mean well; the user's own rates hold
whatever they say.

A rate is a token bucket with the tokens of one second. Bytes are counted after they have arrived or were sent, so that
the bucket may go into debt; the next read or delivery waits until the debt is paid. Nothing is refused or lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec

PAUSE_S_MAX = 5.0
"""Longest single pause: after it the rate is looked up again, which may have been raised meanwhile."""

Rate = Annotated[int, msgspec.Meta(ge=1)]
BytesPerSecond = Annotated[int, msgspec.Meta(ge=1024)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of one user; None: none. Limits that begin with "client" hold for each client name."""

    receive_bytes_per_s: BytesPerSecond | None = None
    send_bytes_per_s: BytesPerSecond | None = None
    requests_per_s: Rate | None = None
    client_receive_bytes_per_s: BytesPerSecond | None = None
    client_send_bytes_per_s: BytesPerSecond | None = None
    client_requests_per_s: Rate | None = None
    connections_max: Rate | None = None


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
    """The rates of one user, shared by all of the user's sessions; or of one client name within a user's."""

    __slots__ = (
        "__weakref__",
        "_clients",
        "_monotonic",
        "_received",
        "_requests",
        "_sent",
        "_user",
        "is_limited",
        "limits",
    )

    def __init__(self, monotonic: Callable[[], float], limits: Limits, user: Quota | None = None) -> None:
        """`user`: the quota that this one, of a client name, is a part of."""
        self._monotonic = monotonic
        self._received, self._sent, self._requests = Bucket(), Bucket(), Bucket()
        self._user = user
        self.is_limited = False
        self._clients: WeakValueDictionary[str, Quota] | None = None
        """Quotas by client name, as long as a session has them."""
        self.change(limits)

    def of_client(self, name: str) -> Quota:
        """Return the quota of a client name: the same object for all of the user's sessions with this name."""
        if self._clients is None:
            self._clients = WeakValueDictionary()
        found = self._clients.get(name)
        if found is None:
            found = self._clients[name] = Quota(self._monotonic, self.limits, self)
        return found

    def change(self, limits: Limits) -> None:
        """Put other limits into force."""
        self.limits = limits
        rates = limits.receive_bytes_per_s, limits.send_bytes_per_s, limits.requests_per_s
        if self._user is not None:
            rates = limits.client_receive_bytes_per_s, limits.client_send_bytes_per_s, limits.client_requests_per_s
        self._received.rate, self._sent.rate, self._requests.rate = rates
        self.is_limited = any(rate is not None for rate in rates) or (self._user is not None and self._user.is_limited)
        for client in list(self._clients.values()) if self._clients is not None else ():
            client.change(limits)

    def received(self, size: int, requests: int) -> None:
        """Count bytes and requests that have arrived."""
        now_s = self._monotonic()
        self._received.take(size, now_s)
        self._requests.take(requests, now_s)
        if self._user is not None:
            self._user.received(size, requests)

    def sent(self, size: int) -> None:
        """Count bytes to be sent."""
        self._sent.take(size, self._monotonic())
        if self._user is not None:
            self._user.sent(size)

    def receive_pause_s(self) -> float:
        """Return the time for which nothing more should be read."""
        now_s = self._monotonic()
        of_user_s = self._user.receive_pause_s() if self._user is not None else 0.0
        return max(self._received.pause_s(now_s), self._requests.pause_s(now_s), of_user_s)

    def send_pause_s(self) -> float:
        """Return the time for which nothing more should be delivered."""
        of_user_s = self._user.send_pause_s() if self._user is not None else 0.0
        return max(self._sent.pause_s(self._monotonic()), of_user_s)
