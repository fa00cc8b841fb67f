"""A second protocol: one JSON object a line, carried out one after the other. It imports `linn.api` alone.

{"do": "hello", "name": "billing"}                       {"broker": "linn"}    or, if the listener requires a login,
                                                         {"mechanisms": ["SCRAM-SHA-256"], "data": ""}
{"mechanism": "SCRAM-SHA-256", "data": "n,,n=ann,r=..."}  {"mechanisms": [...], "data": "r=..."}    and so on
{"do": "publish", "topic": "jobs", "values": ["a"]}      {"offset": 0}
{"do": "subscribe", "topic": "jobs"}                     {"id": 1}        "group": a member of it
{"do": "take", "id": 1}                                  {"partition": 0, "delivery": 1, "first": 0, "values": ["a"]}
{"do": "ack", "id": 1, "delivery": 1, "first": 0, "end": 1}  {}           "tx": in the transaction
{"do": "begin", "name": "billing-1"}                     {"number": 0}    then publish with "tx": true
{"do": "commit"}                                         {}
{"do": "fetch", "topic": "log", "offset": 0}             {"values": ["b"], "next": 1}
{"do": "administer", "verb": "topic.create", "arguments": {"name": "new"}}
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from linn.api import (
    LOGIN_METHODS,
    TRANSACTIONAL,
    AcceptedStream,
    AnyConsumer,
    AuthFailed,
    ConsumerKind,
    Delivery,
    FetchRequest,
    Gateway,
    Identity,
    LinnError,
    Principal,
    ProtocolError,
    ProtocolKind,
    PublishRequest,
    Record,
    RecordBatch,
    RequestedEnd,
    RequestUnknown,
    Session,
    Settlement,
    SubscribeRequest,
    Verdict,
    WaitDeadline,
    build_from_records,
    hookimpl,
    run_steps,
)

Asked = dict[str, Any]
BYTES_MAX = 1 << 16
TAKE_S = 5.0


class JsonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class Conversation:
    """One connection."""

    def __init__(self, stream: AcceptedStream, gateway: Gateway) -> None:
        self._stream = stream
        self._gateway = gateway
        self._received = bytearray()
        self._consumers: dict[int, AnyConsumer] = {}
        self._transaction: tuple[int, int, int] = (0, 0, 0)
        self._branch = self._written = 0
        self._do: dict[str, Callable[[Session, Asked], Awaitable[Asked]]] = {
            "publish": self._publish,
            "subscribe": self._subscribe,
            "take": self._take,
            "ack": self._ack,
            "begin": self._begin,
            "commit": self._commit,
            "fetch": self._fetch,
            "administer": self._administer,
        }

    async def run(self) -> None:
        """Wait for hello and a login, and carry out requests as the user who has logged in."""
        hello = await self._line()
        if hello is None:
            return
        if hello.get("do") != "hello":
            raise ProtocolError("hello comes first")
        identity, last = await self._logged_in()
        client, roles = f"json lines of {hello['name']}", identity.roles
        principal = Principal(self._stream.peer, client, identity.user, login=identity.how, roles=roles)
        async with self._gateway.session(principal) as session:
            self._gateway.connections.introduce(self._stream, session.principal, list)
            await self._say({"broker": self._gateway.name} | ({"data": last} if last else {}))
            while (asked := await self._line()) is not None:
                try:
                    do = self._do.get(asked.get("do", ""))
                    if do is None:
                        raise RequestUnknown("no such request")
                    answer = await do(session, asked)
                except LinnError as error:
                    answer = {"error": error.code, "text": error.text}
                await self._say(answer)

    async def _logged_in(self) -> tuple[Identity, str]:
        """Let the client log in; returns its identity, and the last words to it. Raises AuthFailed, ProtocolError."""
        login, data = self._gateway.login(self._stream), b""
        while login.identity is None:
            await self._say({"mechanisms": login.mechanisms, "data": data.decode()})
            said = await self._line()
            if said is None:
                raise ProtocolError("the client has left without a login")
            try:
                data = await login.step(str(said.get("mechanism")), str(said.get("data")).encode())
            except AuthFailed as error:
                await self._say({"error": error.code, "text": error.text})
                raise
        return login.identity, data.decode()

    async def _line(self) -> Asked | None:
        buffer = memoryview(bytearray(BYTES_MAX))
        while b"\n" not in self._received:
            count = await self._stream.receive_into(buffer)
            if count == 0:
                return None
            self._received += buffer[:count]
            if len(self._received) > BYTES_MAX:
                raise ProtocolError("a line is too long")
        line, _, self._received = self._received.partition(b"\n")
        try:
            asked = json.loads(line)
        except ValueError as error:
            raise ProtocolError("a line is not JSON") from error
        if not isinstance(asked, dict):
            raise ProtocolError("a line is not an object")
        return asked

    async def _say(self, answer: Asked) -> None:
        await self._stream.send([json.dumps(answer).encode() + b"\n"])

    async def _publish(self, session: Session, asked: Asked) -> Asked:
        env = self._gateway.env
        now_ms, id = env.clock.now_ms(), int.from_bytes(env.rng.bytes(16), "big")
        batch = build_from_records([Record(value=v.encode(), timestamp_ms=now_ms) for v in asked["values"]], base_id=id)
        if asked.get("tx"):
            batch.number(self._branch, 0, self._written, TRANSACTIONAL, self._transaction[2])
            self._written += batch.count
        (result,) = await session.publish(PublishRequest(asked["topic"], [batch], partition=0))
        return {"offset": result.base_offset}

    async def _subscribe(self, session: Session, asked: Asked) -> Asked:
        id = len(self._consumers) + 1
        self._consumers[id] = await session.subscribe(SubscribeRequest(asked["topic"], asked.get("group", "")))
        return {"id": id}

    async def _take(self, session: Session, asked: Asked) -> Asked:
        delivery: Delivery = await self._consumers[asked["id"]].next(100, BYTES_MAX, WaitDeadline(TAKE_S))
        batches = whole(delivery.batches)
        first = batches[0].base_offset if batches else -1
        place = {"partition": delivery.partition, "delivery": delivery.delivery_id, "first": first}
        return place | {"values": values(batches)}

    async def _ack(self, session: Session, asked: Asked) -> Asked:
        consumer = self._consumers[asked["id"]]
        settlement = Settlement(asked.get("partition", 0), asked["delivery"], asked["first"], asked["end"], Verdict.ACK)
        if asked.get("tx"):
            session.transactions.settle(self._transaction, consumer, [settlement])
            return {}
        outcome = run_steps(consumer.settle([settlement]))
        for _, error in outcome.refused:
            raise error
        for mark, end in outcome.awaits:
            await mark.wait(end)
        return {"commits": consumer.kind is ConsumerKind.GROUP}

    async def _begin(self, session: Session, asked: Asked) -> Asked:
        self._transaction = await session.transactions.open(asked["name"], 60.0)
        self._branch, self._written = session.take_producer_id(), 0
        session.transactions.add_branch(*self._transaction[:2], self._branch)
        return {"number": self._transaction[2]}

    async def _commit(self, session: Session, asked: Asked) -> Asked:
        ending = session.transactions.end(self._transaction, RequestedEnd(True, [self._branch]))
        if ending is not None:
            await ending.wait()
        return {}

    async def _fetch(self, session: Session, asked: Asked) -> Asked:
        request = FetchRequest(asked["topic"], 0, asked["offset"], BYTES_MAX)
        fetch = await session.decided(lambda: session.fetch(request))
        fetched = await fetch.read(WaitDeadline(asked.get("wait_s", 0)))
        return {"values": values(whole(fetched.batches)), "next": fetched.next_offset}

    async def _administer(self, session: Session, asked: Asked) -> Asked:
        return {"result": json.loads(await session.perform(asked["verb"], json.dumps(asked["arguments"])))}


def whole(batches: Sequence[object]) -> list[RecordBatch]:
    """The batches in memory, of which some may still be in their files."""
    return [batch if isinstance(batch, RecordBatch) else RecordBatch(batch.read()) for batch in batches]  # type: ignore[attr-defined]


def values(batches: Sequence[RecordBatch]) -> list[str]:
    """The values of all records."""
    return [(batch.value(index) or b"").decode() for batch in batches for index in range(batch.count)]


class JsonServer:
    """A `ProtocolServer`."""

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        """Speak with one client until it leaves."""
        await Conversation(stream, gateway).run()


@hookimpl
def linn_register_protocol() -> ProtocolKind:
    """Register the protocol."""
    return ProtocolKind("json-lines", JsonSettings, lambda settings: JsonServer(), login_methods=LOGIN_METHODS)
