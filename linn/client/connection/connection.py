"""Connection: one connection to a broker, from hello to its end. A client that reconnects opens a new one.

Laws: messages are sent in the order of the calls, and within the call if nothing waits to be sent. Each request's
caller is told exactly once. `run` owns all tasks of the connection and returns when it is over. One task at a time
reads: the connection's own, or the publisher of the only outstanding request, which reads its answer itself (`attend`),
a turn of the loop earlier.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio
import anyio.lowlevel

from linn.client.connection.answer import Caller, again
from linn.client.login import Channel, Exchange, Login, begin_login
from linn.core.batch.batch import RecordBatch
from linn.core.batch.flat_message import Buffer, without_first
from linn.core.env.env import Clock, Interrupted, Stream
from linn.core.errors.auth import AuthFailed
from linn.core.errors.tree import (
    ClientClosed,
    ConnectionLost,
    LinnError,
    ProtocolError,
    VersionUnsupported,
)
from linn.core.security.sasl.mechanism import SaslError
from linn.wire import connection as wire
from linn.wire.connection import Event, check_welcome, frames_of, hello
from linn.wire.failure import error_of
from linn.wire.messages import Authenticate, Challenge, Failed, Goodbye, Message, Ping, Pong, Welcome

logger = logging.getLogger("linn.client")

RENEWED_AHEAD_S = 30.0
"""Time before the end of a token at which the client logs in with the next one, or half of the time that is left."""
TOKEN_TRIED_AGAIN_S = 1.0
"""Shortest time until a token is asked for again that was not there yet."""
_CLOCK_CHECK_S = 60.0
"""Longest sleep until then: a clock that is set is followed."""
OUTGOING_BYTES_MAX = 1 << 20
"""Bytes that may wait for the socket before producers hold back: four default batches."""
FRAME_BYTES_MAX = 64 << 20
"""Limit on any frame of the broker: a description of 100,000 partitions, or eight of the largest batches."""
_RECEIVES_IN_A_ROW_MAX = 8
"""Receives without a checkpoint. With batches of 256 KiB this is 2 MiB, about a millisecond for other tasks to wait."""
_SILENT_INTERVALS_MAX = 3
"""Keepalive intervals without a byte from the broker before the connection is given up."""
_LOGIN_MESSAGES_MAX = 8
_ALONE_MIN = 8
"""Consecutive requests that were alone on their way before callers read their answers themselves."""
_PATROL_S = 0.005
"""Time after a caller's last answer until the connection's own task reads again; pushes may wait so long. A shorter
time would wake the task between the publishes of a program that works between them.
"""
_DRAIN_S_MAX = 60.0
"""Longest wait after the broker's goodbye for it to close the connection, once all is answered and settled."""


INBOX = -1
"""Key of the receiver of replies in `Connection.subscriptions`."""


class Pushed(Protocol):
    """Receiver of messages that the broker pushes for one subscription, or for the inbox."""

    def pushed(self, message: Message, batches: list[RecordBatch]) -> None:
        """Take a `Deliver`, `LeaseEnded`, `Assigned` or `Ended`; for the inbox, a `Reply`."""


class Attended(Protocol):
    """The outcome of a request whose caller may read the answer itself."""

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""

    reading: Stream | None
    """Stream that the caller reads from while it attends; interrupted when the outcome becomes known."""


def _lost_by(error: LinnError) -> LinnError:
    """Return the error for the callers of a connection that ended with `error`."""
    return again(error) if isinstance(error, ClientClosed) else ConnectionLost(error.text)


class Connection:
    """A connection to a broker. Call `greet` first, then `run`."""

    def __init__(self, stream: Stream, clock: Clock, *, is_tls: bool = False) -> None:
        self.is_tls = is_tls
        self.keepalive_s_max = math.inf
        """Longest interval of signs of life, whatever the broker says."""
        self.welcome = Welcome(0, [], "", 0, 0, 0, 0, 0, 0)
        self.error: LinnError | None = None
        """Reason for the end of the connection."""
        self.subscriptions: dict[int, Pushed] = {}
        self._stream = stream
        self._login: Exchange | None = None
        """The login; None: the broker asked for none."""
        self.clock = clock
        self._codec = wire.Connection()
        self._callers: dict[int, Caller] = {}
        self._last_correlation = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._writing = False
        self._wake_writer = anyio.Event()
        self._draining = False
        self._when_ready: list[Callable[[], None]] = []
        self._scope: anyio.CancelScope | None = None
        self._sent_since_tick = False
        self._received_in_a_row = 0
        self._received_since_tick = True
        self._silent_ticks = 0
        self._alone_in_a_row = 0
        self._attends = False
        """Whether a caller is reading."""
        self.attended_count = 0
        """Answers that their own callers read."""
        self._is_relieved = False
        """Whether the connection's own task should leave the reading to callers."""
        self._recall: anyio.Event | None = None
        """Event that makes the connection's own task read again; None while it reads."""

    # --- hello ---

    async def greet(
        self,
        name: str,
        producer: tuple[int, int],
        login: Login | None,
        channel: Channel,
    ) -> None:
        """Say hello, log in if the broker asks for it, and wait for the welcome.

        Args:
            producer: the producer id of an earlier connection and its key, or zeros.
            channel: the facts that a login goes by.

        Raises AuthFailed, ProtocolError, VersionUnsupported, ProducerForeign or another refusal, ConnectionLost.
        Cancellation: close the connection.
        """
        try:
            message = await self._asked(hello(name, *producer, logs_in=login is not None))
            if isinstance(message, Challenge):
                self._login = begin_login(login, message.mechanisms, channel)
                message = await self._log_in(self._login)
            if not isinstance(message, Failed):
                self.welcome = check_welcome(message)
        except VersionUnsupported:
            raise
        except ProtocolError as error:
            error.text = f"{self._stream.peer} is no linn broker: {error.text}"
            raise
        if isinstance(message, Failed):
            raise error_of(message)
        self._codec.allow_frames(FRAME_BYTES_MAX)

    async def _log_in(self, exchange: Exchange) -> Message:
        """Log in; return the broker's answer to the last message. Raises AuthFailed."""
        data = await exchange.begin()
        try:
            for _ in range(_LOGIN_MESSAGES_MAX):
                message = await self._asked(Authenticate(exchange.mechanism, data.decode()))
                if not isinstance(message, Challenge):
                    if isinstance(message, Welcome):
                        exchange.end(message.login.encode())
                    return message
                data = await exchange.answer(message.data.encode())
        except SaslError as error:
            raise AuthFailed(f"{self._stream.peer} can't be trusted: {error}") from None
        raise AuthFailed(f"{self._stream.peer} does not end the login")

    async def _asked(self, message: Message) -> Message:
        await self._stream.send(frames_of(message))
        return (await self._first_event()).message

    async def _first_event(self) -> Event:
        for event in self._codec.received(0):
            return event
        while True:
            count = await self._stream.receive_into(self._codec.buffer())
            if count == 0:
                raise ConnectionLost(f"{self._stream.peer} closed the connection instead of answering hello")
            for event in self._codec.received(count):
                return event  # Events after it in the same packet wait in the codec.

    # --- sending ---

    @property
    def ready(self) -> bool:
        """Whether the connection takes more requests now."""
        return (
            self.error is None
            and not self._draining
            and self._outgoing_bytes < OUTGOING_BYTES_MAX
            and len(self._callers) < self.welcome.inflight_max
        )

    @property
    def is_ending(self) -> bool:
        """Whether the connection is over, or the broker has said goodbye."""
        return self.error is not None or self._draining

    @property
    def drained(self) -> bool:
        """Whether the socket has taken everything that was sent."""
        return not self._outgoing_bytes

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `ready` may have become true or the connection is over."""
        self._when_ready.append(callback)

    def ask(
        self, caller: Caller, message: Message, batches: list[RecordBatch] | None = None, *, attended: bool = False
    ) -> int:
        """Send a request; return its correlation. If the connection is over, the caller is told at once.

        Raises MessageInvalid if a field can't be sent; nothing has happened then.

        `attended`: the caller will `attend` as soon as this returns.
        """
        if self.error is not None:
            caller.failed(_lost_by(self.error))
            return 0
        if self._recall is not None and (self._callers or not attended):
            self._recall.set()
        frames = frames_of(message, self._last_correlation + 1, batches)
        self._last_correlation += 1
        self._callers[self._last_correlation] = caller
        self._send(frames)
        return self._last_correlation

    def tell(self, message: Message, batches: list[RecordBatch] | None = None) -> None:
        """Send a message that has no answer; drop it if the connection is over."""
        if self.error is None:
            self._send(frames_of(message, 0, batches))

    def forget(self, correlation: int) -> None:
        """Discard a request's outcome when it comes: its caller no longer waits."""
        if correlation in self._callers:
            self._callers[correlation] = _NO_CALLER

    def _send(self, frames: Sequence[Buffer]) -> None:
        self._sent_since_tick = True
        if not self._writing:
            try:
                sent = self._stream.send_nowait(frames)
            except ConnectionLost as error:
                self.lose(error)
                return
            frames = without_first(frames, sent)
            if not frames:
                return
        self._outgoing.extend(frames)
        self._outgoing_bytes += sum(map(len, frames))
        self._writing = True
        self._wake_writer.set()

    # --- the connection's tasks ---

    async def run(self) -> LinnError:
        """Read, write and keep alive until the connection is over; return the reason after all callers were told."""
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                if self.error is None:
                    tasks.start_soon(self._read)
                    tasks.start_soon(self._write)
                    tasks.start_soon(self._keep_alive)
                    if self._login is not None and self._login.ends_s < math.inf:
                        tasks.start_soon(self._renew, self._login)
        finally:
            error = self.error or ClientClosed("the client was closed")
            self.error = error
            await self._stream.aclose()
            self._fail_callers(_lost_by(error))
            self._call_ready()
        return error

    def lose(self, error: LinnError) -> None:
        """End the connection; only the first call's error counts."""
        if self.error is None:
            self.error = error
            if self._attends:
                # The reader must leave the socket before it is closed: asyncio confuses it with the next of its number.
                self._stream.interrupt()
            if self._scope is not None:
                self._scope.cancel()

    def _fail_callers(self, error: LinnError) -> None:
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            caller.failed(error)

    async def aclose(self) -> None:
        """Say goodbye and end the connection, even if it was never run."""
        self.tell(Goodbye("the client is done"))
        self.lose(ClientClosed("the client was closed"))
        await self._stream.aclose()

    async def _read(self) -> None:
        try:
            self._take(0)
            while True:
                try:
                    while not self._is_relieved:
                        self._take(await self._receive())
                except Interrupted:
                    pass
                if self._is_relieved:
                    await self._rest()
        except LinnError as error:
            self.lose(error)

    async def _rest(self) -> None:
        """Leave the reading to callers; return when they have stopped."""
        self._recall = anyio.Event()
        while True:
            seen = self.attended_count
            with anyio.move_on_after(_PATROL_S):
                await self._recall.wait()
            recalled = self._recall.is_set()
            if not self._attends and (recalled or seen == self.attended_count):
                break
            if recalled:
                self._recall = anyio.Event()
        self._recall = None
        self._is_relieved = False

    async def attend(self, confirmation: Attended) -> None:
        """Read the answer of the caller's own request, until it is confirmed or the connection is over.

        Returns at once if another task has to read; wait for the confirmation then. Cancellation: the connection goes
        on.
        """
        if len(self._callers) > 1 or self.subscriptions or self._attends:
            self._alone_in_a_row = 0
            return
        self._alone_in_a_row += 1
        if self._recall is None and not await self._relieve():
            return
        self._attends = True
        self.attended_count += 1
        stream, codec = self._stream, self._codec
        try:
            while not confirmation.settled and self.error is None:
                confirmation.reading = stream
                count = await stream.receive_into(codec.buffer())
                confirmation.reading = None
                self._take(self._checked(count))
        except Interrupted:
            pass  # It was settled in another way.
        except LinnError as error:
            self.lose(error)
        finally:
            self._attends, confirmation.reading = False, None
            if self._callers and self._recall is not None:
                self._recall.set()

    async def _relieve(self) -> bool:
        """Make the connection's own task leave the reading to this caller, after enough requests that were alone."""
        if self._alone_in_a_row < _ALONE_MIN:
            return False
        self._is_relieved = True
        self._stream.interrupt()
        # This takes a turn of the loop or two; if the turns take long, that task may be reading again already.
        while self._recall is None and self._is_relieved and self.error is None:
            await anyio.lowlevel.checkpoint()
        # Meanwhile another caller may have found the connection relieved.
        return self._recall is not None and not self._attends

    def _take(self, count: int) -> None:
        """Handle `count` received bytes; 0: handle the bytes that came with the welcome. Raises LinnError."""
        for event in self._codec.received(count):
            self._handle(event)
        if self._when_ready:
            self._call_ready()
        self._received_since_tick = True

    async def _receive(self) -> int:
        """Receive some bytes; a few times in a row without a checkpoint, if more has arrived already.

        Raises ConnectionLost.
        """
        stream, codec = self._stream, self._codec
        count: int | None = None
        if self._received_in_a_row < _RECEIVES_IN_A_ROW_MAX:
            self._received_in_a_row += 1
            count = stream.receive_nowait(codec.buffers())
        if count is None:
            self._received_in_a_row = 0
            count = await stream.receive_into(codec.buffer())
        return self._checked(count)

    def _checked(self, count: int) -> int:
        if count == 0:
            raise ConnectionLost(f"{self._stream.peer} closed the connection")
        return count

    def _handle(self, event: Event) -> None:
        correlation, message, batches, _ = event
        if correlation and type(message) is not Ping:
            caller = self._callers.pop(correlation, None)
            if caller is None:
                raise ProtocolError(f"the broker answered request {correlation}, which is not outstanding")
            if type(message) is Failed:
                caller.failed(error_of(message))
            else:
                caller.answered(message, batches)
        else:
            self._handle_push(correlation, message, batches)

    def _handle_push(self, correlation: int, message: Message, batches: list[RecordBatch]) -> None:
        if type(message) is Ping:
            self._send(frames_of(Pong(), correlation))
        elif type(message) is Goodbye:
            self._draining = True
        elif type(message) is Failed:
            raise error_of(message)
        elif type(message) is not Pong:
            taker = self.subscriptions.get(getattr(message, "subscription", INBOX))
            if taker is not None:  # A push may cross with the end of its subscription.
                taker.pushed(message, batches)

    def _call_ready(self) -> None:
        if self._when_ready and (self.error is not None or self.ready):
            callbacks, self._when_ready = self._when_ready, []
            for callback in callbacks:
                callback()

    async def _write(self) -> None:
        try:
            while True:
                while self._outgoing:
                    buffers, self._outgoing = self._outgoing, []
                    await self._stream.send(buffers)
                    buffers = []  # An idle connection should not keep its last output in memory.
                    self._outgoing_bytes = sum(map(len, self._outgoing))
                    self._call_ready()
                self._writing = False
                self._wake_writer = anyio.Event()
                await self._wake_writer.wait()
        except LinnError as error:
            self.lose(error)

    async def _renew(self, login: Exchange) -> None:
        """Log in again before the token ends, if there is a later one by then: the broker ends the connection else."""
        while login.ends_s < math.inf:
            ends_s = login.ends_s
            ahead_s = min(RENEWED_AHEAD_S, (ends_s - self.clock.now_ms() / 1000) / 2)
            while (left_s := ends_s - ahead_s - self.clock.now_ms() / 1000) > 0:
                await self.clock.sleep(min(left_s, _CLOCK_CHECK_S))
            data = b""
            try:
                data = await login.begin()
            except Exception as error:  # The user's function may have more luck the next time.
                about = {"address": self._stream.peer, "error": type(error).__name__}
                logger.warning("%(address)s: no next token yet: %(error)s", about)
                login.ends_s = ends_s
            if login.ends_s > ends_s:
                self.ask(_NO_CALLER, Authenticate(login.mechanism, data.decode()))
            else:
                await self.clock.sleep(TOKEN_TRIED_AGAIN_S)

    async def _keep_alive(self) -> None:
        interval_s = min(self.welcome.keepalive_ms / 1000, self.keepalive_s_max)
        if not interval_s:
            return
        drained_s = 0.0
        while True:
            await self.clock.sleep(interval_s / 2)
            if not (self._sent_since_tick and self._received_since_tick):
                self.tell(Ping())
            self._sent_since_tick = False
            self._silent_ticks = 0 if self._received_since_tick else self._silent_ticks + 1
            self._received_since_tick = False
            if self._silent_ticks > 2 * _SILENT_INTERVALS_MAX:
                self.lose(ConnectionLost(f"{self._stream.peer} has been silent for {_SILENT_INTERVALS_MAX} intervals"))
            drained_s += interval_s / 2 if self._draining else 0.0
            if drained_s > _DRAIN_S_MAX:
                self.lose(ConnectionLost(f"{self._stream.peer} said goodbye"))


class _NoCaller:
    """Null caller, in place of one that was cancelled."""

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        pass

    def failed(self, error: LinnError) -> None:
        pass


_NO_CALLER = _NoCaller()
