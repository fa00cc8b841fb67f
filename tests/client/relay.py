"""A relay between clients and a broker, which loses or holds back answers, and a broker that can be started again."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import trio
from anyio.abc import SocketStream

from linn.core.broker.broker import running_broker
from linn.core.env.real.env import RealEnv
from linn.testing.broker_setup import BrokerSetup
from linn.wire import messages as m
from linn.wire.connection import Connection

ENDS = anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError
WAIT_S = 300.0


class Restartable:
    """A broker in a thread, on a folder that its next start finds. It may have another address then."""

    def __init__(self, folder: Path, config: str) -> None:
        self.address = ""
        self._setup = BrokerSetup(config=config)
        self._folder = folder

    def start(self) -> None:
        """Start, and return when clients can connect."""
        started: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        self.address = started.result(WAIT_S)

    def _run(self, started: Future[str]) -> None:
        try:
            trio.run(self._main, started)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _main(self, started: Future[str]) -> None:
        config, plugins = self._setup.load(str(self._folder / "data"))
        async with running_broker(config, RealEnv(), plugins) as broker:
            self._token, self._end = trio.lowlevel.current_trio_token(), trio.Event()
            started.set_result(str(broker.addresses["native"]))
            await self._end.wait()

    def stop(self) -> None:
        """Stop the broker, and wait for its end."""
        self._token.run_sync_soon(self._end.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@contextmanager
def restartable(folder: Path, config: str) -> Iterator[Restartable]:
    """Run a broker on a folder."""
    broker = Restartable(folder, config)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


class Relay:
    """Passes on all bytes, and does once what a test asks for, about requests of one class."""

    def __init__(self, address: str) -> None:
        self.address = address
        """Address of the broker that the next connection goes to."""
        self.url = ""
        self.seen: list[m.Message] = []
        """Messages of clients that were passed on."""
        self.loses_answer_to: type[m.Message] | None = None
        """Class of a request after which a connection is cut as soon as the broker answers."""
        self.loses: type[m.Message] | None = None
        """Class of a request that is not passed on: its connection is cut instead."""
        self.holds_answer_to: type[m.Message] | None = None
        """Class of a request after which nothing comes from the broker until `let_go`."""
        self.stalls_at: type[m.Message] | None = None
        """Class of a request that is neither passed on nor refused; nothing after it is, on its connection."""
        self.changed = anyio.Event()
        self._gate = anyio.Event()
        self._gate.set()
        self._links: list[_Link] = []

    def let_go(self) -> None:
        """Pass on what was held back."""
        self._gate.set()

    async def cut(self) -> None:
        """Cut all connections."""
        for link in list(self._links):
            await link.cut()

    async def accept(self, client: SocketStream) -> None:
        """Serve one client."""
        host, _, port = self.address.rpartition(":")
        try:
            broker = await anyio.connect_tcp(host, int(port))
        except OSError:
            await client.aclose()
            return
        link = _Link(self, client, broker)
        self._links.append(link)
        try:
            await link.run()
        finally:
            self._links.remove(link)


class _Link:
    """One connection of a client's."""

    def __init__(self, relay: Relay, client: SocketStream, broker: SocketStream) -> None:
        self._relay = relay
        self._client = client
        self._broker = broker
        self._is_doomed = False

    async def run(self) -> None:
        async with self._client, self._broker, anyio.create_task_group() as tasks:
            tasks.start_soon(self._requests)
            tasks.start_soon(self._answers)

    async def cut(self) -> None:
        await self._client.aclose()
        await self._broker.aclose()

    async def _requests(self) -> None:
        relay, decoder = self._relay, Connection()
        decoder.allow_frames(64 << 20)
        try:
            while True:
                received = data = await self._client.receive()
                messages: list[m.Message] = []
                while data:
                    space = decoder.buffer()
                    part, data = data[: len(space)], data[len(space) :]
                    space[: len(part)] = part
                    messages += [event.message for event in decoder.received(len(part))]
                for message in messages:
                    if type(message) is relay.loses:
                        relay.loses = None
                        await self.cut()
                    if type(message) is relay.stalls_at:
                        relay.stalls_at = None
                        await anyio.sleep_forever()
                    if type(message) is relay.loses_answer_to:
                        relay.loses_answer_to, self._is_doomed = None, True
                    if type(message) is relay.holds_answer_to:
                        relay.holds_answer_to, relay._gate = None, anyio.Event()
                await self._broker.send(received)
                relay.seen += messages
                changed, relay.changed = relay.changed, anyio.Event()
                changed.set()
        except ENDS:
            await self.cut()

    async def _answers(self) -> None:
        try:
            while True:
                data = await self._broker.receive()
                if self._is_doomed:
                    await self.cut()
                await self._relay._gate.wait()
                await self._client.send(data)
        except ENDS:
            await self.cut()


@asynccontextmanager
async def running_relay(address: str) -> AsyncIterator[Relay]:
    """Run a relay to a broker, whose address or URL this is."""
    relay = Relay(address.removeprefix("linn://"))
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        relay.url = f"linn://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, relay.accept)
            yield relay
            relay.let_go()
            await relay.cut()
            tasks.cancel_scope.cancel()
