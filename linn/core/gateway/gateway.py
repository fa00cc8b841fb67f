"""The gateway: the only way from a protocol to the broker.

It has the parts that a connection needs before its client is known: limits, turns, memory, the list of connections. All
other work is done through a `Session`, which is made for a principal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from linn.core.cluster.following import FollowedLogs
from linn.core.cluster.peers import Membership, PeerLinks
from linn.core.config.tables import BrokerSettings
from linn.core.connections.connections import Connections
from linn.core.env.env import AcceptedStream, Env, Spawn
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.auth import Forbidden
from linn.core.gateway.legs import SessionLinks
from linn.core.gateway.rooms import Rooms
from linn.core.gateway.session import Session
from linn.core.loop.fair_turns import FairTurns
from linn.core.loop.long_work import LongWork
from linn.core.loop.memory_budget import MemoryBudget
from linn.core.ports.principal import Principal
from linn.core.publish.forwarding import PublishLinks
from linn.core.security.logins import Login, Logins, Peer
from linn.core.transactions.cluster_transactions import ClusterTransactions, TransactionLinks
from linn.rights import Need

State = Literal["starting", "ready", "stopping"]


def peer_of(stream: AcceptedStream) -> Peer:
    """The facts about the other end of a connection that a login goes by."""
    if not isinstance(stream, TlsStream):
        uid = stream.peer_uid()
        return Peer(stream.peer, is_private=uid is not None, uid=uid)
    certificate, binding = stream.peer_certificate(), stream.server_end_point or b""
    names = (*certificate.uris, *certificate.dns_names) if certificate is not None else ()
    return Peer(stream.peer, is_private=True, names=names, binding=binding)


class BrokerLinks(PeerLinks, PublishLinks, SessionLinks, Protocol):
    """Links to the other brokers of the cluster, for all that may be passed on."""

    def transacting(self) -> TransactionLinks:
        """Requests about transactions."""


class Gateway:
    """The gateway of one broker."""

    def __init__(
        self,
        name: str,
        env: Env,
        rooms: Rooms,
        connections: Connections,
        memory: MemoryBudget,
        turns: FairTurns,
        logins: Logins,
        *,
        spawn: Spawn,
        blamed: Callable[[BaseException], str],
        read_state: Callable[[], State],
        read_addresses: Callable[[], Mapping[str, str]],
    ) -> None:
        self.name = name
        """The broker's configured name."""
        self.env = env
        self.settings: BrokerSettings = rooms.settings
        """The limits of all connections."""
        self.connections = connections
        """The open connections. `report` takes a connection's traffic; `draining` is set when the broker stops."""
        self.memory = memory
        self.turns = turns
        self.long_work: LongWork = rooms.long_work
        """Runs work in steps, in turns with other connections' work."""
        self.spawn = spawn
        """Starts a background task in the broker's nursery."""
        self.blamed = blamed
        """Names the plugin, or the part of linn, that raised an unforeseen error."""
        self.membership: Membership | None = None
        """The broker as one of a cluster, set by the composition root; None: it is in none, or has no links."""
        self.links: BrokerLinks | None = None
        """The links to the other brokers, set together with `membership`."""
        self.followed_logs: FollowedLogs | None = None
        """The logs that other brokers follow here, set by the composition root; None: it leads none."""
        self.transactions: ClusterTransactions | None = rooms.cluster_transactions
        """The broker's part in the transactions of its cluster; None: it is alone."""
        self._rooms = rooms
        self._logins = logins
        self._read_state = read_state
        self._read_addresses = read_addresses

    @property
    def state(self) -> State:
        """The broker's state: clients can connect while it is "ready"."""
        return self._read_state()

    @property
    def addresses(self) -> Mapping[str, str]:
        """Bound address by listener; client listeners come first."""
        return self._read_addresses()

    def nodes(self, stream: AcceptedStream) -> Sequence[tuple[int, str]]:
        """(number, address) of each broker of the cluster, at its listener of the name that a connection came in by.

        Brokers without such a listener are left out. A broker in no cluster has the number 0.
        """
        if self.membership is None:
            return [(0, next(iter(self.addresses.values()), ""))]
        return self.membership.client_addresses(self.connections.listener_of(stream))

    def login(self, stream: AcceptedStream, *, asks: bool = False) -> Login:
        """Begin a connection's login. Its `identity` has the name and the roles of the connection's principal.

        `asks`: the client has a login, which counts in place of what the connection says about it.
        """
        return self._logins.begin(self.connections.login_rules(stream), peer_of(stream), asks=asks)

    def session(self, principal: Principal, *, forwards: bool = True) -> Session:
        """Open a principal's session for one connection; leave it with `async with`, or `aclose`.

        `forwards`: whether its requests may go on to other brokers of the cluster.
        """
        access = self._rooms.policy.access(principal.name, principal.roles)

        def refused(need: Need) -> None:
            self._rooms.audit.seen(f"{need.operation} {need.kind}", principal, need.name, Forbidden.code)

        principal = principal._replace(access=access.of_session(refused))
        return Session(self._rooms, self.connections.inboxes, principal, self.links, forwards=forwards)
