"""Messages of etcd: what it means is read, and all else is an error of the store, in bounded memory."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from linn.core.errors.metadata import LeaseLost, MetadataError, MetadataUnavailable
from linn.core.errors.tree import LimitExceeded
from linn.core.metadata.store import ABSENT, REMOVED, Changes, Snapshot, Stored
from linn.metadata_stores.etcd.messages import (
    PIECE_KEYS,
    REQUEST_BYTES_MAX,
    GrantAnswer,
    HeaderAnswer,
    Keys,
    RangeAnswer,
    TokenAnswer,
    WriteAnswer,
    decoded,
    grant_request,
    refusal_of,
    renewed,
)
from linn.metadata_stores.etcd.watch_messages import LINE_BYTES_MAX, WatchMessages

KEYS = Keys("prod")
HEADER = {"cluster_id": "18302870418645416937", "member_id": "4192500049502141256", "revision": "9", "raft_term": "2"}
DEEP = b"[" * 100_000


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def entry(key: str = "a", value: Any = 1, revision: Any = "7", **more: Any) -> dict[str, Any]:
    found = {"key": text(b"/linn/prod/" + key.encode()), "mod_revision": revision, "version": "1", **more}
    return found if value is REMOVED else {**found, "value": text(json.dumps(value).encode())}


def snapshot_of(body: bytes) -> Snapshot:
    answer = decoded(body, RangeAnswer)
    pieces = list(KEYS.read(answer))
    return Snapshot(answer.header.revision, {key: stored for piece in pieces for key, stored in piece.items()})


def in_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- what etcd answers -----------------------------------------------------------------------------------------------


def test_all_keys_are_read_with_their_revisions() -> None:
    body = in_json(
        {"header": HEADER, "kvs": [entry("a", {"x": [1, None]}, "7", lease="5"), entry("b/\u00fc", "", "9")]}
    )
    assert snapshot_of(body) == Snapshot(9, {"a": Stored(7, {"x": [1, None]}), "b/\u00fc": Stored(9, "")})


def test_many_keys_are_read_in_pieces() -> None:
    body = in_json({"header": HEADER, "kvs": [entry(f"key-{number}", number) for number in range(2 * PIECE_KEYS + 1)]})
    assert [len(piece) for piece in KEYS.read(decoded(body, RangeAnswer))] == [PIECE_KEYS, PIECE_KEYS, 1]
    assert len(snapshot_of(body).entries) == 2 * PIECE_KEYS + 1


def test_fields_that_are_zero_are_missing() -> None:
    assert snapshot_of(b'{"header":{"revision":"1"}}') == Snapshot(1, {})
    assert not decoded(in_json({"header": HEADER}), WriteAnswer).succeeded
    assert decoded(b'{"header":{}}', HeaderAnswer).header.revision == 0


def test_a_write_asks_for_what_the_port_says() -> None:
    request = json.loads(KEYS.write_request({"a": {"x": 1}, "b": REMOVED}, {"a": 7, "c": ABSENT}, 5))
    a, b, c = (text(b"/linn/prod/" + key) for key in (b"a", b"b", b"c"))
    condition = {"target": "MOD", "result": "EQUAL"}
    assert request == {
        "compare": [
            {**condition, "key": a, "mod_revision": "7"},
            {**condition, "key": c, "mod_revision": "0"},
        ],
        "success": [
            {"request_put": {"key": a, "value": text(b'{"x":1}'), "lease": "5"}},
            {"request_delete_range": {"key": b}},
        ],
    }


def test_the_keys_of_another_cluster_are_not_asked_for() -> None:
    request = json.loads(KEYS.range_request())
    first, end = base64.b64decode(request["key"]), base64.b64decode(request["range_end"])
    assert first <= b"/linn/prod/" < end
    assert not any(first <= key < end for key in (b"/linn/prod", b"/linn/prod0", b"/linn/prod-2/a", b"/linn/pro/x"))
    assert request["serializable"] is False


def test_a_time_to_live_is_in_whole_seconds_and_never_shorter() -> None:
    assert json.loads(grant_request(5.2)) == {"TTL": "6"}
    assert json.loads(grant_request(6.0)) == {"TTL": "6"}


def test_a_write_that_is_too_large_is_refused_here() -> None:
    with pytest.raises(LimitExceeded):
        KEYS.write_request({"a": "x" * REQUEST_BYTES_MAX}, {}, 0)


def test_a_key_that_is_no_text_is_refused_here() -> None:
    with pytest.raises(MetadataError):
        KEYS.write_request({"\ud800": 1}, {}, 0)


def test_a_lease_without_a_time_to_live_has_ended() -> None:
    renewed(in_json({"result": {"header": HEADER, "ID": "5", "TTL": "6"}}), 5)
    with pytest.raises(LeaseLost):
        renewed(in_json({"result": {"header": HEADER, "ID": "5"}}), 5)


@pytest.mark.parametrize(
    ("status", "body", "kind", "is_sure"),
    [
        (404, {"error": "etcdserver: requested lease not found", "code": 5}, LeaseLost, True),
        (400, {"error": "etcdserver: too many operations in txn request", "code": 3}, LimitExceeded, True),
        (400, {"error": "etcdserver: request is too large", "code": 3}, LimitExceeded, True),
        (429, {"error": "grpc: received message larger than max (5 vs. 4)", "code": 8}, LimitExceeded, True),
        (429, {"error": "etcdserver: mvcc: database space exceeded", "code": 8}, MetadataError, True),
        (401, {"error": "etcdserver: invalid auth token", "code": 16}, MetadataError, True),
        (503, {"error": "etcdserver: no leader", "code": 14}, MetadataError, True),
        (503, {"error": "etcdserver: request timed out", "code": 14}, MetadataError, False),
        (503, {"error": "etcdserver: leader changed", "code": 14}, MetadataError, False),
        (500, {"error": "anything", "code": 2}, MetadataError, False),
        (200, {"error": {"grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader"}}, MetadataError, True),
        (302, None, MetadataError, False),
        (404, {"error": {"code": "not_found"}}, MetadataError, False),
        (404, {"error": 5}, MetadataError, False),
        (404, [], MetadataError, False),
    ],
)
def test_an_error_says_whether_anything_was_done(status: int, body: Any, kind: type, is_sure: bool) -> None:
    refusal = refusal_of(status, in_json(body))
    assert refusal.is_sure is is_sure
    assert type(refusal.as_error()) is kind


def test_words_of_etcds_are_one_short_line() -> None:
    refusal = refusal_of(500, in_json({"error": "a\n\x1b[31m" + "x" * 10_000, "code": 2}))
    assert refusal.text.startswith("a ?[31mxxx")
    assert len(refusal.text) <= 200


# --- what etcd would never answer ------------------------------------------------------------------------------------

HOSTILE: Sequence[bytes] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"0",
    b"\xff\xfe",
    b"<html>",
    DEEP,
    b'{"header":' + DEEP,
    b"{}",
    b'{"header":null}',
    b'{"header":[]}',
    b'{"header":{"revision":"x"}}',
    b'{"header":{"revision":"-1"}}',
    b'{"header":{"revision":-1}}',
    b'{"header":{"revision":1e99}}',
    b'{"header":{"revision":"99999999999999999999999999"}}',
    b'{"header":{"revision":true}}',
    b'{"header":{"revision":"1"}}{"header":{"revision":"1"}}',
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: body[:40].decode("latin1"))
@pytest.mark.parametrize("kind", [RangeAnswer, WriteAnswer, GrantAnswer, HeaderAnswer, TokenAnswer])
def test_what_is_no_answer_is_an_error(kind: type[msgspec.Struct], body: bytes) -> None:
    with pytest.raises(MetadataError) as caught:
        decoded(body, kind)
    assert len(caught.value.text) < 400


@pytest.mark.parametrize(
    "answer",
    [
        {"header": HEADER, "kvs": {}},
        {"header": HEADER, "kvs": [None]},
        {"header": HEADER, "kvs": [{}]},
        {"header": HEADER, "kvs": [{"key": text(b"/linn/prod/a"), "value": "MQ=="}]},
        {"header": HEADER, "kvs": [entry(revision="0")]},
        {"header": HEADER, "kvs": [entry(revision="10")]},
        {"header": HEADER, "kvs": [entry(revision=None)]},
        {"header": HEADER, "kvs": [{**entry(), "key": "%%%"}]},
        {"header": HEADER, "kvs": [{**entry(), "key": 5}]},
        {"header": HEADER, "kvs": [{**entry(), "key": text(b"/linn/prod/\xff")}]},
        {"header": HEADER, "kvs": [{**entry(), "key": text(b"/linn/other/a")}]},
        {"header": HEADER, "kvs": [{**entry(), "value": text(b"{")}]},
        {"header": HEADER, "kvs": [{**entry(), "value": text(DEEP)}]},
        {"header": HEADER, "kvs": [{**entry(), "value": text(b"\xff")}]},
        {"header": HEADER, "kvs": [entry(value=REMOVED)]},
        {"header": HEADER, "kvs": [entry()], "more": True},
        {"header": HEADER, "kvs": [entry()], "more": "perhaps"},
        {"header": {"cluster_id": "1"}},
    ],
)
def test_what_is_no_snapshot_is_an_error(answer: Any) -> None:
    with pytest.raises(MetadataError):
        snapshot_of(in_json(answer))


@pytest.mark.parametrize(
    "body",
    [
        *HOSTILE,
        in_json({"result": None}),
        in_json({"result": {"header": HEADER}}),
        in_json({"result": {"header": HEADER, "ID": "6", "TTL": "6"}}),
        in_json({"result": {"header": HEADER, "ID": "5", "TTL": "-1"}}),
        in_json({"error": {"message": "etcdserver: no leader", "grpc_code": 14}}),
    ],
    ids=lambda body: body[:40].decode("latin1"),
)
def test_what_is_no_renewal_is_an_error_and_no_lost_lease(body: bytes) -> None:
    with pytest.raises(MetadataError) as caught:
        renewed(body, 5)
    assert type(caught.value) is MetadataError


# --- watches ---------------------------------------------------------------------------------------------------------


def line(*events: Any, **more: Any) -> bytes:
    return in_json({"result": {"header": HEADER, **({"events": events} if events else {}), **more}}) + b"\n"


def put(key: str = "a", value: Any = 1, revision: Any = "8") -> dict[str, Any]:
    return {"kv": entry(key, value, revision)}


def removed(key: str = "a", revision: Any = "8") -> dict[str, Any]:
    return {"type": "DELETE", "kv": entry(key, REMOVED, revision)}


def watched(seen: int = 7) -> WatchMessages:
    messages = WatchMessages(KEYS, seen)
    messages.begin()
    return messages


ANSWER = (
    line(created=True)
    + b"\n\n"
    + line(put("old", 0, "7"), put("a", [1], "8"), put("b", None, "8"))
    + line()
    + line(removed("a", "10"), put("c", {}, "12"), put("b", 2, "12"))
    + line(removed("b", "13"))
)
CHANGES = [
    Changes(8, {"a": Stored(8, [1]), "b": Stored(8, None)}),
    Changes(12, {"a": None, "c": Stored(12, {}), "b": Stored(12, 2)}),
    Changes(13, {"b": None}),
]


def test_changes_are_the_same_however_the_answer_is_cut() -> None:
    for size in (1, 2, 7, 100, len(ANSWER)):
        messages, found = watched(), list[Changes]()
        for at in range(0, len(ANSWER), size):
            found += messages.feed(ANSWER[at : at + size])
        assert found == CHANGES
        assert messages.seen == 13


def test_half_a_message_says_nothing() -> None:
    messages = watched()
    assert list(messages.feed(line(put())[:-1])) == []
    assert messages.begin() == 8
    assert list(messages.feed(line(put("b")))) == [Changes(8, {"b": Stored(8, 1)})]


def test_a_watch_that_asks_again_goes_on_where_it_stands() -> None:
    messages = watched()
    messages.feed(line(put(revision="8")))
    assert messages.begin() == 9
    assert list(messages.feed(line(put(revision="8")) + line(put(revision="9")))) == [Changes(9, {"a": Stored(9, 1)})]


@pytest.mark.parametrize(
    "answer",
    [
        *(body + b"\n" for body in HOSTILE if body and b"\n" not in body),
        line(canceled=True),
        line(canceled=True, compact_revision="20"),
        line(compact_revision="20"),
        line(canceled=True, cancel_reason="etcdserver: no leader"),
        line(put(), fragment=True),
        in_json({"error": {"grpc_code": 14, "message": "etcdserver: no leader"}}) + b"\n",
        in_json({"error": {}}) + b"\n",
        line(None),
        line({}),
        line({"kv": {}}),
        line({"type": "PUT"}),
        line({"type": "MOVE", "kv": entry(revision="8")}),
        line({"type": 1, "kv": entry(revision="8")}),
        line(put(revision="0")),
        line(put(revision=None)),
        line({"kv": {"key": text(b"/linn/other/a"), "mod_revision": "8", "value": "MQ=="}}),
        line({"kv": {**entry(revision="8"), "value": text(b"{")}}),
        line({"kv": entry(value=REMOVED, revision="8")}),
        line(put(revision="9"), put("b", 1, "8")),
        line(put(revision="9")) + line(put("b", 1, "9")),
        line(put(revision="9")) + line(put("b", 1, "8")),
    ],
    ids=lambda answer: answer[:60].decode("latin1"),
)
def test_what_is_no_message_loses_the_watch(answer: bytes) -> None:
    with pytest.raises(MetadataUnavailable) as caught:
        watched().feed(answer)
    assert len(caught.value.text) < 400


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    messages, piece = watched(), b"x" * (64 << 10)
    for _ in range(LINE_BYTES_MAX // len(piece)):
        messages.feed(piece)
    with pytest.raises(MetadataUnavailable, match="more than"):
        messages.feed(piece)


# --- damaged answers -------------------------------------------------------------------------------------------------


def damaged(rng: random.Random, whole: bytes) -> bytes:
    """Return an answer with some bytes changed, cut out or repeated."""
    found = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(found)), rng.randint(1, 12)
        piece = found[at : at + size]
        found[at : at + size] = rng.choice([b"", piece * 2, rng.randbytes(size), rng.choice(WORDS)])
    return bytes(found)


WORDS = (b'"', b"\\", b"{", b"}", b"[", b"]", b"null", b"true", b'"-1"', b"1e400", b'"\\ud800"', b",", b"\n", b'"AA=="')
READS: Sequence[tuple[bytes, Callable[[bytes], object]]] = [
    (in_json({"header": HEADER, "kvs": [entry("a", {"x": 1}), entry("b", [])]}), snapshot_of),
    (in_json({"header": HEADER, "succeeded": True, "responses": []}), lambda body: decoded(body, WriteAnswer)),
    (in_json({"header": HEADER, "ID": "5", "TTL": "6"}), lambda body: decoded(body, GrantAnswer)),
    (in_json({"result": {"header": HEADER, "ID": "5", "TTL": "6"}}), lambda body: renewed(body, 5)),
    (in_json({"error": "no", "message": "no", "code": 14}), lambda body: refusal_of(503, body)),
    (ANSWER, lambda body: watched().feed(body)),
]


@pytest.mark.parametrize("number", range(len(READS)))
def test_a_damaged_answer_is_an_answer_or_an_error(number: int) -> None:
    rng, errors = random.Random(number), 0
    whole, read = READS[number]
    read(whole)
    for _ in range(3_000):
        try:
            read(damaged(rng, whole))
        except MetadataError:
            errors += 1
    assert errors > 300 or number == 4
