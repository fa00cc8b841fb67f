"""Records that are refused in the middle of a batch: the others are stored, and the answer names each reason."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from raw_client import HAND_ID, RawClient, Refused, broker_on, connected, records, served, simulated, values

from linn.api import InterceptorKind, hookimpl
from linn.core.batch.batch import SCATTERED, Codec, RecordBatch
from linn.core.batch.body import HEADERS_AT_ONCE_MAX
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import MessageInvalid
from linn.core.publish import plan as plan_module
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ID = HAND_ID
TOPICS = """
[exchanges.all]
type = "fanout"
[exchanges.some]
type = "topic"
[[exchanges.some.bindings]]
exchange = "late"
[exchanges.late]
type = "fanout"
[topics.small]
kind = "stream"
message_bytes_max = 100
[[topics.small.bindings]]
exchange = "all"
[topics.smaller]
kind = "stream"
message_bytes_max = 50
[[topics.smaller.bindings]]
exchange = "all"
[[topics.smaller.bindings]]
exchange = "some"
key = "#"
[topics.work]
kind = "queue"
[[topics.work.bindings]]
exchange = "all"
[topics.wide]
kind = "stream"
partitions = 3
message_bytes_max = 100
"""
LONG_KEY = ".".join(["w"] * 200)


def batch_of(*contents: Record, codec: Codec = Codec.NONE) -> RecordBatch:
    return build_from_records(contents, base_id=1, codec=codec)


def plain(*texts: str) -> list[Record]:
    return [Record(value=text.encode()) for text in texts]


def numbered(batch: RecordBatch, sequence: int, epoch: int = 0, *, scattered: bool = False) -> RecordBatch:
    batch.number(ID, epoch, sequence, SCATTERED if scattered else 0)
    return batch


async def publish(client: RawClient, target: str, batch: RecordBatch, **where: object) -> m.Placement:
    to_exchange = target in ("all", "some", "late")
    answer = (await client.ask(m.Publish(target, to_exchange, **where), [batch])).message  # type: ignore[arg-type]
    assert isinstance(answer, m.Published)
    (placement,) = answer.placements
    return placement


def refused(placement: m.Placement) -> list[tuple[str, list[int]]]:
    return [(each.code, each.records) for each in placement.refused]


@simulated
async def test_the_others_of_a_batch_are_stored_in_order_whatever_some_are_refused_for(env: SimEnv) -> None:
    large = Record(value=b"L" * 500)
    cases: list[tuple[str, str, Record]] = [
        ("small", "message.too_large", large),
        ("all", "message.too_large", large),
        ("work", "message.invalid", Record(value=b"bad", due_ms=-1)),
        ("work", "message.unsupported", Record(value=b"bad", priority=5)),
        ("all", "message.unsupported", Record(value=b"bad", priority=5)),
        ("some", "limit.exceeded", Record(value=b"bad", routing_key=LONG_KEY)),
        ("late", "limit.exceeded", Record(value=b"bad", routing_key=LONG_KEY)),
    ]
    async with broker_on(env, TOPICS):
        client = await connected(env)
        for codec in (Codec.NONE, Codec.ZSTD):
            for target, code, bad in cases:
                topic = {"all": "small", "some": "smaller", "late": "smaller"}.get(target, target)
                before = len(await client.fetch(topic))
                batch = batch_of(*plain("a"), bad, *plain("b", "c"), bad, bad, *plain("d"), codec=codec)
                placement = await publish(client, target, batch)
                assert refused(placement) == [(code, [1, 2, 4, 6])], (target, code)
                assert (await client.fetch(topic))[before:] == ["a", "b", "c", "d"]
                if target != "all":
                    assert (placement.partition, placement.base_offset, placement.copies) == (0, before, 4)


@served(TOPICS)
async def test_each_record_has_its_own_reason_and_no_topic_takes_what_one_refuses(client: RawClient) -> None:
    everything = [
        Record(value=b"s" * 70),  # Too large for one of the topics.
        Record(value=b"L" * 500),  # Too large for both.
        Record(value=b"x", priority=5),  # The queue has no order.
        *plain("fine"),
    ]
    reasons = [("message.too_large", [1, 2]), ("message.too_large", [0, 1]), ("message.unsupported", [2, 3])]
    placement = await publish(client, "all", batch_of(*everything))
    assert refused(placement) == reasons
    assert placement.copies == 3
    for topic in ("small", "smaller", "work"):
        assert await client.fetch(topic) == ["fine"]
    nothing = await publish(client, "all", batch_of(*everything[:3]))
    assert refused(nothing) == reasons
    assert nothing.copies == 0
    alone = await publish(client, "all", batch_of(everything[1]))
    assert (refused(alone), alone.copies) == ([("message.too_large", [0, 1])], 0)


@simulated
async def test_mandatory_records_are_named_by_their_places_in_the_whole_batch(env: SimEnv) -> None:
    text = TOPICS + '[[topics.small.bindings]]\nexchange = "some"\nkey = "small"\n'
    async with broker_on(env, text.replace('exchange = "some"\nkey = "#"', 'exchange = "some"\nkey = "smaller"')):
        client = await connected(env)
        sent = [
            Record(value=b"bad", routing_key=LONG_KEY),
            Record(value=b"a", routing_key="small"),
            Record(value=b"nowhere", routing_key="nowhere"),
            Record(value=b"L" * 70, routing_key="smaller"),
            Record(value=b"L" * 70, routing_key="small"),
            Record(value=b"nowhere", routing_key="nowhere"),
        ]
        placement = await publish(client, "some", batch_of(*sent), mandatory=True)
        assert refused(placement) == [("limit.exceeded", [0, 1]), ("message.too_large", [3, 4])]
        assert (placement.returned, placement.copies) == ([2, 3, 5, 6], 2)
        assert [len(value) for value in await client.fetch("small")] == [1, 70]


@served(TOPICS)
async def test_without_acks_the_others_are_stored_as_well(client: RawClient) -> None:
    await client.tell(m.Publish("small", acks=m.Acks.NONE), [batch_of(*plain("a", "L" * 500, "b"))])
    await client.call(m.Ping())
    assert await client.fetch("small") == ["a", "b"]


@served(TOPICS)
async def test_a_producer_goes_on_behind_a_batch_of_which_records_were_refused(client: RawClient) -> None:
    first = numbered(batch_of(*plain("a", "L" * 500, "b")), 0)
    again = RecordBatch(bytearray(first.message))
    assert (await publish(client, "small", first, partition=0)).base_offset == 0
    nothing = await publish(client, "small", numbered(batch_of(*plain("L" * 500, "L" * 600)), 3), partition=0)
    assert (refused(nothing), nothing.copies) == ([("message.too_large", [0, 2])], 0)
    second = await publish(client, "small", numbered(batch_of(*plain("c")), 5), partition=0)
    assert second.base_offset == 2
    repeated = await publish(client, "small", again, partition=0)
    assert (repeated.base_offset, refused(repeated)) == (0, [("message.too_large", [1, 2])])
    scattered = numbered(batch_of(*plain("a", "L" * 500, "b")), 0, 1, scattered=True)
    assert refused(await publish(client, "wide", scattered)) == [("message.too_large", [1, 2])]
    assert await client.fetch("small") == ["a", "b", "c"]


@simulated
async def test_a_batch_sent_again_is_in_doubt_if_the_topic_would_take_other_records_now(env: SimEnv) -> None:
    """Else a record that was refused at first would be confirmed, because the limit was raised meanwhile."""
    first = numbered(batch_of(*plain("a", "L" * 500, "b")), 0)
    copies = [RecordBatch(bytearray(first.message)) for _ in range(3)]

    async def until_killed(env: SimEnv) -> None:
        async with broker_on(env, TOPICS):
            client = await connected(env)
            await publish(client, "small", first, partition=0)
            await client.administer("topic.alter", name="small", settings={"message_bytes_max": 1000})
            with pytest.raises(Refused, match=r"producer\.duplicate: .*stored with 2 records, and would be with 3"):
                await publish(client, "small", copies[0], partition=0)
            env.kill()
            await trio.sleep_forever()

    assert await env.run_until_death(until_killed)
    async with broker_on(env.restart(), TOPICS.replace("= 100", "= 1000")) as broker:
        client = await connected(broker.env)
        with pytest.raises(Refused, match=r"producer\.duplicate"):  # The log alone tells how many are stored.
            await publish(client, "small", copies[1], partition=0)
        assert await client.fetch("small") == ["a", "b"]


@simulated
async def test_a_record_of_very_many_headers_does_not_keep_others_from_being_told_apart(env: SimEnv) -> None:
    text = TOPICS + '[[topics.small.bindings]]\nexchange = "some"\nkey = "1"\n'
    async with broker_on(env, text):
        client = await connected(env)
        many = (("", b""),) * (HEADERS_AT_ONCE_MAX + 1)
        sent = [Record(value=b"%d" % at, routing_key=f"{at % 2}", headers=(("h", b""),)) for at in range(9)]
        sent[5] = Record(value=b"bad", routing_key="1", headers=many)
        placement = await publish(client, "some", batch_of(*sent))
        assert refused(placement) == [("limit.exceeded", [5, 6])]
        assert (await client.fetch("small"), await client.fetch("smaller")) == (list("137"), list("01234678"))


class _Censor:
    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch:
        bad = [index for index, record in enumerate(batch.records()) if record.value == b"secret"]
        if bad:
            raise MessageInvalid("a secret").of_messages(bad)
        return batch


class _CensorPlugin:
    name = value = "censor"
    dist = None

    def load(self) -> object:
        return self

    @hookimpl
    def linn_register_interceptor(self) -> list[InterceptorKind]:
        return [InterceptorKind("censor", None, lambda *_: _Censor())]


@simulated
async def test_an_interceptor_may_refuse_single_records(env: SimEnv) -> None:
    text = '[topics.t]\nkind = "stream"\ninterceptors = ["censor"]\n'
    async with broker_on(env, text, plugins=[_CensorPlugin()]):
        client = await connected(env)
        placement = await publish(client, "t", batch_of(*plain("secret", "a", "secret", "b")))
        assert refused(placement) == [("message.invalid", [0, 1, 2, 3])]
        assert await client.fetch("t") == ["a", "b"]


@simulated
async def test_an_answer_that_would_be_very_long_refuses_the_whole_publish(env: SimEnv) -> None:
    texts: Sequence[str] = ["a", "L" * 101] * (plan_module.REFUSED_NUMBERS_MAX // 2)
    async with broker_on(env, TOPICS):
        client = await connected(env)
        placement = await publish(client, "small", records(texts))
        assert placement.copies == len(texts) // 2
        with pytest.raises(Refused, match=r"message\.too_large"):
            await publish(client, "small", records([*texts, "a", "L" * 101]))
        assert len(values((await client.ask(m.Fetch("small", 0, 0, bytes_max=1 << 26))).batches)) == len(texts) // 2
