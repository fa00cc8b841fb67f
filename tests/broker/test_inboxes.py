"""Inboxes over the wire: who gets a reply, who gets none, and what a requester that does not read costs."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from raw_client import HEAD, RawClient, Refused, records, served, values

from linn.core.batch.batch import RecordBatch
from linn.core.broker.broker import Broker
from linn.core.connections.inboxes import ADDRESS_CHARACTERS_MAX, Inboxes, place_of
from linn.core.env.real.rng import RealRng
from linn.core.errors.inboxes import InboxUnknown
from linn.wire import messages as m

QUEUE = "[topics.jobs]\n"


async def inbox_of(client: RawClient) -> str:
    address: str = (await client.call(m.OpenInbox())).address
    return address


async def code_of(client: RawClient, to: str, batches: list[RecordBatch]) -> str:
    with pytest.raises(Refused) as refused:
        await client.call(m.Reply(to), batches)
    return refused.value.code


@served(QUEUE)
async def test_a_reply_comes_to_the_connection_that_opened_the_inbox_and_to_no_other(
    requester: RawClient, worker: RawClient, bystander: RawClient
) -> None:
    address, other = await inbox_of(requester), await inbox_of(bystander)
    assert address != other
    assert await worker.call(m.Reply(f"{address}.7"), [records(["done"])]) == m.Done()
    event = await requester.push()
    assert (event.message, values(event.batches)) == (m.Reply(f"{address}.7"), ["done"])
    assert await bystander.is_silent(1)


@served(QUEUE)
async def test_a_connection_has_one_address_that_no_other_one_had(broker: Broker, first: RawClient) -> None:
    address = await inbox_of(first)
    assert await inbox_of(first) == address
    node, secret = address.split(".")
    assert (node, len(bytes.fromhex(secret))) == ("0", 16)
    assert len(broker.connections.inboxes) == 1


@served(QUEUE)
async def test_a_reply_to_an_inbox_that_is_gone_or_was_never_given_out_is_refused(
    broker: Broker, requester: RawClient, worker: RawClient
) -> None:
    address = await inbox_of(requester)
    forged = [address[:-1] + ("0" if address[-1] != "0" else "1"), address[1:], f"0{address}", f"7.{address[2:]}"]
    for to in ("", ".", "0.", "x", "²." + address[2:], f"{address}{'.x' * 80}", "0." * 60, *forged):
        assert await code_of(worker, to, [records(["late"])]) == "inbox.unknown", to
    await requester.stream.aclose()
    while len(broker.connections.inboxes):
        await trio.sleep(0.01)
    assert await code_of(worker, address, [records(["late"])]) == "inbox.unknown"


@served(QUEUE, head=HEAD + 'batch_bytes_max = "256KiB"\nmessage_bytes_max = "64KiB"\n')
async def test_a_reply_is_one_good_batch(requester: RawClient, worker: RawClient) -> None:
    address = await inbox_of(requester)
    damaged = RecordBatch(bytearray(records(["done"]).message))
    damaged.message[-1] ^= 1
    assert await code_of(worker, address, []) == "protocol.malformed"
    assert await code_of(worker, address, [records(["a"]), records(["b"])]) == "protocol.malformed"
    assert await code_of(worker, address, [damaged]) == "batch.corrupt"
    assert await code_of(worker, address, [records([b"x" * 300_000])]) == "batch.too_large"
    assert await requester.is_silent(1)


@served(QUEUE, head=HEAD + 'connection_bytes_max = "64KiB"\n')
async def test_a_requester_that_does_not_read_loses_replies_and_holds_up_nobody(
    broker: Broker, requester: RawClient, worker: RawClient
) -> None:
    """Its socket takes some; then as much waits as may wait for a connection, and later replies are refused."""
    address, large = await inbox_of(requester), records([b"x" * 30_000])
    sent, refused = 0, ""
    while not refused and sent < 1_000:
        try:
            await worker.call(m.Reply(address), [large])
            sent += 1
        except Refused as error:
            refused = error.code
    assert refused == "inbox.full"
    assert broker.memory.unsent.used_bytes < 200_000
    assert (await worker.publish("jobs", ["other work"])).copies == 1
    received = 0
    while received < sent:
        assert isinstance((await requester.push()).message, m.Reply)
        received += 1
    assert await requester.is_silent(1), "what was refused never comes"
    assert await worker.call(m.Reply(address), [large]) == m.Done(), "it reads again"


@given(st.text(max_size=300))
def test_any_text_has_a_place_that_costs_nothing_and_only_what_was_given_out_has_an_inbox(text: str) -> None:
    inboxes = Inboxes(RealRng())
    inboxes.open(0, lambda to, batch: True)
    assert place_of(text).node < 10**10
    with pytest.raises(InboxUnknown):
        inboxes.put(text, records(["v"]))
    assert len(text) <= ADDRESS_CHARACTERS_MAX or place_of(text) == (-1, "")
