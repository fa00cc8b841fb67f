"""Members of etcd that fail: each failure is a named error within bounded time and memory, and no write is repeated."""

from __future__ import annotations

import base64
import json
import ssl
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from etcd_script import EMPTY, HEADER, Member, Request, Script, cuts, hangs, http, run_with, says
from tls_world import authority

from linn.core.env.env import AcceptedStream
from linn.core.env.secret import Secret
from linn.core.errors.metadata import LeaseLost, MetadataError, MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.errors.tree import ConnectionLost, LimitExceeded
from linn.core.metadata.store import Changes, Stored
from linn.metadata_stores.etcd.client import ANSWER_BYTES_MAX, CONNECTIONS_MAX, IDLE_S_MAX, REQUEST_S, SILENT_S
from linn.metadata_stores.etcd.plugin import EtcdSettings
from linn.metadata_stores.etcd.store import SILENCE_S
from linn.testing.sim_env import SimEnv

RANGE, TXN, WATCH = "/v3/kv/range", "/v3/kv/txn", "/v3/watch"
GRANT, RENEW, REVOKE = "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke"
WRITTEN = {"header": {**HEADER, "revision": "11"}, "succeeded": True}


def error(text: str, code: int) -> dict[str, Any]:
    return {"error": text, "message": text, "code": code}


def floods(head: bytes, piece: bytes) -> Script:
    """Send without an end, and note how much the other side has taken."""

    async def answer(member: Member, stream: AcceptedStream, request: Request) -> None:
        await stream.send([head])
        while True:
            await stream.send([piece])
            member.sent_bytes += len(piece)
            await trio.sleep(0.001)  # Virtual time goes on.

    return answer


async def drips(member: Member, stream: AcceptedStream, request: Request) -> None:
    """Send a byte each second."""
    for byte in http(b" " * 10_000 + json.dumps(EMPTY).encode()):
        await stream.send([bytes([byte])])
        await trio.sleep(1)


def entry(key: bytes = b"a", value: Any = 1, revision: str = "11") -> dict[str, Any]:
    text = base64.b64encode(json.dumps(value).encode()).decode()
    return {"key": base64.b64encode(b"/linn/prod/" + key).decode(), "mod_revision": revision, "value": text}


def message(*events: Any, **more: Any) -> bytes:
    line = json.dumps({"result": {"header": HEADER, "events": [{"kv": kv} for kv in events], **more}}).encode() + b"\n"
    return b"%x\r\n%s\r\n" % (len(line), line)


STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CREATED = message(created=True)

# --- failures of one member ------------------------------------------------------------------------------------------

FAILURES: list[tuple[str, Script, type[MetadataError]]] = [
    ("closes at once", cuts(), MetadataUnavailable),
    ("half a head", cuts(b"HTTP/1.1 200 OK\r\ncontent-le"), MetadataUnavailable),
    ("half a body", cuts(http(EMPTY)[:-5]), MetadataUnavailable),
    ("half a chunk", cuts(STREAM + b"20\r\n{"), MetadataUnavailable),
    ("no answer", hangs, MetadataUnavailable),
    ("a slow answer", drips, MetadataUnavailable),
    ("status 500", says(b"HTTP/1.1 500 X\r\ncontent-length: 3\r\n\r\noops"[:-1]), MetadataUnavailable),
    ("status 503", says(http(b"<html>", 503)), MetadataUnavailable),
    ("no quorum", says(http(error("etcdserver: request timed out", 14), 503)), MetadataUnavailable),
    ("redirects", says(b"HTTP/1.1 302 X\r\nlocation: http://b:1/\r\ncontent-length: 0\r\n\r\n"), MetadataError),
    ("another program", says(http(b"Not Found", 404)), MetadataError),
    ("no http", says(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), MetadataError),
    ("two lengths", says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"), MetadataError),
    ("garbage", says(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xfe{}"), MetadataError),
    ("other types", says({"header": [], "kvs": 5, "succeeded": "x", "ID": {}}), MetadataError),
    ("no header", says({}), MetadataError),
    ("an endless body", floods(http(b"", length=10**12), b" " * 65536), MetadataError),
    ("endless chunks", floods(STREAM, (b"ff\r\n" + b" " * 255 + b"\r\n") * 200), MetadataError),
    ("an endless head", floods(b"HTTP/1.1 200 OK\r\nx: ", b"x" * 65536), MetadataError),
    ("endless heads", floods(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 9), MetadataError),
    ("an endless line of a chunk", floods(STREAM, b"0" * 65536), MetadataError),
]  # fmt: skip
BY_NAME = {name: (script, kind) for name, script, kind in FAILURES}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_request_to_a_member_that_fails_ends_with_an_error_in_time(name: str) -> None:
    script, kind = BY_NAME[name]
    member = Member("a:1", otherwise=script)

    async def scenario(store: Any, env: SimEnv) -> None:
        for ask in (partial(store.renew_lease, 5), partial(store.grant_lease, 5.0)):
            begun_s = trio.current_time()
            with pytest.raises(MetadataError) as caught:
                await ask()
            assert trio.current_time() - begun_s <= REQUEST_S + 1
            assert type(caught.value) is kind, caught.value
            assert len(caught.value.text) < 400
            assert "a:1" in caught.value.text
        await trio.sleep(5)
        assert member.open == 0

    run_with([member], scenario)
    assert member.sent_bytes < 8 * ANSWER_BYTES_MAX  # Up to four answers, and what waits in the network.


@pytest.mark.parametrize("name", BY_NAME)
def test_a_write_without_a_whole_answer_is_of_unknown_outcome_and_is_not_repeated(name: str) -> None:
    script, _ = BY_NAME[name]
    members = [Member("a:1", {TXN: script}), Member("b:1", {TXN: says(WRITTEN)})]

    async def scenario(store: Any, env: SimEnv) -> None:
        begun_s = trio.current_time()
        with pytest.raises(MetadataUnknown):
            await store.put_all({"a": 1}, {})
        assert trio.current_time() - begun_s <= REQUEST_S + 1
        assert [member.paths() for member in members] == [[TXN], []]
        assert await store.put_all({"a": 1}, {}) == 11  # The other member is asked from now on.

    run_with(members, scenario)


@pytest.mark.parametrize("name", BY_NAME)
def test_reads_renewals_and_the_end_of_a_lease_go_to_another_member(name: str) -> None:
    script, _ = BY_NAME[name]
    good = {
        RANGE: says({"header": HEADER, "kvs": [entry(revision="9")]}),
        GRANT: says({"header": HEADER, "ID": "5", "TTL": "6"}),
        RENEW: says({"result": {"header": HEADER, "ID": "5", "TTL": "6"}}),
    }
    if name == "an endless body":
        script = floods(http(b"", length=10**12), b" " * (1 << 20))

    async def scenario(store: Any, env: SimEnv) -> None:
        begun_s = trio.current_time()
        assert await store.grant_lease(6.0) == 5
        await store.renew_lease(5)
        assert dict((await store.load()).entries) == {"a": Stored(9, 1)}
        await store.revoke_lease(5)
        assert trio.current_time() - begun_s <= REQUEST_S / 2 + 1

    run_with([Member("a:1", otherwise=script), Member("b:1", good)], scenario)


def test_a_load_of_too_many_bytes_is_refused() -> None:
    member = Member("a:1", otherwise=floods(http(b"", length=100 << 20), b" " * (1 << 20)))

    async def scenario(store: Any, env: SimEnv) -> None:
        env.world.slow("node", "a:1", delay_s=(0.0, 0.0))
        with pytest.raises(MetadataError, match="more than"):
            await store.load()

    run_with([member], scenario)
    assert member.sent_bytes <= 2 * (70 << 20)  # It is asked twice.


def test_nobody_at_the_address() -> None:
    async def scenario(store: Any, env: SimEnv) -> None:
        for ask in (store.load(), store.put_all({"a": 1}, {}), store.grant_lease(1), store.revoke_lease(1)):
            with pytest.raises(MetadataUnavailable, match="refused") as caught:
                await ask
            assert type(caught.value) is MetadataUnavailable

    run_with([], scenario, endpoints=("http://a:1", "http://b:1"))


# --- what etcd says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "text", "code", "kind"),
    [
        (404, "etcdserver: requested lease not found", 5, LeaseLost),
        (400, "etcdserver: request is too large", 3, LimitExceeded),
        (429, "etcdserver: mvcc: database space exceeded", 8, MetadataError),
        (403, "etcdserver: permission denied", 7, MetadataError),
    ],
)
def test_a_refusal_is_final(status: int, text: str, code: int, kind: type[Exception]) -> None:
    members = [Member("a:1", {TXN: says(http(error(text, code), status))}), Member("b:1")]

    async def scenario(store: Any, env: SimEnv) -> None:
        for _ in range(2):
            with pytest.raises(kind) as caught:
                await store.put_all({"a": 1}, {}, 5)
            assert type(caught.value) is kind
        assert [len(member.asked) for member in members] == [2, 0]
        assert members[0].open_max == 1

    run_with(members, scenario)


def test_a_write_that_no_leader_was_asked_for_is_asked_for_elsewhere() -> None:
    refused = http(error("etcdserver: no leader", 14), 503)
    members = [Member("a:1", {TXN: says(refused)}), Member("b:1", {TXN: says(WRITTEN)})]

    async def scenario(store: Any, env: SimEnv) -> None:
        assert await store.put_all({"a": 1}, {}) == 11
        assert members[0].asked[0].headers["grpc-metadata-hasleader"] == "true"

    run_with(members, scenario)
    alone = Member("a:1", {TXN: says(refused)})

    async def scenario_alone(store: Any, env: SimEnv) -> None:
        with pytest.raises(MetadataUnavailable, match="no leader") as caught:
            await store.put_all({"a": 1}, {})
        assert type(caught.value) is MetadataUnavailable

    run_with([alone], scenario_alone)


def test_a_condition_that_does_not_hold_is_a_conflict() -> None:
    async def scenario(store: Any, env: SimEnv) -> None:
        with pytest.raises(RevisionConflict, match="a"):
            await store.put_all({"a": 1}, {"a": 5})

    run_with([Member("a:1", {TXN: says({"header": HEADER})})], scenario)


def test_an_etcd_that_goes_back_or_is_another_one_is_noticed() -> None:
    later, earlier = {**HEADER, "revision": "12"}, {**HEADER, "revision": "11"}
    other = {**later, "cluster_id": "8"}
    member = Member("a:1", {RANGE: says(*({"header": header} for header in (HEADER, later, earlier, earlier, other)))})

    async def scenario(store: Any, env: SimEnv) -> None:
        assert [(await store.load()).revision for _ in range(2)] == [10, 12]
        with pytest.raises(MetadataError, match="went back from revision 12 to 11") as caught:
            await store.load()
        assert not caught.value.retriable
        with pytest.raises(MetadataError, match="another etcd"):
            await store.load()

    run_with([member], scenario)


# --- connections -----------------------------------------------------------------------------------------------------


def test_connections_are_kept_and_closed_ones_are_noticed_before_a_write() -> None:
    async def answers_once(member: Member, stream: AcceptedStream, request: Request) -> None:
        await stream.send([http(WRITTEN)])
        if len(member.asked) == 3:
            raise ConnectionLost("restarted")

    member = Member("a:1", {TXN: answers_once})

    async def scenario(store: Any, env: SimEnv) -> None:
        for _ in range(3):
            await store.put_all({"a": 1}, {})
        assert member.connections == 1
        await trio.sleep(1)
        await store.put_all({"a": 1}, {})
        assert member.connections == 2
        await trio.sleep(IDLE_S_MAX + 1)
        await store.put_all({"a": 1}, {})
        assert member.connections == 3
        await store.aclose()
        await store.aclose()
        with pytest.raises(MetadataUnavailable, match="closed"):
            await store.load()
        await trio.sleep(1)
        assert member.open == 0

    run_with([member], scenario)


def test_an_answer_beyond_an_answer_costs_the_connection() -> None:
    async def scenario(store: Any, env: SimEnv) -> None:
        await store.put_all({"a": 1}, {})
        with pytest.raises(RevisionConflict):  # And not the success that came too early.
            await store.put_all({"b": 1}, {"b": 5})

    run_with([Member("a:1", {TXN: says(http(WRITTEN) * 2, {"header": HEADER})})], scenario)


def test_many_requests_at_a_time_share_few_connections_and_all_end() -> None:
    member, errors = Member("a:1", otherwise=hangs), list[str]()

    async def scenario(store: Any, env: SimEnv) -> None:
        async def load() -> None:
            with pytest.raises(MetadataUnavailable) as caught:
                await store.load()
            errors.append(caught.value.text)

        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(load)
        assert trio.current_time() - begun_s <= REQUEST_S + 1

    run_with([member], scenario)
    assert len(errors) == 50
    assert member.open_max <= CONNECTIONS_MAX


def test_a_cancelled_request_leaves_no_connection_for_others() -> None:
    async def late(member: Member, stream: AcceptedStream, request: Request) -> None:
        await trio.sleep(2)
        await stream.send([http(WRITTEN)])

    member = Member("a:1", {TXN: late})

    async def scenario(store: Any, env: SimEnv) -> None:
        with trio.move_on_after(1):
            await store.put_all({"a": 1}, {})
        assert await store.put_all({"b": 1}, {}) == 11
        assert member.connections == 2

    run_with([member], scenario)


def test_a_member_that_was_asked_in_vain_for_a_short_time_is_not_asked_again() -> None:
    renewed = {"result": {"header": HEADER, "ID": "5", "TTL": "3"}}
    members = [Member("a:1", otherwise=hangs), Member("b:1", {RENEW: says(renewed)})]

    async def scenario(store: Any, env: SimEnv) -> None:
        with trio.move_on_after(SILENT_S - 0.1) as first:
            await store.renew_lease(5)
        assert first.cancelled_caught
        with trio.fail_after(SILENT_S - 0.1):
            await store.renew_lease(5)

    run_with(members, scenario)


def test_a_renewal_that_is_not_answered_is_soon_sent_to_the_other_members_too() -> None:
    """A frozen leader, and a follower that has passed the renewal on to it, keep only a small part of a session."""
    renewed = {"result": {"header": HEADER, "ID": "5", "TTL": "6"}}
    members = [Member("a:1", otherwise=hangs), Member("b:1", otherwise=hangs), Member("c:1", {RENEW: says(renewed)})]

    async def scenario(store: Any, env: SimEnv) -> None:
        begun_s = trio.current_time()
        await store.renew_lease(5)
        assert trio.current_time() - begun_s <= 2 * SILENT_S + 0.1
        begun_s = trio.current_time()
        await store.renew_lease(5)
        assert trio.current_time() - begun_s <= 0.1  # It has left both.
        assert [member.paths() for member in members] == [[RENEW], [RENEW], [RENEW, RENEW]]

    run_with(members, scenario)


def test_a_follower_that_has_lost_a_renewal_with_the_leader_is_asked_again() -> None:
    """Two of three members are alive, and the renewals that they passed on to the old leader are not answered."""
    renewed = {"result": {"header": HEADER, "ID": "5", "TTL": "6"}}
    members = [Member("a:1", otherwise=hangs), Member("b:1"), Member("c:1")]

    async def scenario(store: Any, env: SimEnv) -> None:
        begun_s = trio.current_time()

        async def passed_on(member: Member, stream: AcceptedStream, request: Request) -> None:
            if trio.current_time() - begun_s < 2.0:  # The next leader is not elected yet.
                await hangs(member, stream, request)
            await stream.send([http(renewed)])

        for member in members[1:]:
            member.scripts[RENEW] = passed_on
        await store.renew_lease(5)
        assert trio.current_time() - begun_s <= 2.5

    run_with(members, scenario)


def test_other_requests_leave_a_silent_member_as_soon_as_a_renewal() -> None:
    members = [Member("a:1", otherwise=hangs), Member("b:1", {TXN: says(WRITTEN), RANGE: says(EMPTY)})]

    async def scenario(store: Any, env: SimEnv) -> None:
        async def load() -> None:
            await store.load()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await trio.sleep(SILENT_S + 0.1)
            with trio.fail_after(0.2):
                assert await store.put_all({"a": 1}, {}) == 11

    run_with(members, scenario)


# --- watches ---------------------------------------------------------------------------------------------------------


def streams(*pieces: bytes) -> Script:
    """Begin an answer without an end, send some pieces, and stay."""

    async def answer(member: Member, stream: AcceptedStream, request: Request) -> None:
        await stream.send([STREAM, CREATED, *pieces])
        await hangs(member, stream, request)

    return answer


def test_a_silent_watch_asks_again_from_where_it_stands_and_shows_nothing_twice() -> None:
    async def silent(member: Member, stream: AcceptedStream, request: Request) -> None:
        start = int(request.body["create_request"]["start_revision"])
        starts.append(start)
        changes = [message(entry(revision=str(11)))] if start == 11 else []
        if len(starts) == 4:
            changes = [message(entry(value=2, revision="12"))]
        await stream.send([STREAM, CREATED, *changes])
        await hangs(member, stream, request)

    starts, member = list[int](), Member("a:1", {WATCH: silent})

    async def scenario(store: Any, env: SimEnv) -> None:
        begun_s = trio.current_time()
        member.scripts[RANGE] = says(EMPTY, {"header": {**HEADER, "revision": "11"}})
        async with store.watch() as watch:
            assert await watch.next() == Changes(11, {"a": Stored(11, 1)})
            assert await watch.next() == Changes(12, {"a": Stored(12, 2)})
        assert starts == [11, 12, 12, 12]
        assert 3 * SILENCE_S <= trio.current_time() - begun_s <= 3 * SILENCE_S + 1
        await trio.sleep(1)
        assert member.open <= 1

    run_with([member], scenario)


@pytest.mark.parametrize(
    "answer",
    [
        {"header": {**HEADER, "revision": "9"}},
        {"header": {**HEADER, "cluster_id": "8"}},
        http(error("etcdserver: request timed out", 14), 503),
    ],
)
def test_a_silent_watch_of_an_etcd_that_lost_its_data_or_its_majority_is_lost(answer: Any) -> None:
    member = Member("a:1", {RANGE: says(EMPTY, answer), WATCH: streams()})

    async def scenario(store: Any, env: SimEnv) -> None:
        async with store.watch() as watch:
            with pytest.raises(MetadataUnavailable):
                await watch.next()
            assert member.paths()[:3] == [RANGE, WATCH, RANGE]

    run_with([member], scenario)


LOSSES = {
    "closes": cuts(STREAM + CREATED),
    "ends": says(STREAM + CREATED + b"0\r\n\r\n"),
    "closes in a message": cuts(STREAM + CREATED + message(entry())[:-20]),
    "compacted": streams(message(canceled=True, compact_revision="20")),
    "no leader": streams(b"37\r\n" + b'{"error":{"grpc_code":14,"message":"x no leader xxxx"}}'[:54] + b"\n\r\n"),
    "goes back": streams(message(entry(revision="12")), message(entry(revision="11"))),
    "garbage": streams(b"5\r\nnope\n\r\n"),
    "no chunk": streams(b"nope\r\n"),
    "an endless message": floods(STREAM, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_watch_is_lost_and_another_one_works(name: str) -> None:
    member = Member("a:1", {WATCH: LOSSES[name]})

    async def scenario(store: Any, env: SimEnv) -> None:
        async with store.watch() as watch:
            with suppress(MetadataUnavailable):
                while True:
                    await watch.next()
            with pytest.raises(MetadataUnavailable):
                await watch.next()
            await trio.sleep(1)
            assert member.open <= 1
        member.scripts[WATCH] = streams(message(entry(revision="13")))
        member.scripts[RANGE] = says({"header": {**HEADER, "revision": "12"}})
        async with store.watch() as watch:
            assert await watch.next() == Changes(13, {"a": Stored(13, 1)})

    run_with([member], scenario)
    assert member.sent_bytes <= 20 << 20


def test_a_watch_is_opened_at_another_member_if_the_first_one_refuses_or_hangs() -> None:
    for script in (hangs, cuts(), says(http(error("etcdserver: no leader", 14), 503))):
        members = [Member("a:1", {WATCH: script}), Member("b:1", {WATCH: streams(message(entry()))})]

        async def scenario(store: Any, env: SimEnv) -> None:
            async with store.watch() as watch:
                assert await watch.next() == Changes(11, {"a": Stored(11, 1)})

        run_with(members, scenario)


def test_changes_that_nobody_reads_wait_at_etcd() -> None:
    member = Member("a:1", {WATCH: floods(STREAM + CREATED, message(entry()))})

    async def scenario(store: Any, env: SimEnv) -> None:
        async with store.watch() as watch:
            await watch.next()
            await trio.sleep(10)
            assert member.sent_bytes < 1 << 20

    run_with([member], scenario)


def test_a_wait_that_is_cancelled_at_any_moment_loses_no_change() -> None:
    """Also while the watch opens, or asks again."""
    changes = [message(entry(b"key-%d" % n, n, str(n))) for n in range(11, 31)]

    async def slow(member: Member, stream: AcceptedStream, request: Request) -> None:
        start = int(request.body["create_request"]["start_revision"])
        await stream.send([STREAM, CREATED])
        for number in range(start, 31):
            await trio.sleep(0.3 if number % 5 else SILENCE_S + 1)
            for byte in changes[number - 11]:
                await stream.send([bytes([byte])])

    async def scenario(store: Any, env: SimEnv) -> None:
        found = list[Changes]()
        async with store.watch() as watch:
            while not found or found[-1].revision < 30:
                with trio.move_on_after(0.05 * (1 + len(found) % 7)):
                    found.append(await watch.next())
        assert [each.revision for each in found] == list(range(11, 31))

    run_with([Member("a:1", {WATCH: slow})], scenario)


# --- logins and TLS --------------------------------------------------------------------------------------------------

LOGIN = "/v3/auth/authenticate"


def with_password(env: SimEnv) -> None:
    env.disk.open("password", create=True).write([b"opensesame\n"])


def test_it_logs_in_and_logs_in_again_when_its_token_has_ended() -> None:
    ended = http(error("etcdserver: invalid auth token", 16), 401)
    tokens = says({"header": HEADER, "token": "first.1"}, {"header": HEADER, "token": "second.2"})
    member = Member("a:1", {LOGIN: tokens, TXN: says(WRITTEN, ended, WRITTEN)})

    async def scenario(store: Any, env: SimEnv) -> None:
        for _ in range(3):
            await store.put_all({"a": 1}, {})
        assert member.paths() == [LOGIN, TXN, TXN, LOGIN, TXN, TXN]
        assert member.asked[0].body == {"name": "linn", "password": "opensesame"}
        sent = [request.headers.get("authorization") for request in member.asked]
        assert sent == [None, "first.1", "first.1", None, "second.2", "second.2"]

    run_with([member], scenario, with_password, user="linn", password=Secret(file="password"))


@pytest.mark.parametrize(
    "answer",
    [
        http(error("etcdserver: authentication failed, invalid user ID or password", 3), 400),
        http(error("etcdserver: authentication is not enabled", 9), 400),
        {"header": HEADER, "token": "a\r\nhost: b"},
        {"header": HEADER, "token": "\u00fc"},
        {"header": HEADER},
    ],
)
def test_a_login_that_fails_is_an_error_without_the_password(answer: Any) -> None:
    async def scenario(store: Any, env: SimEnv) -> None:
        with pytest.raises(MetadataError) as caught:
            await store.put_all({"a": 1}, {})
        assert not isinstance(caught.value, MetadataUnknown)
        assert "opensesame" not in str(caught.value)

    member = Member("a:1", {LOGIN: says(answer)})
    run_with([member], scenario, with_password, user="linn", password=Secret(file="password"))
    assert TXN not in member.paths()


@pytest.mark.parametrize(("by", "works"), [("tests", True), ("strangers", False)])
def test_it_speaks_tls_with_members_whose_certificate_it_trusts(by: str, works: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued = authority(by).issue_cert("localhost")
    issued.configure_cert(context)
    member = Member("localhost:1", {TXN: says(WRITTEN)}, tls=context)

    def prepare(env: SimEnv) -> None:
        env.disk.open("ca.pem", create=True).write([authority("tests").cert_pem.bytes()])

    async def scenario(store: Any, env: SimEnv) -> None:
        if works:
            assert await store.put_all({"a": 1}, {}) == 11
            return
        with pytest.raises(MetadataUnavailable, match="certificate") as caught:
            await store.put_all({"a": 1}, {})
        assert type(caught.value) is MetadataUnavailable

    run_with([member], scenario, prepare, "https", ca="ca.pem")


def test_a_file_that_is_not_there_is_no_end_of_the_store() -> None:
    """It may be replaced just now."""
    files: dict[str, Any] = {"user": "linn", "password": Secret(file="password")}

    async def scenario(store: Any, env: SimEnv) -> None:
        with pytest.raises(MetadataUnavailable, match="ca.pem" if files.get("ca") else "password"):
            await store.put_all({"a": 1}, {})
        assert TXN not in member.paths()

    member = Member("localhost:1", {TXN: says(WRITTEN)})
    run_with([member], scenario, **files)
    files = {"ca": "ca.pem"}
    run_with([member], scenario, scheme="https", **files)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "a:2379",
        "ftp://a",
        "http://",
        "http://ann:secret@a:1",
        "http://a:1/v3",
        "http://a:99999",
        "http://a:x",
        "http://[::1",
    ],
)
def test_an_endpoint_that_is_no_url_of_etcd_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="endpoints") as caught:
        EtcdSettings(endpoints=(url,))
    assert "secret" not in str(caught.value)


def test_a_user_has_a_password() -> None:
    for settings in ({"user": "ann"}, {"password": Secret(file="x")}):
        with pytest.raises(ValueError, match="password"):
            EtcdSettings(**settings)
