"""BrokerThread: a broker in a thread of the test's process, for trio, asyncio and blocking code alike.

Laws: it listens on loopback at a free port and shares nothing with other brokers, so that tests may run in parallel and
use the same topic names. It runs in real time, which a test may advance. Calls are carried out by the broker's own
loop; every wait has a timeout. Leaving the block ends the thread even if clients are still connected.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import trio
import trio.testing

from linn.client import AnyEnv, Message, Password, Receipt, Tls
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import Config
from linn.core.env.real.env import RealClock, RealEnv
from linn.core.errors.tree import ConnectionLost, InternalError, RequestTimeout
from linn.core.plugins.manager import PluginManager
from linn.testing import broker_view
from linn.testing.advance import Advance, seconds_of
from linn.testing.broker_setup import BrokerSetup, Tables
from linn.testing.certificates import AUTHORITY
from linn.testing.publishing import publish

T = TypeVar("T")
Work: TypeAlias = Callable[[Broker], Awaitable[T]]
WAIT_S = 5.0
"""Default timeout of a test's wait for its own code."""
START_S = 30.0
STOP_S = 30.0
_ANSWER_S = 30.0


async def _summary(broker: Broker) -> str:
    return broker_view.summary(broker)


class _BrokerClock(RealClock):
    """Real time, plus the time that the test has added."""

    def __init__(self) -> None:
        self.advance = Advance()
        self._began: tuple[int, float] | None = None

    def now_ms(self) -> int:
        if self._began is None:
            self._began = super().now_ms(), self.monotonic()
        began_ms, began = self._began
        return began_ms + int((self.monotonic() - began) * 1000)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(self.advance.sleep_s(seconds, self))


class _Call(Generic[T]):
    """A call for which another thread waits."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.result: Future[T] = Future()
        self._work = work
        self._scope = trio.CancelScope()

    def start(self, nursery: trio.Nursery) -> None:
        """Start the call; in the broker's loop."""
        try:
            nursery.start_soon(self._run)
        except RuntimeError:  # The broker is ending.
            self.result.cancel()

    async def _run(self) -> None:
        try:
            with self._scope:
                self.result.set_result(await self._work())
        except Exception as error:
            self.result.set_exception(error)
        finally:
            self.result.cancel()  # No effect if there is a result already.

    def cancel(self) -> None:
        """Cancel the call; in the broker's loop."""
        self._scope.cancel()


class BrokerThread:
    """A broker for a test: `with BrokerThread(topics={"orders": {"kind": "queue"}}) as broker`.

    Example:
        with BrokerThread(topics={"orders": {"kind": "queue"}}) as broker:
            broker.publish("orders", b"two coffees")
            assert [message.value for message in broker.records("orders")] == [b"two coffees"]
    """

    def __init__(
        self,
        config: str | Path | None = None,
        *,
        topics: Tables | None = None,
        exchanges: Tables | None = None,
        tls: bool = False,
        roles: Tables | None = None,
        users: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Prepare, but start nothing yet.

        Args:
            config: TOML text, or the path of a file. Its listeners and its data_dir are not used.
            topics: settings by name, as below `[topics.NAME]`, in addition to the topics of `config`.
            exchanges: as below `[exchanges.NAME]`.
            tls: it speaks only TLS, with a certificate by an authority of its own: `linn.connect(broker.url,
                tls=broker.tls)`. Needs trustme, which `linn[testing]` has.
            roles: rules by role, as below `[roles.NAME]`.
            users: roles by user, such as `{"ann": ["shop"]}`. With any user, every client logs in:
                `linn.connect(broker.url, login=broker.login("ann"))`.
        """
        self.setup = BrokerSetup(
            config=config,
            topics=topics or {},
            exchanges=exchanges or {},
            tls=tls,
            roles=roles or {},
            users=users or {},
        )
        self.url = ""
        """URL for `linn.connect` and `linn.sync.connect`, once it runs."""
        self._env = RealEnv()
        self._env.clock = self._clock = _BrokerClock()
        self._folder: TemporaryDirectory[str] | None = None
        self._started: Future[Broker] = Future()
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._thread: threading.Thread | None = None

    # --- life ---

    def start(self) -> BrokerThread:
        """Start, and return when clients can connect. Raises ConfigError, PluginError and other errors of a start."""
        assert self._thread is None, "it runs already"
        self._folder = TemporaryDirectory(prefix="linn-", ignore_cleanup_errors=True)
        try:
            config, plugins = self.setup.load(f"{self._folder.name}/data")
            self._thread = threading.Thread(target=self._run, args=(config, plugins), name="linn-broker", daemon=True)
            self._thread.start()
            broker = self._started.result(START_S)
        except BaseException:
            self._folder.cleanup()
            raise
        self.url = f"{'linns' if self.setup.tls else 'linn'}://{broker.addresses['native']}"
        return self

    @property
    def tls(self) -> Tls | None:
        """TLS options for a client of this broker, once it runs; None for one without TLS."""
        return Tls(ca=f"{self._folder.name}/{AUTHORITY}") if self.setup.tls and self._folder is not None else None

    def login(self, user: str) -> Password:
        """Return the login of a user, for a client of this broker. Raises ConfigError: there is no such user."""
        return self.setup.login(user)

    def _run(self, config: Config, plugins: PluginManager) -> None:
        try:
            trio.run(self._main, config, plugins, clock=trio.testing.MockClock(rate=1.0))
        except BaseException as error:
            self._failure = error
            if not self._started.done():
                self._started.set_exception(error)

    async def _main(self, config: Config, plugins: PluginManager) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with running_broker(config, self._env, plugins) as broker:
            async with trio.open_nursery() as self._nursery:
                self._started.set_result(broker)
                await trio.sleep_forever()

    def stop(self) -> None:
        """End the broker at once, with its connections. Idempotent. Raises the error that ended it before, if any."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._end)
        thread.join(STOP_S)
        if self._folder is not None:
            self._folder.cleanup()
        if thread.is_alive():
            raise InternalError(f"the broker of this test did not end within {STOP_S:g} s")
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        self._nursery.cancel_scope.cancel()

    def __enter__(self) -> BrokerThread:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- inspection ---

    @property
    def broker(self) -> Broker:
        """The broker itself. It belongs to its thread: use it only within `call`."""
        return self._started.result(0)

    def call(self, work: Work[T]) -> T:
        """Run `work(broker)` in the broker's loop. Raises its errors, ConnectionLost, RequestTimeout.

        Example:
            async def connections(broker):
                return broker.listening.connections

            assert broker.call(connections) == 0
        """
        return self._result(self._submit(work), "a call", _ANSWER_S)

    def records(self, topic: str) -> list[Message]:
        """Return a topic's records, by partition and offset; of a queue, the unsettled ones. Raises TopicUnknown."""
        return self.call(lambda broker: broker_view.records(broker, topic))

    def summary(self) -> str:
        """Describe each topic in a line: published, kept, unsettled, and so on. Shown when a test fails."""
        return self.call(_summary)

    # --- acting ---

    def publish(self, topic: str, *values: bytes | None, **properties: Any) -> list[Receipt]:
        """Publish messages with the same properties. Takes and raises the same as `linn.client.Producer.publish`.

        Example:
            broker.publish("orders", b"two coffees", b"one tea", key=b"table 4")
        """
        return self.call(
            lambda _: publish(self.url, topic, None, values, properties, AnyEnv(), self.tls, self.setup.helper)
        )

    def publish_to(self, exchange: str, *values: bytes | None, **properties: Any) -> list[Receipt]:
        """Publish messages to an exchange, as `publish` does to a topic.

        Example:
            broker.publish_to("flights", b"late again", routing_key="departed.jfk.late")
        """
        return self.call(
            lambda _: publish(self.url, None, exchange, values, properties, AnyEnv(), self.tls, self.setup.helper)
        )

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Advance the broker's time: leases end, retention drops records. Clients' time stays real.

        Raises ValueError for a negative time.
        """
        total_s = seconds_of(days, hours, minutes, seconds)
        self.call(lambda _: self._clock.advance.run(total_s, self._clock))

    # --- waiting ---

    async def wait_records(self, topic: str, count: int, *, timeout_s: float = WAIT_S) -> list[Message]:
        """Wait until `count` messages were published to a topic since the start; returns `records(topic)`.

        Raises TopicUnknown, RequestTimeout.
        """
        return await self._awaited(*self._records_wait(topic, count), timeout_s)

    def wait_records_blocking(self, topic: str, count: int, *, timeout_s: float = WAIT_S) -> list[Message]:
        """Wait as `wait_records` does, in code without an event loop."""
        what, work = self._records_wait(topic, count)
        return self._result(self._submit(work), what, timeout_s)

    async def wait_settled(self, topic: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until every message of a queue is settled.

        Raises TopicUnknown, SubscriptionWrongKind, RequestTimeout.
        """
        await self._awaited(*self._settled_wait(topic), timeout_s)

    def wait_settled_blocking(self, topic: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait as `wait_settled` does, in code without an event loop."""
        what, work = self._settled_wait(topic)
        self._result(self._submit(work), what, timeout_s)

    async def wait_committed(self, topic: str, group: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until a group has committed all records of a stream.

        Raises TopicUnknown, SubscriptionWrongKind, RequestTimeout.
        """
        await self._awaited(*self._committed_wait(topic, group), timeout_s)

    def wait_committed_blocking(self, topic: str, group: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait as `wait_committed` does, in code without an event loop."""
        what, work = self._committed_wait(topic, group)
        self._result(self._submit(work), what, timeout_s)

    @staticmethod
    def _records_wait(topic: str, count: int) -> tuple[str, Work[list[Message]]]:
        async def wait(broker: Broker) -> list[Message]:
            await broker_view.wait_records(broker, topic, count)
            return await broker_view.records(broker, topic)

        return f'{count} messages in "{topic}"', wait

    @staticmethod
    def _settled_wait(topic: str) -> tuple[str, Work[None]]:
        return f'"{topic}" to be settled', lambda broker: broker_view.wait_settled(broker, topic)

    @staticmethod
    def _committed_wait(topic: str, group: str) -> tuple[str, Work[None]]:
        return (
            f'group "{group}" to commit all of "{topic}"',
            lambda broker: broker_view.wait_committed(broker, topic, group),
        )

    # --- crossing threads ---

    def _submit(self, work: Work[T]) -> _Call[T]:
        broker = self.broker
        call = _Call(lambda: work(broker))
        try:
            self._token.run_sync_soon(call.start, self._nursery)
        except trio.RunFinishedError:
            raise self._gone() from self._failure
        return call

    def _result(self, call: _Call[T], what: str, timeout_s: float) -> T:
        """Wait for the result of a call. Raises its errors, ConnectionLost, RequestTimeout."""
        try:
            return call.result.result(timeout_s)
        except CancelledError:
            raise self._gone() from self._failure
        except TimeoutError:
            if call.result.done():
                raise
            raise RequestTimeout(f"waited {timeout_s:g} s for {what}; there is:\n{self._seen()}") from None
        finally:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(call.cancel)

    def _seen(self) -> str:
        try:
            return self._submit(_summary).result.result(_ANSWER_S)
        except (TimeoutError, CancelledError):
            return "a broker that does not answer"

    async def _awaited(self, what: str, work: Work[T], timeout_s: float) -> T:
        call = self._submit(work)
        try:
            wait = partial(self._result, call, what, timeout_s)
            return await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)
        finally:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(call.cancel)

    def _gone(self) -> ConnectionLost:
        return ConnectionLost("the broker of this test has ended")
