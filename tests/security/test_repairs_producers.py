"""Producer ids and transactions belong to the client that got them, although every reader sees their numbers."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from forging_walk import walk
from hypothesis import example, given
from hypothesis import strategies as st
from raw_client import ADDRESS, HEAD, RawClient, Refused, broker_on, connected, records, served, simulated

import linn
from linn.client.connection.producer_ids import ProducerIds as ClientIds
from linn.client.produce.lane import Identity, Lane
from linn.core.batch.batch import SCATTERED, TRANSACTIONAL, RecordBatch
from linn.core.broker.broker import Broker
from linn.core.errors.tree import LinnError, ProducerForeign
from linn.core.gateway.session import Session
from linn.core.ports.principal import Principal
from linn.core.publish import producer_ids
from linn.core.publish.producer_ids import PER_CONNECTION, OwnedProducers, ProducerIds
from linn.core.publish.request import PublishRequest
from linn.core.transactions.producer import RequestedEnd
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TOPICS = """
[exchanges.e]
type = "topic"
[topics.s]
kind = "stream"
[[topics.s.bindings]]
exchange = "e"
key = "#"
[topics.q]
kind = "queue"
"""
FOREIGN = "producer.foreign"


async def newcomer(env: SimEnv, producer_id: int = 0, key: int = 0) -> RawClient:
    """A client with the ids of its own connection only, and those that it names in hello."""
    client = await connected(env, producer_id=0)
    if producer_id:
        await client.stream.aclose()
        client = RawClient(await env.net.connect(ADDRESS))
        await client.greet("newcomer", producer_id, key)
    return client


def numbered(producer_id: int, first: int, text: str, attributes: int = 0, transaction: int = 0) -> RecordBatch:
    batch = records([text])
    batch.number(producer_id, 0, first, attributes, transaction)
    return batch


async def publish(client: RawClient, batch: RecordBatch) -> m.Placement:
    answer = await client.call(m.Publish("s", partition=0), [batch])
    placement: m.Placement = answer.placements[0]
    return placement


async def code_of(client: RawClient, message: m.Message, batches: list[RecordBatch] | None = None) -> str:
    return await client.code_of(await client.send(message, batches))


# --- batches ---------------------------------------------------------------------------------------------------------


@simulated
async def test_a_forged_batch_does_not_make_the_owners_next_record_vanish_behind_a_confirmation(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        owner, attacker = await newcomer(env), await newcomer(env)
        await publish(owner, numbered(owner.welcome.producer_id, 0, "first"))
        (seen,) = (await attacker.ask(m.Fetch("s", 0, 0))).batches
        assert seen.producer_id == owner.welcome.producer_id, "every reader sees it"
        forged = numbered(seen.producer_id, 1, "forged")
        assert await code_of(attacker, m.Publish("s", partition=0), [forged]) == FOREIGN
        placement = await publish(owner, numbered(owner.welcome.producer_id, 1, "second"))
        assert (placement.base_offset, placement.copies) == (1, 1)
        assert await owner.fetch("s") == ["first", "second"]
        assert await attacker.fetch("s") == ["first", "second"], "the connection of the attacker goes on"


@simulated
async def test_a_later_epoch_of_another_client_does_not_fence_the_owner(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        owner, attacker = await newcomer(env), await newcomer(env)
        id = owner.welcome.producer_id
        await publish(owner, numbered(id, 0, "first"))
        forged = records(["forged"])
        forged.number(id, 7, 0, 0)
        assert await code_of(attacker, m.Publish("s", partition=0), [forged]) == FOREIGN
        await publish(owner, numbered(id, 1, "second"))
        assert await owner.fetch("s") == ["first", "second"]


@pytest.mark.parametrize("damaged", [False, True])
@simulated
async def test_a_refused_forgery_leaves_the_owners_order_alone(env: SimEnv, damaged: bool) -> None:
    """The broker holds a producer's later batches back until a refused one has come again, if it chooses partitions."""
    async with broker_on(env, TOPICS):
        owner, attacker = await newcomer(env), await newcomer(env)
        id = owner.welcome.producer_id
        forged = numbered(id, 0, "forged", SCATTERED)
        if damaged:
            forged.message[-1] ^= 1
        answer = await code_of(attacker, m.Publish("e", to_exchange=True), [forged])
        assert answer == ("batch.corrupt" if damaged else FOREIGN)
        for first, text in enumerate(["first", "second"]):
            batch = numbered(id, first, text, SCATTERED)
            await owner.call(m.Publish("e", to_exchange=True), [batch])
        assert await owner.fetch("s") == ["first", "second"]


@served(TOPICS)
async def test_a_request_of_several_batches_is_refused_whichever_of_them_is_forged(client: RawClient) -> None:
    forged, own = numbered(1 << 50, 0, "forged"), records(["own"])
    for batches in ([forged, own], [own, forged]):
        assert await code_of(client, m.Publish("s", partition=0), batches) == FOREIGN
    assert await client.fetch("s") == []


@pytest.mark.parametrize("offset", [-PER_CONNECTION, -1, PER_CONNECTION])
@simulated
async def test_ids_beside_the_own_ones_are_another_clients(env: SimEnv, offset: int) -> None:
    async with broker_on(env, TOPICS):
        client = await newcomer(env)
        forged = numbered(client.welcome.producer_id + offset, 0, "forged")
        assert await code_of(client, m.Publish("s", partition=0), [forged]) == FOREIGN
        last = client.welcome.producer_id + PER_CONNECTION - 1
        await publish(client, numbered(last, 0, "own"))


@served(TOPICS)
async def test_a_negative_id_is_refused(client: RawClient) -> None:
    for id in (-1, -(1 << 63)):
        assert await code_of(client, m.Publish("s", partition=0), [numbered(id, 0, "forged")]) == FOREIGN


@served(TOPICS)
async def test_another_protocol_publishes_only_with_ids_of_its_session(broker: Broker, client: RawClient) -> None:
    async with broker.gateway.session(Principal("here", name="bob")) as session:
        own, foreign = session.take_producer_id(), client.welcome.producer_id
        await session.publish(PublishRequest("s", [numbered(own, 0, "own")], partition=0))
        with pytest.raises(ProducerForeign):
            await session.publish(PublishRequest("s", [numbered(foreign, 0, "forged")], partition=0))
        with pytest.raises(ProducerForeign):
            session.producer_key(foreign)
        with pytest.raises(ProducerForeign):
            session.claim_producer_id(foreign, client.welcome.producer_key)  # Another user's.
    assert await client.fetch("s") == ["own"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_forged_the_topic_has_what_the_owner_published(seed: int) -> None:
    walk(seed)


# --- keys ------------------------------------------------------------------------------------------------------------


@simulated
async def test_a_client_that_connects_again_continues_its_sequence(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        first = await newcomer(env)
        id, key = first.welcome.producer_id, first.welcome.producer_key
        await publish(first, numbered(id, 0, "first"))
        again = await newcomer(env, id + 5, key)
        assert again.welcome.producer_id != id, "it may use new ids as well"
        await publish(again, numbered(id, 0, "first"))
        await publish(again, numbered(id, 1, "second"))
        await publish(again, numbered(again.welcome.producer_id, 0, "third"))
        assert await again.fetch("s") == ["first", "second", "third"]


@simulated
async def test_after_a_restart_the_owner_is_known_and_the_forger_is_not(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        owner, forger = await newcomer(env), await newcomer(env)
        await publish(owner, numbered(owner.welcome.producer_id, 0, "first"))
    async with broker_on(env, TOPICS):
        id = owner.welcome.producer_id
        again = await newcomer(env, id, owner.welcome.producer_key)
        forger = await newcomer(env, forger.welcome.producer_id, forger.welcome.producer_key)
        assert await code_of(forger, m.Publish("s", partition=0), [numbered(id, 1, "forged")]) == FOREIGN
        await publish(again, numbered(id, 1, "second"))
        assert await again.fetch("s") == ["first", "second"]


@simulated
async def test_a_wrong_key_ends_the_connection(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        one, other = await newcomer(env), await newcomer(env)
        id, key = one.welcome.producer_id, one.welcome.producer_key
        for wrong in (0, 1, key ^ 1, key ^ (1 << 63), other.welcome.producer_key, (1 << 64) - 1):
            with pytest.raises(Refused, match=FOREIGN) as refused:
                await newcomer(env, id, wrong)
            assert str(key) not in refused.value.text
        client = RawClient(await env.net.connect(ADDRESS))
        with pytest.raises(Refused, match=FOREIGN):
            await client.greet("x", id, key ^ 1)
        await client.until_closed()


@simulated
async def test_another_broker_does_not_know_the_key_and_a_client_goes_on_with_new_ids(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        client = await newcomer(env)
    other = SimEnv(1)
    async with broker_on(other, TOPICS):
        with pytest.raises(Refused, match=FOREIGN):
            await newcomer(other, client.welcome.producer_id, client.welcome.producer_key)


IDS = st.integers(0, (1 << 63) - 1)


@given(st.binary(min_size=32, max_size=32), st.text(), IDS, st.text(), IDS)
@example(bytes(32), "ann", 256, "ann", 511)
@example(bytes(32), "ann", 256, "ann", 512)
@example(bytes(32), "ann", 256, "bob", 256)
@example(bytes(32), "", 0x61 << 8, "a", 0)
def test_a_key_opens_the_block_of_its_user_and_no_other(
    secret: bytes, user: str, id: int, other: str, other_id: int
) -> None:
    ids = ProducerIds()
    ids.secret = secret
    key, owned = ids.key(user, id), OwnedProducers(ids, other)
    assert 0 < key < 1 << 64
    if (user, id // PER_CONNECTION) == (other, other_id // PER_CONNECTION):
        owned.claim(other_id, key)
        owned.check(other_id)
        assert owned.key(other_id) == key
    else:
        with pytest.raises(ProducerForeign):
            owned.claim(other_id, key)
        with pytest.raises(ProducerForeign):
            owned.check(other_id)


def test_another_secret_makes_other_keys() -> None:
    one, other = ProducerIds(), ProducerIds()
    one.secret, other.secret = bytes(32), bytes(31) + b"\1"
    assert one.key("ann", 256) != other.key("ann", 256)


@simulated
async def test_a_connection_uses_a_limited_number_of_blocks(env: SimEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_on(env, TOPICS):
        client = await newcomer(env)
        id, key = client.welcome.producer_id, client.welcome.producer_key
        monkeypatch.setattr(producer_ids, "BLOCKS_MAX", 2)
        again = await newcomer(env, id, key)
        assert await code_of(again, m.OpenTransactions("billing", 60_000)) == "limit.exceeded"
        assert (await again.administer("transaction.list"))["transactions"] == []


# --- transactions ----------------------------------------------------------------------------------------------------


class Shown:
    """A transaction of a victim, with the numbers that every client sees."""

    def __init__(self, client: RawClient, branch: int, opened: m.OpenedTransactions) -> None:
        self.client = client
        self.branch = branch
        self.id, self.epoch, self.number, self.key = (
            opened.producer_id,
            opened.epoch,
            opened.number,
            opened.producer_key,
        )

    @classmethod
    async def open(cls, client: RawClient) -> Shown:
        """Open a name, and write in its transaction."""
        branch = client.welcome.producer_id
        shown = cls(client, branch, await client.call(m.OpenTransactions("billing", 60_000)))
        await client.call(m.AddBranch(shown.id, shown.epoch, branch))
        await publish(client, numbered(branch, 0, "bill", TRANSACTIONAL, shown.number))
        return shown

    async def is_still_open(self) -> None:
        """Check that nothing was written or ended by others, by committing it."""
        await self.client.call(m.EndTransaction(self.id, self.epoch, self.number, True, [self.branch]))
        assert await self.client.fetch("s") == ["bill"]


@simulated
async def test_numbers_that_an_operator_sees_neither_end_nor_join_a_transaction(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        victim = await Shown.open(await newcomer(env))
        attacker = await newcomer(env)
        shown = await attacker.administer("transaction.show", name="billing")
        numbers = shown["producer_id"], shown["epoch"]
        number, own = shown["number"], attacker.welcome.producer_id
        await attacker.publish("q", ["job"])
        subscription = (await attacker.call(m.Subscribe("q"))).subscription
        deliver = (await attacker.pull(subscription, 1)).message
        entry = m.Settlement(deliver.partition, deliver.delivery_id, 0, 1)
        keys = (0, 1, attacker.welcome.producer_key)
        for request in (
            *[m.EndTransaction(*numbers, number, False, producer_key=key) for key in keys],
            *[m.EndTransaction(*numbers, number, True, [], producer_key=key) for key in keys],
            *[m.EndTransaction(*numbers, number, True, [victim.branch], producer_key=key) for key in keys],
            *[m.AddBranch(*numbers, own, key) for key in keys],
            *[m.SettleInTransaction(*numbers, number, subscription, [entry], key) for key in keys],
            *[m.OpenTransactions("billing", 60_000, *numbers, 7, key) for key in keys],
        ):
            assert await code_of(attacker, request) == FOREIGN, request
        forged = numbered(victim.branch, 1, "forged", TRANSACTIONAL, number)
        assert await code_of(attacker, m.Publish("s", partition=0), [forged]) == FOREIGN
        await victim.is_still_open()


@simulated
async def test_the_producer_of_another_client_is_no_branch_of_an_own_transaction(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        victim, attacker = await newcomer(env), await newcomer(env)
        opened = await attacker.call(m.OpenTransactions("mine", 60_000))
        foreign = m.AddBranch(opened.producer_id, opened.epoch, victim.welcome.producer_id, opened.producer_key)
        assert await code_of(attacker, foreign) == FOREIGN
        end = m.EndTransaction(opened.producer_id, opened.epoch, opened.number, True, [victim.welcome.producer_id])
        assert await code_of(attacker, end) == "transaction.invalid"
        await Shown.open(victim)


@simulated
async def test_another_process_of_the_user_joins_by_the_key_and_ends_over_a_new_connection(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        victim = await Shown.open(await newcomer(env))
        worker = await newcomer(env)
        branch = worker.welcome.producer_id
        await worker.call(m.AddBranch(victim.id, victim.epoch, branch, victim.key))
        await publish(worker, numbered(branch, 0, "line", TRANSACTIONAL, victim.number))
        again = await newcomer(env)
        end = m.EndTransaction(victim.id, victim.epoch, victim.number, True, [victim.branch, branch])
        assert await code_of(again, end) == FOREIGN
        end.producer_key = victim.key
        await again.call(end)
        assert await again.fetch("s") == ["bill", "line"]


@simulated
async def test_after_a_restart_the_name_is_taken_over_by_its_key_only(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        victim = await Shown.open(await newcomer(env))
    async with broker_on(env, TOPICS):
        client = await newcomer(env)
        again = m.OpenTransactions("billing", 60_000, victim.id, victim.epoch, 7)
        assert await code_of(client, again) == FOREIGN
        again.producer_key = victim.key
        opened = await client.call(again)
        assert (opened.producer_id, opened.producer_key) == (victim.id, victim.key)


async def opened_by(session: Session, opening: int = 0) -> tuple[int, int, int]:
    return await session.transactions.open("billing", 60.0, None, opening)


@served(TOPICS)
async def test_a_user_who_was_fenced_by_another_ends_nothing_with_the_key_that_was_his(broker: Broker) -> None:
    """The producer id stays when another user opens the name, and so does the first user's key of it."""
    ann, bob = [broker.gateway.session(Principal("here", name=name)) for name in ("ann", "bob")]
    first = await opened_by(ann, 7)
    second = await opened_by(bob, 7)
    assert second[0] == first[0]
    assert second[1] > first[1], "the opening of another user is not repeated, whatever its number is"
    assert bob.producer_key(second[0]) != ann.producer_key(first[0])
    branch = ann.take_producer_id()
    for attempt in (
        lambda: ann.transactions.end(second, RequestedEnd(True)),
        lambda: ann.transactions.end(second, RequestedEnd(False)),
        lambda: ann.transactions.add_branch(*second[:2], branch),
    ):
        with pytest.raises(LinnError, match="took over") as fenced:
            attempt()
        assert fenced.value.code == "transaction.fenced"
    with pytest.raises(LinnError, match="another user"):
        await ann.transactions.open("billing", 60.0, second[:2], 8)
    bob.transactions.add_branch(*second[:2], bob.take_producer_id())


# --- linn's client ---------------------------------------------------------------------------------------------------


async def live(env: SimEnv, folder: str, ended: trio.Event, task_status: trio.TaskStatus[trio.Event]) -> None:
    """A broker with this data folder, until the event that it is started with is set."""
    stop = trio.Event()
    async with broker_on(env, TOPICS, HEAD.replace('"data"', f'"{folder}"')):
        task_status.started(stop)
        await stop.wait()
    ended.set()


@simulated
async def test_linns_client_keeps_its_ids_over_restarts_and_takes_new_ones_where_the_data_was_lost(env: SimEnv) -> None:
    async with trio.open_nursery() as lives:

        async def begin(folder: str) -> tuple[trio.Event, trio.Event]:
            ended = trio.Event()
            return await lives.start(partial(live, env, folder, ended)), ended

        stop, ended = await begin("data")
        async with linn.connect("linn://127.0.0.1:5466", env=env) as client, client.producer("s") as producer:
            receipts, ids = [], []
            for folder in ("data", "data", "lost", "lost"):
                for text in (b"one", b"two"):
                    receipts.append((await producer.publish(text)).offset)
                    ids.append(producer.id)
                stop.set()
                await ended.wait()
                stop, ended = await begin(folder)
            assert receipts == [0, 1, 2, 3, 4, 5, 0, 1]
            assert len(set(ids[:6])) == 1
        stop.set()


def test_a_client_that_lost_its_ids_numbers_with_new_ones() -> None:
    ids = ClientIds()
    ids.begin(256, 7)
    identity = Identity(ids)
    lanes = [Lane(identity, scattered=False) for _ in range(2)]
    for lane in lanes:
        lane.begin()
    assert [(lane.producer_id, lane.epoch) for lane in lanes] == [(256, 1), (256, 1)]
    assert not any(lane.needs_new_epoch(1) for lane in lanes)
    ids.forget()
    ids.begin(1024, 9)
    assert all(lane.needs_new_epoch(1) for lane in lanes)
    for lane in lanes:
        lane.begin()
    assert [lane.producer_id for lane in lanes] == [1024, 1024]
    assert not any(lane.needs_new_epoch(1) for lane in lanes)
    identity.close()
    ids.give_back(256, 3)
    assert ids.take() == (1025, 0)
