"""Wrong messages end their own connection, in bounded memory, whichever end sends them."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from served_world import ADDRESS, VERSION, embedded_store, served, serving

from linn.core.env.env import Stream
from linn.core.errors.metadata import MetadataError, MetadataUnavailable, MetadataUnknown
from linn.core.errors.tree import ConnectionLost
from linn.core.metadata import served_messages as messages
from linn.core.metadata.served_messages import ANSWER_BYTES_MAX, HELLO_BYTES_MAX, REQUEST_BYTES_MAX
from linn.core.metadata.store_server import HELLO_S
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv


def frame(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


def hello(*, watches: bool = False) -> bytes:
    return frame({"type": "hello", "version": VERSION, "watches": watches})


LOAD = {"type": "load", "number": 1}
PUT = {"type": "put", "number": 1, "changes": {"a": 1}, "removed": [], "conditions": {}, "lease": 0}
DEEP = b"[" * 100_000
WRONG = {
    "no protocol of ours": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "no hello": frame(LOAD),
    "a long hello": frame({"type": "hello", "version": "1" * HELLO_BYTES_MAX, "watches": False}),
    "a hello of another shape": frame({"type": "hello", "version": 1, "watches": False}),
    "an empty frame": frame(b""),
    "a second hello": hello() + hello(),
    "no JSON": hello() + frame(b"{"),
    "no UTF-8": hello() + frame(b'{"type": "put", "number": 1, "changes": {"\xff": 1}}'),
    "half a character": hello() + frame(b'{"type": "load", "number": 1, "x\xc3": 1}'),
    "another type": hello() + frame({"type": "steal", "number": 1}),
    "a list": hello() + frame([1]),
    "nested deeply": hello()
    + frame(b'{"type":"put","number":1,"removed":[],"conditions":{},"lease":0,"changes":{"a":' + DEEP),
    "a field too many": hello() + frame({**LOAD, "key": "a"}),
    "a field too few": hello() + frame({key: value for key, value in PUT.items() if key != "conditions"}),
    "a negative number": hello() + frame({**LOAD, "number": -1}),
    "a negative revision": hello() + frame({**PUT, "conditions": {"a": -1}}),
    "a number that is none": hello() + frame({**LOAD, "number": True}),
    "a lease without an end": hello() + frame(b'{"type": "grant", "number": 1, "ttl_s": 1e999}'),
    "a lease of no time": hello() + frame({"type": "grant", "number": 1, "ttl_s": 0}),
    "a lease of NaN": hello() + frame(b'{"type": "grant", "number": 1, "ttl_s": NaN}'),
    "a request that is too large": hello() + (REQUEST_BYTES_MAX + 1).to_bytes(4, "big"),
    "the largest length": hello() + b"\xff\xff\xff\xff" + bytes(1000),
    "a request on a watch": hello(watches=True) + frame(LOAD),
    "a second hello on a watch": hello(watches=True) + hello(watches=True),
}


async def received(stream: Stream) -> bytes:
    """All bytes up to the end of a stream."""
    found, buffer = bytearray(), bytearray(4096)
    try:
        while count := await stream.receive_into(memoryview(buffer)):
            found += buffer[:count]
    except ConnectionLost:
        pass
    return bytes(found)


@pytest.mark.parametrize("sent", WRONG.values(), ids=WRONG)
def test_a_wrong_message_ends_its_connection_alone_and_is_logged_in_a_line(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(server: SimEnv) -> None:
        client = SimEnv(0, name="client", world=server.world)
        async with embedded_store(server, "/store") as store, serving(store, server):
            bystander = served(client)
            lease = await bystander.grant_lease(6.0)
            stream = await client.net.connect(ADDRESS)
            await stream.send([sent])
            with trio.fail_after(5.0):
                await received(stream)
            await bystander.renew_lease(lease)
            assert (await bystander.load()).entries == {}

    run_simulation(0, main)
    (record,) = [record for record in caplog.records if record.name == "linn.metadata"]
    assert record.exc_info is None
    assert len(record.getMessage()) < 500


def test_the_reason_is_told_to_a_client_that_reads() -> None:
    async def main(env: SimEnv) -> None:
        async with embedded_store(env, "/store") as store, serving(store, env):
            stream = await env.net.connect(ADDRESS)
            await stream.send([frame(LOAD)])
            answer = json.loads((await received(stream))[4:])
            assert answer["code"] == "metadata.failed"
            assert "wrong" in answer["text"]

    run_simulation(0, main)


def test_a_connection_that_says_nothing_is_closed_in_time() -> None:
    async def main(env: SimEnv) -> None:
        async with embedded_store(env, "/store") as store, serving(store, env):
            stream = await env.net.connect(ADDRESS)
            await stream.send([hello()[:7]])
            with trio.fail_after(HELLO_S + 2.0):
                await received(stream)
            assert trio.current_time() >= HELLO_S

    run_simulation(0, main)


def test_a_length_costs_no_memory_before_its_bytes_come() -> None:
    async def main(env: SimEnv) -> None:
        async with embedded_store(env, "/store") as store, serving(store, env):
            streams = [await env.net.connect(ADDRESS) for _ in range(50)]
            tracemalloc.start()
            for stream in streams:
                await stream.send([hello() + REQUEST_BYTES_MAX.to_bytes(4, "big") + b"x"])
            await trio.sleep(1.0)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 50 * 150_000

    run_simulation(0, main)


DONE = {"type": "done", "number": 0, "result": 0}
ENTRIES = {"type": "entries", "number": 1, "revision": 1, "entries": {}}
ANSWERS = {
    "no JSON": frame(b"{"),
    "another type": frame({"type": "gone", "number": 1}),
    "the answer to no request": frame({**DONE, "number": 9}),
    "number 0": frame(DONE),
    "the largest length": b"\xff\xff\xff\xff",
    "an answer that is too large": (ANSWER_BYTES_MAX + 1).to_bytes(4, "big"),
    "a negative revision": frame({**ENTRIES, "revision": -1}),
    "half an answer": frame(ENTRIES)[:20],
    "nothing": b"",
}


@pytest.mark.parametrize("sent", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("is_write", [False, True])
def test_a_wrong_answer_is_an_error_of_all_waiting_calls_and_the_next_call_dials_again(
    sent: bytes, is_write: bool
) -> None:
    async def main(env: SimEnv) -> None:
        listener = await env.net.listen(ADDRESS)

        async def serve() -> None:
            stream = await listener.accept()
            await stream.send([frame(DONE)])
            await trio.sleep(0.5)
            await stream.send([sent])
            await trio.sleep(0.5)
            await stream.aclose()
            await listener.aclose()

        errors = list[MetadataError]()

        async def call() -> None:
            try:
                await (mine.put_all({"a": 1}, {}) if is_write else mine.load())
            except MetadataError as error:
                errors.append(error)

        mine = served(env)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await trio.sleep(0.1)
            for _ in range(3):
                nursery.start_soon(call)
            await trio.sleep(0.6)
            assert len(errors) == (0 if sent in (b"", ANSWERS["half an answer"]) else 3), "it waits for the end"
        assert [isinstance(error, MetadataUnknown) for error in errors] == [is_write] * 3
        async with embedded_store(env, "/store") as store, serving(store, env):
            await mine.load()

    run_simulation(0, main)


def test_an_answer_of_another_kind_is_an_error() -> None:
    async def main(env: SimEnv) -> None:
        listener = await env.net.listen(ADDRESS)

        async def serve(answer: Any) -> None:
            stream = await listener.accept()
            await stream.send([frame(DONE), frame(answer)])
            await received(stream)

        mine = served(env)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, {**DONE, "number": 1})
            with pytest.raises(MetadataError, match="what no store answers"):
                await mine.load()
            nursery.start_soon(serve, ENTRIES)
            with pytest.raises(MetadataUnknown):
                await mine.put_all({"a": 1}, {})
            nursery.start_soon(serve, {"type": "failed", "number": 1, "code": "of.tomorrow", "text": "no"})
            with pytest.raises(Exception, match=r"no \(of.tomorrow\)"):
                await mine.load()
            await mine.aclose()

    run_simulation(0, main)


@pytest.mark.parametrize(
    "sent", [DONE, LOAD, {"type": "failed", "number": 0, "code": "metadata.unavailable", "text": ""}]
)
def test_a_watch_with_a_wrong_answer_is_an_error(sent: Any) -> None:
    async def main(env: SimEnv) -> None:
        listener = await env.net.listen(ADDRESS)

        async def serve() -> None:
            for _ in range(2):
                stream = await listener.accept()
                await stream.send([frame({**ENTRIES, "number": 0}), frame(sent)])
                await received(stream)

        mine = served(env)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            for _ in range(2):
                async with mine.watch() as watch:
                    with pytest.raises((MetadataError, MetadataUnavailable)):
                        await watch.next()

    run_simulation(0, main)


# --- messages --------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
COUNTS = st.integers(0, (1 << 63) - 1)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.dictionaries(st.text(), COUNTS, max_size=3), st.data())
def test_messages_arrive_as_they_were_in_any_pieces(
    changes: dict[str, Any], conditions: dict[str, int], data: st.DataObject
) -> None:
    sent = [messages.Put(1, changes, ["gone"], conditions, 7), messages.Renew(2, 3), messages.Load(4)]
    stream = b"".join(messages.framed(each, REQUEST_BYTES_MAX) for each in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    frames, found = messages.Frames(), []
    for begin, end in pairwise([0, *cuts, len(stream)]):
        frames.feed(stream[begin:end])
        while (body := frames.next(REQUEST_BYTES_MAX)) is not None:
            found.append(messages.decoded(messages.REQUEST, body))
    assert found == sent


@given(st.binary(max_size=200), st.sampled_from([messages.HELLO, messages.REQUEST, messages.ANSWER]))
def test_any_bytes_are_a_message_or_a_metadata_error(body: bytes, decoder: msgspec.json.Decoder[Any]) -> None:
    with contextlib.suppress(MetadataError):
        messages.decoded(decoder, body)


@given(st.text(alphabet='{}[]",:0123456789.eE-tfnulldoneput', max_size=60))
def test_any_field_of_a_message_is_taken_or_a_metadata_error(value: str) -> None:
    for field in ("number", "changes", "removed", "conditions", "lease"):
        body = b", ".join(
            f'"{name}": {value if name == field else json.dumps(each)}'.encode() for name, each in PUT.items()
        )
        with contextlib.suppress(MetadataError):
            messages.decoded(messages.REQUEST, b"{%s}" % body)
