"""Ports between a broker and the links to the other brokers of its cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from linn.core.cluster.following import FollowLane
from linn.core.ports.principal import Principal

SECRET_BYTES_MIN = 16
"""Shortest secret: an attacker with a recorded proof can try secrets without end, so that only a random one is safe."""


class PeerPlace(NamedTuple):
    """A broker of the cluster, as the metadata store has it."""

    session: str
    """Another one for each process and each lease of the broker."""
    address: str
    """The address of its listener for brokers."""
    is_tls: bool = False
    """Whether that listener speaks TLS."""


class Membership(Protocol):
    """This broker as one of a cluster, and its view of the others."""

    @property
    def cluster(self) -> str:
        """The id of the cluster."""

    @property
    def node(self) -> int:
        """The number of this broker."""

    @property
    def level(self) -> int:
        """The level of the cluster."""

    @property
    def session(self) -> str:
        """The last session of this broker that was registered; "": none was."""

    @property
    def secret(self) -> bytes:
        """The secret that all brokers of the cluster share: at least 16 random bytes, in any spelling."""

    def place_of(self, node: int) -> PeerPlace | None:
        """Return the place of another broker; None: the store has no session of it."""

    def note_clock(self, node: int, ahead_s: float) -> None:
        """Note how far another broker's wall clock is ahead of this one's."""

    def client_addresses(self, listener: str) -> Sequence[tuple[int, str]]:
        """(node, address) of each broker that is alive and has a listener of this name that others can reach."""


class Forwarded:
    """Counters of what a broker passes on between its clients and other brokers. They only grow, once a message."""

    def __init__(self) -> None:
        self.publishes = 0
        """Publish requests that went on to the leaders of their topics."""
        self.published_bytes = 0
        """Bytes of their batches."""
        self.delivered_bytes = 0
        """Bytes of the batches from leaders that go to consumers and readers."""


class PeerLinks(Protocol):
    """Links to the other brokers of the cluster."""

    forwarded: Forwarded

    async def perform(self, node: int, verb: str, arguments: str, principal: Principal) -> str:
        """Let another broker carry out an administration verb; arguments and result are JSON.

        The rights have been checked here. The other broker checks them as well, because handlers of verbs go by them.

        Raises:
            LinnErrors of the verb, with the texts of the other broker.
            PeerUnreachable, PeerRefused, PeerStale: nothing was done.
            PeerUnknown: a change may have been made, or not.
        Cancellation: a change that has begun is completed.
        """

    async def open_follow_lane(self, node: int) -> FollowLane:
        """Open a lane in which this broker follows logs that another one leads. The caller closes it.

        Raises PeerUnreachable, PeerRefused, PeerStale. Cancellation: nothing happens.
        """
