"""Links to the other brokers of a cluster, dialed when something is asked.

Laws: there is at most one link to each broker, in one task. A link ends when either side has another session. A caller
waits for a link for at most `DIAL_S`; a broker that refuses this one is not dialed again before a pause.
"""

from __future__ import annotations

import logging
import ssl
from functools import partial

import trio

from linn.cluster.channel import SILENCE_S, Channel
from linn.cluster.consumer_leg import ConsumerLeg
from linn.cluster.follow_lane import LinkFollowLane
from linn.cluster.introduction import NONCE_BYTES, Dialer
from linn.cluster.link import Link
from linn.cluster.passing import Passing
from linn.cluster.reading import Reading
from linn.cluster.replying import Replying
from linn.cluster.transacting import LinkTransacting
from linn.core.cluster.peers import Forwarded, Membership, PeerPlace
from linn.core.env.env import Stream
from linn.core.env.log_fields import log_fields
from linn.core.env.tls import client_context
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.inboxes import InboxUnknown
from linn.core.errors.peers import PeerError, PeerRefused, PeerUnreachable
from linn.core.errors.tree import LinnError
from linn.core.gateway.gateway import Gateway
from linn.core.gateway.legs import Door
from linn.core.metadata.levels import SCHEDULE_LEVEL
from linn.core.ports.principal import Principal
from linn.core.security.policy import ADMINISTRATOR
from linn.core.security.users import node_user

logger = logging.getLogger("linn.peers")

DIAL_S = SILENCE_S
"""Longest time for a connection with its proofs, and for a caller to wait for one."""
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 2.0
"""Pauses between attempts to reach a broker that can't be reached: short enough to find it soon after it is back."""
FRAME_BYTES_MAX = 64 << 20
"""Limit of an answer, as clients have it."""


class Links:
    """The links of this broker: the ports `PeerLinks`, `PublishLinks`, `ReadLinks`, `ConsumerLinks`, `InboxLinks`."""

    def __init__(self, gateway: Gateway) -> None:
        """`gateway`: of this broker, which has a membership."""
        self._gateway = gateway
        self._ways: dict[int, _Way] = {}
        self.forwarded = Forwarded()

    async def perform(self, node: int, verb: str, arguments: str, principal: Principal) -> str:
        """See `PeerLinks.perform`."""
        link = await self._link(node)
        return await link.perform(verb, arguments, principal)

    async def _link(self, node: int) -> Link:
        """Return the link to a node, which may have to be made. Raises PeerUnreachable, PeerRefused, PeerStale."""
        membership = self._gateway.membership
        assert membership is not None, "the broker is in a cluster"
        assert node != membership.node, "what this broker does itself is not asked over a link"
        way = self._ways.get(node)
        if way is None:
            way = self._ways[node] = _Way(self._gateway, membership, node)
        return await way.link()

    @property
    def delays(self) -> bool:
        """See `PublishLinks.delays`."""
        membership = self._gateway.membership
        return membership is None or membership.level >= SCHEDULE_LEVEL

    def passing(self, principal: Principal) -> Passing:
        """See `PublishLinks.passing`."""
        return Passing(self._link, principal, self.forwarded)

    def leg(self, node: int, principal: Principal, door: Door) -> ConsumerLeg:
        """See `ConsumerLinks.leg`."""
        return ConsumerLeg(partial(self._link, node), principal, door, self.forwarded)

    def reading(self, principal: Principal) -> Reading:
        """See `ReadLinks.reading`."""
        return Reading(self._link, principal, self.forwarded)

    def replying(self, principal: Principal) -> Replying:
        """See `InboxLinks.replying`."""
        return Replying(self._link_if_known, principal, self.forwarded)

    async def _link_if_known(self, node: int) -> Link:
        """Return the link to a node that a client has named. Raises InboxUnknown: the cluster has no such node;
        and as `_link`."""
        membership = self._gateway.membership
        if node not in self._ways and (membership is None or membership.place_of(node) is None):
            raise InboxUnknown(f"the inbox of the reply is at node {node}, which is gone or was never there")
        return await self._link(node)

    async def open_follow_lane(self, node: int) -> LinkFollowLane:
        """See `PeerLinks.open_follow_lane`."""
        link = await self._link(node)
        return LinkFollowLane(link, await link.open_lane(self._itself()))

    def transacting(self) -> LinkTransacting:
        """Requests about transactions."""
        return LinkTransacting(self._link, self._itself)

    def _itself(self) -> Principal:
        """This broker as the principal of a lane."""
        membership = self._gateway.membership
        assert membership is not None, "the broker is in a cluster"
        name = node_user(membership.node)
        return Principal("", self._gateway.name, name, login="secret", roles=(ADMINISTRATOR,))


class _Way:
    """The way to one broker: its link, or the attempts to make one."""

    def __init__(self, gateway: Gateway, membership: Membership, node: int) -> None:
        self._gateway = gateway
        self._membership = membership
        self._node = node
        self._link: Link | None = None
        self._runs = False
        """Whether its task dials, or keeps the link."""
        self._changed = trio.lowlevel.ParkingLot()
        self._failure: LinnError | None = None
        """Why the last attempt failed."""
        self._pause_s = 0.0
        self._not_before_s = 0.0

    async def link(self) -> Link:
        """Return the link, which may have to be made. Raises PeerUnreachable, PeerRefused, PeerStale."""
        with trio.move_on_after(DIAL_S):
            while True:
                if self._link is not None:
                    self._link.check_sessions()
                    if self._link.error is None:
                        return self._link
                if not self._runs:
                    if self._is_refused():
                        break
                    self._runs = True
                    self._gateway.spawn(self._run)
                await self._changed.park()
        if isinstance(self._failure, PeerRefused):
            raise PeerRefused(self._failure.text)
        reason = f": {self._failure.text}" if self._failure is not None else ""
        raise PeerUnreachable(f"there is no link to node {self._node}{reason}")

    def _is_refused(self) -> bool:
        waits = self._gateway.env.clock.monotonic() < self._not_before_s
        return waits and isinstance(self._failure, PeerRefused)

    async def _run(self) -> None:
        """Dial, after the pause that is due; then keep the link until it is lost."""
        clock = self._gateway.env.clock
        try:
            await clock.sleep(max(0.0, self._not_before_s - clock.monotonic()))
            try:
                self._link = await self._dial()
            except LinnError as error:
                self._failed(error)
                return
            self._failure, self._pause_s = None, 0.0
            self._changed.unpark_all()
            lost = await self._link.run()
            logger.info("the link to node %(node)d ended: %(error)s", {"node": self._node, **log_fields(lost)})
        except Exception as error:
            about = {"node": self._node, "code": PeerError.code}
            logger.error("the link to node %(node)d ended for a bug", about, exc_info=error)
            self._failed(PeerUnreachable("it ended for a bug: see the log"))
        finally:
            self._link, self._runs = None, False
            self._changed.unpark_all()

    def _failed(self, error: LinnError) -> None:
        """Note a failed attempt. The log has each reason once."""
        if self._failure is None or self._failure.text != error.text:
            about = {"node": self._node, **log_fields(error)}
            logger.warning("no link to node %(node)d: %(error)s", about)
        self._failure = error
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
        pause_s = self._gateway.env.rng.uniform(self._pause_s / 2, self._pause_s)
        self._not_before_s = self._gateway.env.clock.monotonic() + pause_s

    async def _dial(self) -> Link:
        """Connect, and let both sides prove who they are.

        Raises PeerUnreachable: it can't be reached, or does not answer; PeerRefused, PeerStale, and other refusals.
        """
        place = self._membership.place_of(self._node)
        if place is None:
            raise PeerUnreachable("it has no session in the metadata store")
        stream: Stream | None = None
        try:
            with trio.fail_after(DIAL_S):
                stream = await self._gateway.env.net.connect(place.address)
                if place.is_tls:
                    stream = TlsStream(stream, _context())
                    await stream.handshake(self._gateway.env.threads.run)
                link, stream = await self._introduced(stream, place), None
                return link
        except trio.TooSlowError:
            raise PeerUnreachable(f"{place.address} did not answer within {DIAL_S:g} s") from None
        finally:
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await stream.aclose()

    async def _introduced(self, stream: Stream, place: PeerPlace) -> Link:
        env, membership, node = self._gateway.env, self._membership, self._node
        own_session = membership.session
        dialer = Dialer(membership, node, place, env.rng.bytes(NONCE_BYTES), binding_of(stream))
        channel = Channel(stream, env.clock, is_dialer=True)
        await channel.send(dialer.hello(self._gateway.name))
        await channel.send(dialer.prove((await channel.next()).message))
        welcome = dialer.check((await channel.next()).message)
        channel.allow_frames(FRAME_BYTES_MAX)
        return Link(channel, welcome, membership, node, place.session, own_session)


def binding_of(stream: Stream) -> bytes:
    """Return the channel binding of a connection; b"": without TLS. Raises PeerRefused: the certificate has none."""
    if not isinstance(stream, TlsStream):
        return b""
    if stream.server_end_point is None:
        raise PeerRefused("the certificate of a listener for brokers is not signed with Ed25519, which has no binding")
    return stream.server_end_point


def _context() -> ssl.SSLContext:
    """The TLS of a broker that dials. Any certificate is good: the other side proves the secret together with it."""
    context = client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
