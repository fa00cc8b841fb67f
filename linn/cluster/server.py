"""The listener for brokers: it admits the brokers of this cluster, and serves their lanes.

Laws: before the proof a connection gets small messages, little time and no memory; afterwards it has the windows that
its welcome names, and one that goes beyond them is closed. A lane that waits holds up no other. A link ends when either
side has another session.
"""

from __future__ import annotations

import logging
from functools import partial

import trio

from linn.cluster.channel import Channel
from linn.cluster.introduction import NONCE_BYTES, Admitted, Doorkeeper, is_present
from linn.cluster.links import binding_of
from linn.cluster.served_follower import FollowerNode
from linn.cluster.served_lane import ServedLane
from linn.cluster.window import Limits, Window, counts_in_link, size_of
from linn.core.admin.verb import ARGUMENTS_BYTES_MAX
from linn.core.cluster.peers import Membership
from linn.core.connections.listener_traffic import no_subscriptions
from linn.core.env.env import AcceptedStream
from linn.core.errors.group import raise_once
from linn.core.errors.peers import PeerRefused, PeerStale
from linn.core.errors.tree import BrokerStopping, ConnectionLost, LinnError, ProtocolError, RequestTimeout
from linn.core.gateway.gateway import Gateway
from linn.core.ports.principal import Principal
from linn.core.security.users import node_user
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of

logger = logging.getLogger("linn.peers")

INTRODUCTION_S = 4.0
"""Time for all messages up to the proof together: three that are on their way for a moment."""
DRAIN_POLL_S = 0.02
LEAVE_S = 0.5
"""Time for the other side to end a link that has nothing left: an end by this side could lose answers on their way."""


class PeerServer:
    """A `ProtocolServer` for the listener of a cluster's brokers."""

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        """Serve one broker. Raises LinnError: the reason for the end."""
        channel = Channel(stream, gateway.env.clock, is_dialer=False)
        gateway.connections.report(stream, channel.traffic)
        try:
            membership, admitted = await self._introduced(channel, stream, gateway)
        except ConnectionLost:
            raise
        except LinnError as error:
            if channel.traffic().received_bytes:
                await channel.refuse(error)
            raise
        await _ServedLink(channel, gateway, membership, admitted).run()

    async def _introduced(
        self, channel: Channel, stream: AcceptedStream, gateway: Gateway
    ) -> tuple[Membership, Admitted]:
        """Let the other side prove who it is. Raises PeerRefused, PeerStale, ProtocolError, RequestTimeout."""
        try:
            with trio.fail_after(INTRODUCTION_S):
                said = (await channel.next()).message
                membership = gateway.membership
                if membership is None:
                    raise PeerRefused("this broker is in no cluster")
                door = Doorkeeper(membership, gateway.env.rng.bytes(NONCE_BYTES), binding_of(stream))
                await channel.send(door.challenge(said))
                admitted = door.admit((await channel.next()).message)
                caller = Principal(stream.peer, f"node {admitted.node}", node_user(admitted.node), login="secret")
                gateway.connections.introduce(stream, caller, no_subscriptions)
                frame_bytes_max = max(gateway.settings.frame_bytes_max, 2 * ARGUMENTS_BYTES_MAX)
                await channel.send(m.PeerWelcome(admitted.proof, min(frame_bytes_max, m.LIMIT_MAX), *Limits()))
                channel.allow_frames(frame_bytes_max)
        except trio.TooSlowError:
            raise RequestTimeout(f"{stream.peer} did not prove who it is in time") from None
        return membership, admitted


class _ServedLink:
    """A link from a broker that has proved who it is."""

    def __init__(self, channel: Channel, gateway: Gateway, membership: Membership, admitted: Admitted) -> None:
        self._channel = channel
        self._gateway = gateway
        self._membership = membership
        self._admitted = admitted
        self._who = FollowerNode(admitted.node, admitted.session, trio.Lock(), channel.silent_s)
        channel.on_clock = partial(membership.note_clock, admitted.node)
        limits = Limits()
        self._lanes_max = limits.lanes_max
        self._window = Window(limits.requests_max, limits.bytes_max)
        self._lanes: dict[int, ServedLane] = {}
        """Lanes that have not ended."""
        self._last_lane = 0
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Serve its lanes until it is lost. Raises LinnError: the reason."""
        node = self._admitted.node
        logger.info("node %(node)d is linked from %(connection)s", {"node": node, "connection": self._channel.peer})
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._end_when_draining)
                error = await self._channel.run(self._handle, self._check_sessions)
                self._nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise_once(group)
        if not isinstance(error, ConnectionLost | BrokerStopping):
            await self._channel.refuse(error)
        raise error

    def _check_sessions(self) -> None:
        admitted = self._admitted
        if not is_present(self._membership, admitted.node, admitted.session, admitted.own_session):
            raise PeerStale(f"the link from node {admitted.node} was one between earlier sessions")

    async def _end_when_draining(self) -> None:
        """When the broker stops, answer earlier requests, and end the link."""
        await self._gateway.connections.draining.wait()
        self._channel.put(frames_of(m.Goodbye("the broker is stopping")))
        for lane in self._lanes.values():
            lane.drain()
        while self._window.requests or self._channel.waiting_bytes or self._is_holding():
            await self._gateway.env.clock.sleep(DRAIN_POLL_S)
        await self._gateway.env.clock.sleep(LEAVE_S)
        self._channel.lose(BrokerStopping("the broker is stopping"))

    def _is_holding(self) -> bool:
        return any(lane.is_holding() for lane in self._lanes.values())

    # --- messages ---

    def _handle(self, event: Event) -> None:
        """Take a message. Raises ProtocolError: it is not the protocol; PeerRefused: a lane is beyond the limit."""
        if not event.lane:
            raise ProtocolError(f"{type(event.message).__name__} outside of a lane")
        if isinstance(event.message, m.OpenLane):
            self._open(event.lane, event.message)
            return
        lane = self._lanes.get(event.lane)
        if lane is None:
            raise ProtocolError(f"{type(event.message).__name__} in a lane that is not open")
        if isinstance(event.message, m.CloseLane):
            lane.close()
            return
        if isinstance(event.message, m.Pong):
            lane.pong()
            return
        size = size_of(event.message, event.batches)
        if counts_in_link(event.message):
            if not self._window.has_room_for(lane.window, size):
                raise ProtocolError("more requests without an answer than a link may have")
            self._window.take(size)
        lane.handle(event, size)

    def _open(self, number: int, opened: m.OpenLane) -> None:
        if number <= self._last_lane:
            raise ProtocolError(f"lane {number} is opened a second time")
        if len(self._lanes) >= self._lanes_max:
            raise ProtocolError(f"more than {self._lanes_max:,} lanes")
        self._last_lane = number
        lane = ServedLane(self._gateway, self._channel, number, opened, self._who, self._window.give_back)
        self._lanes[number] = lane
        self._nursery.start_soon(self._run_lane, number, lane)

    async def _run_lane(self, number: int, lane: ServedLane) -> None:
        try:
            await lane.run()
        finally:
            del self._lanes[number]
