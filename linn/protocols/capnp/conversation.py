"""A conversation: the broker's side of one connection of the native protocol, from hello on.

One task reads requests and carries them out in order. Each subscription, each waiting request, and output that the
client is slow to read have a task of their own while needed. The listener's `Keepalive` serves all idle conversations.
A request that must wait (for a sync, for records, for room) does not delay later ones, except publishes, which keep
their order, and a settle of many entries, during which nothing more is read.

Laws: backpressure means reading less: a conversation stops reading if it has too much unsent output, too many
unanswered requests, or too many bytes in publishes that wait for room. A malformed stream is answered with one error
and closed; a request that fails is answered with its error and the connection continues.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import trio

from linn.api import (
    CLIENT_CHARACTERS_MAX,
    RESERVE_BYTES,
    TURN_S,
    AuthFailed,
    ConnectionLost,
    Forbidden,
    Gateway,
    LinnError,
    Principal,
    ProtocolError,
    ReceiveReservation,
    RequestUnknown,
    Traffic,
    raise_once,
)
from linn.protocols.capnp.administering import Administering
from linn.protocols.capnp.handshake import Handshake, discard_rest
from linn.protocols.capnp.keepalive import Keepalive, KeptSession, wait_while
from linn.protocols.capnp.outbox import Outbox
from linn.protocols.capnp.publishing import Publishing
from linn.protocols.capnp.reading import Reading
from linn.protocols.capnp.replying import Receiving
from linn.protocols.capnp.responder import Responder
from linn.protocols.capnp.subscribing import Subscribing
from linn.protocols.capnp.transacting import Transacting
from linn.rights import Need
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of
from linn.wire.failure import failed_by

logger = logging.getLogger("linn.capnp")

KEEPALIVES_MISSED_MAX = 3
RECEIVES_IN_A_ROW_MAX = 8
"""Receives without a pause: with batches of 256 KiB this is 2 MiB, about a millisecond, in which other connections
wait."""
REQUESTS_IN_A_ROW_MAX = 64
"""Small requests carried out without a pause, in about the same time; later ones wait until other tasks have run."""
LOGIN_CHECK_S = 60.0
"""Longest sleep until the end of a token: a clock that is set is followed."""
LAST_WORDS_S = 5.0
"""Time that a client has to read the error for which its connection is closed."""
LOGIN_ENDS_S = 0.4
"""The same, and as much before it for requests in progress, where the user was deleted or has another password."""
HEARD_BYTES_MIN = 16 << 10
"""Bytes of an incomplete message that count as a sign of life; fewer count as silence."""


class Conversation:
    """One connection. Other modules handle the requests, and the `Responder` answers them."""

    __slots__ = (
        "_administering",
        "_connection",
        "_gateway",
        "_handshake",
        "_has_more",
        "_heard",
        "_heard_bytes",
        "_in_a_row",
        "_is_drained",
        "_is_paused",
        "_keepalive",
        "_missed",
        "_outbox",
        "_publishing",
        "_quota",
        "_reading",
        "_received_bytes",
        "_receiving",
        "_renews",
        "_reservation",
        "_responder",
        "_session",
        "_stream",
        "_subscribing",
        "_transacting",
        "_turn",
        "_undecided",
        "_user",
        "peer",
        "slice",
    )

    def __init__(self, handshake: Handshake, gateway: Gateway, keepalive: Keepalive) -> None:
        """`handshake`: the client has sent hello, is logged in, and waits for its welcome."""
        self._keepalive = keepalive
        self._handshake = handshake
        self._stream = stream = handshake.stream
        self.peer = stream.peer
        """The client's address."""
        self._gateway = gateway
        assert handshake.identity is not None, "no conversation without a login"
        self._user = handshake.identity.user
        client, login = handshake.client[:CLIENT_CHARACTERS_MAX], handshake.identity.how
        principal = Principal(self.peer, client, self._user, login=login, roles=handshake.identity.roles)
        self._session = gateway.session(principal)
        self._quota = quota = self._session.quota
        bytes_max, clock = gateway.settings.connection_bytes_max, gateway.env.clock
        self._outbox = Outbox(stream, bytes_max, self, gateway.memory.unsent, quota, clock)
        self._responder = Responder(gateway, self._outbox, self.peer)
        self._responder.session = self._session
        self.slice: dict[KeptSession, None] = {}
        """The slice of the keepalive that contains this conversation."""
        self._connection = handshake.connection
        self._reservation = ReceiveReservation(gateway.memory.received)
        self._turn = handshake.turn
        self._subscribing = Subscribing(self._responder)
        self._publishing = Publishing(self._responder, self._subscribing)
        self._reading = Reading(self._responder)
        self._administering = Administering(self._responder, self._subscribing, partial(gateway.nodes, stream))
        self._transacting = Transacting(self._responder, self._subscribing)
        self._receiving = Receiving(self._responder, self._outbox)
        self._heard = True
        self._missed = self._heard_bytes = self._in_a_row = 0
        self._received_bytes = handshake.received_bytes
        self._has_more = self._is_drained = self._is_paused = False
        self._renews = False
        """Whether the client logs in again."""
        self._undecided: tuple[Event, Sequence[Need]] | None = None
        """A request that waits for an authorizer, and the rights that it needs. Later ones wait behind it."""

    # --- life ---

    async def run(self) -> None:
        """Run the connection from its welcome to its end."""
        self._gateway.connections.report(self._stream, self._traffic)
        try:
            await self._begin()
            await self._handshake.welcome(self._welcome())
            self._connection.allow_frames(self._gateway.settings.frame_bytes_max)
            async with trio.open_nursery() as self._responder.nursery:
                try:
                    self._gateway.connections.ends_by(self._stream, self._end_soon)
                    self._keepalive.join(self, self._gateway)
                    if self._handshake.ends_s < math.inf:
                        self._responder.spawn(self._end_with_login)
                    await self._read()
                    self._end_waits()
                    self._subscribing.close()
                    await self._until_sent()
                    self.end()
                finally:
                    # While work in progress ends, no new work may begin.
                    self._keepalive.leave(self)
                    self._outbox.close()
        except BaseExceptionGroup as group:
            raise_once(group)
        finally:
            self._reservation.release()
            # Cut the references between its parts, whose cycles would live until the garbage collector runs.
            self._outbox.close()
            self._publishing.close()
            self._subscribing.close()
            await self._session.aclose()

    def end(self) -> None:
        """Drop the connection, and all its work in progress."""
        self._responder.nursery.cancel_scope.cancel()

    def _traffic(self) -> Traffic:
        outbox = self._outbox
        sent = self._handshake.sent_bytes + outbox.sent_bytes
        return Traffic(
            self._received_bytes, sent, self._responder.inflight, outbox.waiting_bytes, self._publishing.waiting_bytes
        )

    async def _until_sent(self) -> None:
        await self._publishing.wait_done()
        await wait_while(
            lambda: self._outbox.waiting_bytes or self._responder.inflight,
            self._gateway.env.clock,
            self._keepalive.keepalive_s,
        )

    # --- sending ---

    def send_soon(self) -> None:
        """See `Sender.send_soon`."""
        self._keepalive.send_soon(self)

    def begin_sending(self) -> None:
        """See `Sender.begin_sending`."""
        self._responder.spawn(self._run_outbox)

    async def _run_outbox(self) -> None:
        try:
            await self._outbox.run()
        except ConnectionLost:
            self.end()

    def flush(self) -> None:
        """Send as much as the client can take now."""
        try:
            self._outbox.flush()
        except ConnectionLost:
            self.end()

    # --- hello and goodbye ---

    async def _begin(self) -> None:
        """Count among the user's connections, and let the client go on with the producer ids of an earlier one.

        Raises LinnError after telling the client.
        """
        handshake, principal = self._handshake, self._session.principal
        try:
            self._gateway.connections.introduce(self._stream, principal, self._subscribing.described)
            if handshake.producer_id:
                self._session.claim_producer_id(handshake.producer_id, handshake.producer_key)
        except LinnError as error:
            await handshake.refuse(error)
            raise

    def _welcome(self) -> m.Welcome:
        settings, membership = self._gateway.settings, self._gateway.membership
        producer_id = self._session.take_producer_id()
        return m.Welcome(
            self._handshake.version,
            self._handshake.features,
            self._gateway.name,
            min(settings.frame_bytes_max, m.LIMIT_MAX),
            min(settings.batch_bytes_max, m.LIMIT_MAX),
            min(settings.message_bytes_max, m.LIMIT_MAX),
            min(int(self._keepalive.keepalive_s * 1000), m.LIMIT_MAX),
            settings.inflight_requests_max,
            settings.subscriptions_max,
            producer_id,
            self._session.producer_key(producer_id),
            self._user,
            cluster=membership.cluster if membership is not None else "",
            node=membership.node if membership is not None else 0,
        )

    def watch(self) -> None:
        """End the connection if it has been silent for too long; called once per keepalive interval."""
        # While the broker owes a client output or a turn, the client is not read from, and can't be heard.
        held_up = self._turn.waits or self._is_paused or (not self._outbox.is_full and self._is_over_budget())
        heard = self._heard or self._heard_bytes >= HEARD_BYTES_MIN or held_up
        self._missed = 0 if heard else self._missed + 1
        self._heard, self._heard_bytes = False, 0
        if self._missed >= KEEPALIVES_MISSED_MAX:
            about = {"connection": self.peer, "count": self._missed}
            logger.info("%(connection)s: silent for %(count)d keepalives, closed", about)
            self.end()

    def say_goodbye(self) -> None:
        """Tell the client that the broker is stopping."""
        self._outbox.put(frames_of(m.Goodbye("the broker is stopping")))
        self._end_waits()

    def leave_if_done(self) -> None:
        """End after goodbye if the session is idle. A client that holds leases may settle them until the time is up."""
        waits = self._responder.inflight or self._publishing.is_waiting or self._subscribing.is_holding()
        if not (waits or self._undecided or self._connection.has_more or self._outbox.waiting_bytes):
            self.end()

    def _end_waits(self) -> None:
        """Stop pushing, and answer all waits for records at once."""
        self._reservation.give_way()
        self._subscribing.drain()
        self._reading.end_waits()

    def _end_soon(self, error: LinnError) -> None:
        """End the connection for a reason outside of it."""
        wait_s = LOGIN_ENDS_S if isinstance(error, AuthFailed) else LAST_WORDS_S
        self._responder.spawn(partial(self._end_for, error, wait_s))

    async def _end_with_login(self) -> None:
        """End the connection when its token ends; its client connects again, with another one."""
        clock = self._gateway.env.clock
        while (left_s := self._handshake.ends_s - clock.now_ms() / 1000) > 0:
            await clock.sleep(min(left_s, LOGIN_CHECK_S))
        await self._end_for(AuthFailed("the token with which the client has logged in has ended"))

    def _log_in_again(self, event: Event) -> None:
        """Let the client show the next token before the end of its first one.

        Raises ProtocolError: its login does not end, or this is a second request before the answer to the first.
        """
        if self._handshake.ends_s == math.inf or self._renews:
            raise ProtocolError("a login at a time at which there is none")
        self._renews = True
        self._responder.in_task(event, partial(self._renew, event))

    async def _renew(self, event: Event) -> None:
        before, login = self._handshake.identity, self._gateway.login(self._stream, asks=True)
        asked = event.message
        assert before is not None, "logged in"
        assert isinstance(asked, m.Authenticate)
        try:
            if login.identity is None:
                await login.step(asked.mechanism, asked.data.encode())
            now = login.identity
            if now is None or (now.user, {*now.roles}) != (before.user, {*before.roles}):
                raise AuthFailed("the next login is another user's, or has other roles: connect again for it")
        except AuthFailed as error:
            self._end_soon(error)
            raise
        finally:
            self._renews = False
        self._handshake.identity = now
        self._responder.reply(event.correlation, m.Done())

    async def _end_for(self, error: LinnError, wait_s: float = LAST_WORDS_S) -> None:
        await self._send_reason(error, wait_s)
        self.end()

    async def _send_reason(self, error: LinnError, wait_s: float = LAST_WORDS_S) -> None:
        """Answer requests in progress, then tell the client why the connection ends."""
        self._end_waits()
        await wait_while(lambda: self._responder.inflight, self._gateway.env.clock, wait_s)
        self._outbox.put(frames_of(failed_by(error)))
        await wait_while(lambda: self._outbox.waiting_bytes, self._gateway.env.clock, wait_s)

    # --- reading ---

    async def _read(self) -> None:
        try:
            if self._connection.has_more:  # It arrived in the same packet as hello.
                await self._turn.next_turn(None)
                self._handle(0)
            while True:
                if self._is_over_budget():
                    await self._turn.next_turn(self._wait_budget)
                if self._quota.is_limited and (pause_s := self._quota.receive_pause_s()):
                    await self._pause(partial(self._gateway.env.clock.sleep, pause_s))
                    continue
                if self._undecided is not None:
                    await self._pause(partial(self._session.decide, self._undecided[1]))
                    self._handle(0)
                    continue
                if self._has_more:
                    self._has_more, self._in_a_row = False, 0
                    self._outbox.flush()
                    await self._turn.next_turn(None)
                    self._handle(0)
                    continue
                count = await self._receive()
                if count == 0:
                    self._outbox.flush()
                    return
                self._handle(count)
        except ConnectionLost:
            self.end()
        except LinnError as error:
            await self._send_reason(error)
            await discard_rest(self._stream)
            raise

    async def _pause(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Read nothing for a while: the user is over a rate, or an authorizer decides about the last request."""
        self._outbox.flush()
        self._is_paused = True
        try:
            await self._turn.next_turn(wait)
        finally:
            self._is_paused = False

    async def _receive(self) -> int:
        """Receive some bytes; a few times in a row without a pause, if more has arrived."""
        stream, connection = self._stream, self._connection
        if self._is_drained:
            self._outbox.flush()  # The client has sent everything, and probably waits for the answers.
        while True:
            is_over = self._in_a_row >= RECEIVES_IN_A_ROW_MAX or (self._in_a_row > 0 and self._turn.is_over())
            if not is_over:
                buffers = connection.frames.buffers()
                count = stream.receive_nowait(buffers)
                if count is not None:
                    self._in_a_row += 1
                    self._is_drained = count < len(buffers[0])
                    return count
            self._in_a_row = 0
            self._outbox.flush()
            connection.release()
            if self._reservation.held_bytes or connection.pending_bytes > RESERVE_BYTES:
                await self._reservation.hold(connection.pending_bytes, patient=self._subscribing.is_empty)
            await self._turn.next_turn(None if is_over else stream.wait_readable)

    def _handle(self, count: int) -> None:
        """Carry out the complete requests; their answers are sent before the session waits for more."""
        self._heard_bytes += count
        self._received_bytes += count
        self._responder.holding = True
        try:
            requests = self._handle_events(count)
        finally:
            self._responder.holding = False
        if self._quota.is_limited:
            self._quota.received(count, requests)

    def _handle_events(self, count: int) -> int:
        """Carry out requests, a limited number at a time; returns how many."""
        connection, until_s, number = self._connection, 0.0, 0
        events: Iterable[Event] = connection.received(count)
        if self._undecided is not None:
            events, self._undecided = chain([self._undecided[0]], events), None
        for number, event in enumerate(events, 1):
            self._heard = True
            handler = _HANDLERS.get(type(event.message))
            if handler is None:
                raise ProtocolError(f"a client does not send {type(event.message).__name__}")
            part, carry_out = handler
            try:
                carry_out(getattr(self, part) if part else self, event)
            except LinnError as error:
                if isinstance(error, Forbidden) and error.undecided:
                    self._undecided = event, error.undecided
                    break
                self._responder.fail(event.correlation, error)
            except Exception as error:
                self._responder.fail_unforeseen(event.correlation, error)
            if connection.has_more:
                now_s = self._gateway.env.clock.monotonic()
                until_s = until_s or now_s + TURN_S
                is_held_up = self._outbox.is_full or self._subscribing.is_settling
                if number >= REQUESTS_IN_A_ROW_MAX or now_s > until_s or is_held_up:
                    self._has_more = True
                    break
        return number

    def _is_over_budget(self) -> bool:
        return (
            self._outbox.is_full
            or self._responder.inflight >= self._gateway.settings.inflight_requests_max
            or self._subscribing.is_settling
            or self._publishing.is_full()
            or self._administering.is_full()
            or (self._receiving.waiting_bytes and self._receiving.is_full())
            or self._reservation.waits
        )

    async def _wait_budget(self) -> None:
        self._outbox.flush()
        with self._reservation.set_aside(self._connection.pending_bytes, self._responder.budget_changed):
            while self._is_over_budget():
                if self._outbox.is_full:
                    await self._outbox.wait_room()
                else:
                    await self._responder.wait_budget_changed()

    # --- requests of the session itself ---

    def _ping(self, event: Event) -> None:
        self._responder.answer(event.correlation, frames_of(m.Pong(), event.correlation))

    def _nothing(self, event: Event) -> None:
        """Do nothing: its arrival already counts as a sign of life."""

    def _unknown(self, event: Event) -> None:
        raise RequestUnknown("a request of a kind that this version does not know")

    def _goodbye(self, event: Event) -> None:
        """Do nothing: the client will close when it has its answers."""
        self._subscribing.pause()


_HANDLERS: Mapping[type[m.Message], tuple[str, Callable[[Any, Event], None]]] = {
    m.Publish: ("_publishing", Publishing.publish),
    m.Settle: ("_subscribing", Subscribing.settle),
    m.Credit: ("_subscribing", Subscribing.credit),
    m.Heartbeat: ("_subscribing", Subscribing.heartbeat),
    m.Resolve: ("_subscribing", Subscribing.resolve),
    m.Seek: ("_subscribing", Subscribing.seek),
    m.Commit: ("_subscribing", Subscribing.commit),
    m.Fetch: ("_reading", Reading.fetch),
    m.Pull: ("_subscribing", Subscribing.pull),
    m.Subscribe: ("_subscribing", Subscribing.subscribe),
    m.Unsubscribe: ("_subscribing", Subscribing.unsubscribe),
    m.FindOffset: ("_reading", Reading.find_offset),
    m.SettleInTransaction: ("_transacting", Transacting.settle),
    m.EndTransaction: ("_transacting", Transacting.end),
    m.OpenTransactions: ("_transacting", Transacting.open),
    m.AddBranch: ("_transacting", Transacting.add_branch),
    m.OpenInbox: ("_receiving", Receiving.open),
    m.Reply: ("_receiving", Receiving.reply),
    m.Describe: ("_administering", Administering.describe),
    m.Administer: ("_administering", Administering.administer),
    m.Authenticate: ("", Conversation._log_in_again),
    m.Ping: ("", Conversation._ping),
    m.Pong: ("", Conversation._nothing),
    m.Goodbye: ("", Conversation._goodbye),
    m.Unknown: ("", Conversation._unknown),
}
"""The handler of each request, and the part of the conversation that has it."""
