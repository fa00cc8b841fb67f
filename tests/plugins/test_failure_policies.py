"""Every hook behaves as its failure policy says, and the log names the plugin.

Interceptors and observers have files of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
from plugin_world import ADDRESS, broker_with, client_of
from simulated_time import simulated

from linn.core.batch.batch import RecordBatch
from linn.core.env.env import AcceptedStream, Env
from linn.core.errors.tree import DeliveryNotCurrent, InternalError, LinnError, PluginError, StorageError, TopicError
from linn.core.gateway.gateway import Gateway
from linn.core.gateway.protocol import ProtocolKind
from linn.core.log.storage import EngineKind, PartitionId
from linn.core.plugins.hookspecs import hookimpl
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.semantics import CONFIRM_WHEN, Acks, ConfirmWhen, SemanticsKind
from linn.core.routing.exchange import Binding, ExchangeKind, Subject
from linn.plugins.exchanges import FanoutExchange, NoSettings
from linn.storage_engines.dram.engine import DramEngine
from linn.storage_engines.dram.log import DramLog
from linn.storage_engines.dram.settings import DramSettings
from linn.testing.sim_env import SimEnv


class Fault:
    """Raises once, when it is armed."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def strike(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


def named(caplog: pytest.LogCaptureFixture, plugin: str) -> list[str]:
    """The log lines about a plugin."""
    return [message for message in caplog.messages if f'plugin "{plugin}" (tests:{plugin}) in ' in message]


# --- engines ---------------------------------------------------------------------------------------------------------


class FaultyLog(DramLog):
    appending: Fault
    reading: Fault
    keeping: Fault

    def append(self, batch: RecordBatch, leader_epoch: int = 0) -> int:
        self.appending.strike()
        return super().append(batch, leader_epoch)

    def read_nowait(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        self.reading.strike()
        return super().read_nowait(offset, bytes_max)

    async def read(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        self.reading.strike()
        return await super().read(offset, bytes_max)

    async def enforce_retention(self, now_ms: int, **bounds: Any) -> int:
        self.keeping.strike()
        return await super().enforce_retention(now_ms, **bounds)


class FaultyEngine(DramEngine):
    def __init__(self, folder: str, settings: DramSettings, env: Env, plugin: TapePlugin) -> None:
        super().__init__(folder, settings, env)
        self._plugin = plugin

    async def open(self, partition: PartitionId) -> DramLog:
        self._plugin.opening.strike()
        log = FaultyLog(str(partition), self._settings, self._env, self._scratch, self._memory, self.capabilities)
        log.appending, log.reading = self._plugin.appending, self._plugin.reading
        log.keeping = self._plugin.keeping
        return log


class TapePlugin:
    def __init__(self) -> None:
        self.making, self.opening, self.appending, self.reading, self.keeping = (Fault() for _ in range(5))

    @hookimpl
    def linn_register_engine(self) -> EngineKind:
        return EngineKind("tape", DramSettings, self.make)

    def make(self, folder: str, settings: DramSettings, env: Env) -> DramEngine:
        self.making.strike()
        return FaultyEngine(folder, settings, env, self)


TAPE = '[topics.t]\nkind = "stream"\nstorage = "tape"\n'


@simulated
async def test_a_storage_error_fails_that_operation_as_it_is(env: SimEnv) -> None:
    tape = TapePlugin()
    async with broker_with(env, TAPE, tape=tape), client_of(env) as client, client.producer("t") as producer:
        tape.appending.error = StorageError("the tape is torn")
        with pytest.raises(StorageError, match="the tape is torn"):
            await producer.publish(b"a")
        assert (await producer.publish(b"b")).offset == 0


@pytest.mark.parametrize("deed", ["appending", "reading"])
@simulated
async def test_an_unforeseen_error_of_an_engine_fails_that_request_and_is_logged_by_name(
    env: SimEnv, deed: str, caplog: pytest.LogCaptureFixture
) -> None:
    tape = TapePlugin()
    async with broker_with(env, TAPE, tape=tape), client_of(env) as client, client.producer("t") as producer:
        await producer.publish(b"a")
        getattr(tape, deed).error = RuntimeError("a bug")
        with pytest.raises(InternalError):
            await (producer.publish(b"b") if deed == "appending" else client.fetch("t", 0, 0))
        assert (await producer.publish(b"c")).offset == 1
        assert len((await client.fetch("t", 0, 0)).batches) == 2
    assert named(caplog, "tape")


@simulated
async def test_an_engine_that_fails_a_publish_which_waited_for_room_fails_that_publish_alone(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    tape = TapePlugin()
    toml = '[topics.t]\nstorage = "tape"\nmessage_bytes_max = 1000\nbytes_max = 1000\n'
    async with broker_with(env, toml, tape=tape), client_of(env) as client, client.producer("t") as producer:
        async with client.consumer("t") as consumer, trio.open_nursery() as nursery:
            await producer.publish(b"a" * 900)

            async def publish() -> None:
                with pytest.raises(InternalError):
                    await producer.publish(b"b" * 900)

            nursery.start_soon(publish)
            await env.clock.sleep(1)
            tape.appending.error = RuntimeError("a bug")
            message = await anext(consumer)
            await message.ack()  # Refused, had the connection ended.
        assert (await producer.publish(b"c")).offset == 1
    assert named(caplog, "tape")


@simulated
async def test_an_engine_that_fails_a_delivery_ends_it_with_its_connection(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    tape = TapePlugin()
    async with broker_with(env, TAPE.replace("stream", "queue"), tape=tape), client_of(env) as client:
        async with client.producer("t") as producer:
            await producer.publish(b"a")
        tape.reading.error = RuntimeError("a bug")
        async with client.consumer("t") as consumer:  # It connects again.
            with trio.fail_after(60):
                assert (await anext(consumer)).value == b"a"
    assert named(caplog, "tape")


@simulated
async def test_an_engine_that_fails_a_background_task_stops_the_broker(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    tape = TapePlugin()

    async def serve() -> None:
        async with broker_with(env, TAPE, tape=tape):
            tape.keeping.error = RuntimeError("a bug")
            await trio.sleep(60)

    with pytest.raises(RuntimeError, match="a bug"):
        await serve()
    assert any(message.startswith("the broker ends") for message in named(caplog, "tape"))


@simulated
async def test_an_engine_that_can_not_be_made_stops_the_start(env: SimEnv) -> None:
    tape = TapePlugin()
    tape.making.error = KeyError("reel")
    with pytest.raises(PluginError, match=r'^plugin "tape" \(tests:tape\): the factory of "tape" failed: KeyError'):
        async with broker_with(env, TAPE, tape=tape):
            raise AssertionError("it started")


@simulated
async def test_an_engine_that_fails_to_open_a_log_stops_the_start_by_name(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    tape = TapePlugin()
    tape.opening.error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        async with broker_with(env, TAPE, tape=tape):
            raise AssertionError("it started")
    assert named(caplog, "tape")


# --- semantics -------------------------------------------------------------------------------------------------------


class ManualPlugin:
    def __init__(self) -> None:
        self.acquiring, self.returning = Fault(), Fault()

    @hookimpl
    def linn_register_semantics(self) -> SemanticsKind:
        plugin = self

        class Manual:
            settles_on_delivery, survives_restart, is_two_phase = False, True, False

            def __init__(self, settings: LeaseSettings) -> None:
                self.lease_ms = settings.lease_ms

            @property
            def lease_records_max(self) -> int:
                plugin.acquiring.strike()
                return 100

            def confirm_when(self, acks: Acks) -> ConfirmWhen:
                return CONFIRM_WHEN[acks]

            def redelivery_ms(self, attempts: int, asked_ms: int | None) -> int | None:
                plugin.returning.strike()
                return asked_ms or 0

        return SemanticsKind("manual", LeaseSettings, Manual)


MANUAL = '[topics.t]\ndelivery = "manual"\nlease = "1s"\n'


@pytest.mark.parametrize(
    ("error", "told"), [(DeliveryNotCurrent("no"), DeliveryNotCurrent), (RuntimeError("a bug"), InternalError)]
)
@simulated
async def test_a_semantics_that_fails_a_settlement_settles_nothing(
    env: SimEnv, error: Exception, told: type[LinnError], caplog: pytest.LogCaptureFixture
) -> None:
    manual = ManualPlugin()
    async with broker_with(env, MANUAL, manual=manual) as broker, client_of(env) as client:
        async with client.producer("t") as producer:
            await producer.publish(b"a")
        async with client.consumer("t") as consumer:
            message = await anext(consumer)
            manual.returning.error = error
            with pytest.raises(told):
                await message.nack()
            assert broker.topics["t"].queue is not None
            assert broker.topics["t"].queue.unsettled_count() == 1
    assert bool(named(caplog, "manual")) == (told is InternalError)


@simulated
async def test_a_semantics_that_fails_a_delivery_ends_it_with_its_connection(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    manual = ManualPlugin()
    async with broker_with(env, MANUAL, manual=manual), client_of(env) as client:
        async with client.producer("t") as producer:
            await producer.publish(b"a")
        manual.acquiring.error = RuntimeError("a bug")
        async with client.consumer("t") as consumer:  # It connects again.
            with trio.fail_after(60):
                assert (await anext(consumer)).value == b"a"
    assert named(caplog, "manual")


@simulated
async def test_a_semantics_that_fails_a_background_task_stops_the_broker(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    manual = ManualPlugin()

    async def serve() -> None:
        async with broker_with(env, MANUAL, manual=manual), client_of(env) as client:
            async with client.producer("t") as producer:
                await producer.publish(b"a")
            async with client.consumer("t") as consumer:
                await anext(consumer)
                manual.returning.error = RuntimeError("a bug")
                await trio.sleep(60)

    with pytest.raises(RuntimeError, match="a bug"):
        await serve()
    assert named(caplog, "manual")


# --- exchanges -------------------------------------------------------------------------------------------------------


class OddPlugin:
    def __init__(self, match: Callable[[Subject], Any]) -> None:
        self._match = match

    @hookimpl
    def linn_register_exchange(self) -> ExchangeKind:
        plugin = self

        class Odd(FanoutExchange):
            def match(self, subject: Subject) -> Sequence[Binding]:
                if subject.routing_key != "bad":
                    return super().match(subject)
                found: Sequence[Binding] = plugin._match(subject)
                return found

        return ExchangeKind("odd", NoSettings, Odd)


ODD = '[exchanges.e]\ntype = "odd"\n[topics.t]\nkind = "stream"\n[[topics.t.bindings]]\nexchange = "e"\n'


@pytest.mark.parametrize(
    ("match", "text"),
    [(lambda subject: 1 // 0, "ZeroDivisionError"), (lambda subject: "t", "TypeError"), (lambda subject: None, "Type")],
)
@simulated
async def test_an_exchange_that_fails_fails_that_publish_and_no_other(
    env: SimEnv, match: Callable[[Subject], Any], text: str
) -> None:
    async with broker_with(env, ODD, odd=OddPlugin(match)), client_of(env) as client:
        async with client.producer(exchange="e") as producer:
            assert (await producer.publish(b"a", routing_key="good")).batch_copies == 1
            with pytest.raises(TopicError, match=rf'exchange e \(odd\), of plugin "odd" \(tests:odd\), failed: {text}'):
                await producer.publish(b"b", routing_key="bad")
            assert (await producer.publish(b"c", routing_key="good")).batch_copies == 1
        assert len((await client.fetch("t", 0, 0)).batches) == 2


# --- protocols -------------------------------------------------------------------------------------------------------


class EchoPlugin:
    """Speaks so badly that it fails when it hears a word: `bug`, `rude` or `many`."""

    @hookimpl
    def linn_register_protocol(self) -> ProtocolKind:
        return ProtocolKind("echo", NoSettings, lambda settings: self)

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        buffer = memoryview(bytearray(100))
        while count := await stream.receive_into(buffer):
            said = bytes(buffer[:count])
            if said == b"bug":
                raise RuntimeError("a bug")
            if said == b"rude":
                raise DeliveryNotCurrent("how rude")
            if said == b"many":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._fail)
            await stream.send([said])

    async def _fail(self) -> None:
        raise RuntimeError("a bug in a task")


@pytest.mark.parametrize("said", [b"bug", b"rude", b"many"])
def test_a_protocol_that_fails_ends_that_connection_and_no_other(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    @simulated
    async def scenario(env: SimEnv) -> None:
        toml = '[listeners.echo]\nprotocol = "echo"\naddress = "127.0.0.1:7"\n'
        async with broker_with(env, toml, echo=EchoPlugin()) as broker:
            one, other = await env.net.connect("127.0.0.1:7"), await env.net.connect("127.0.0.1:7")
            buffer = memoryview(bytearray(100))
            await one.send([said])
            with trio.fail_after(10):
                assert await one.receive_into(buffer) == 0
            await other.send([b"x"])
            assert await other.receive_into(buffer) == 1
            assert broker.listening.connections == 1
            third = await env.net.connect("127.0.0.1:7")
            await third.send([b"x"])
            assert await third.receive_into(buffer) == 1

    with caplog.at_level(logging.INFO):
        scenario()
    assert bool(named(caplog, "echo")) == (said != b"rude")
    assert any("how rude" in message for message in caplog.messages) == (said == b"rude")


@simulated
async def test_a_protocol_that_can_not_be_made_stops_the_start(env: SimEnv) -> None:
    class Broken:
        @hookimpl
        def linn_register_protocol(self) -> ProtocolKind:
            return ProtocolKind("echo", NoSettings, lambda settings: 1 // 0)  # type: ignore[arg-type, return-value]

    toml = '[listeners.echo]\nprotocol = "echo"\naddress = "127.0.0.1:7"\n'
    with pytest.raises(PluginError, match=r'^plugin "echo" .* the factory of "echo" failed: ZeroDivisionError'):
        async with broker_with(env, toml, echo=Broken()):
            raise AssertionError("it started")
    listener = await env.net.listen(ADDRESS)  # Nothing is bound.
    await listener.aclose()
