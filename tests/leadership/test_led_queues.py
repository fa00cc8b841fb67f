"""A queue on replicated logs: nothing counts before it is committed, and a leader that is none touches nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from led_topic import DATA, DEAD, READ_ALL, STATE, LedTopic, is_confirmed, not_leader, offsets, opened, settle
from trio.testing import MockClock, wait_all_tasks_blocked

from linn.core.batch.builder import build_single
from linn.core.delivery.vocabulary import Phase, Verdict
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import DeliveryNotCurrent, LinnError
from linn.core.log.state_log import SNAPSHOT_AFTER_BYTES, StateLog
from linn.core.log.storage import READ_BATCHES_MAX
from linn.core.loop.waiting import WaitDeadline
from linn.core.queue.lease import LeaseSettings
from linn.semantics.at_least_once import AtLeastOnce
from linn.semantics.at_most_once import AtMostOnce
from linn.semantics.exactly_once import ExactlyOnce
from linn.testing.sim_env import SimEnv


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that these tests do is worth a line of the log."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call")] == []


async def test_an_ack_is_confirmed_when_it_is_committed(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    consumer = topic.consumer()
    found, delivery_id, _ = await offsets(consumer)
    outcome = settle(consumer, delivery_id, found)
    assert topic.partitions[STATE].durable.offset == topic.end(STATE)
    assert not is_confirmed(outcome)
    topic.commit(STATE)
    assert is_confirmed(outcome)


async def test_a_state_log_is_replayed_when_all_of_it_is_committed(nursery: trio.Nursery) -> None:
    topic = await LedTopic(SimEnv(0), nursery).make()
    topic.lead(1)
    StateLog(topic.partitions[STATE], topic.env.clock).append(b"event")
    with pytest.raises(AssertionError, match="committed"):
        await topic.open_queue()


async def test_a_state_log_belongs_to_the_leadership_in_which_it_is_replayed(nursery: trio.Nursery) -> None:
    topic = await LedTopic(SimEnv(0), nursery).make()
    topic.lose_logs()
    state = StateLog(topic.partitions[STATE], topic.env.clock)
    with pytest.raises(NotLeader):
        await state.replay().__anext__()
    topic.lose_logs()
    topic.lead(2)
    assert [record async for record in state.replay()] == []
    assert state.append(b"event") == 1


async def test_a_log_that_is_lost_and_cut_is_replayed_no_further(nursery: trio.Nursery) -> None:
    topic = await LedTopic(SimEnv(0), nursery).make()
    topic.lead(1)
    state = StateLog(topic.partitions[STATE], topic.env.clock)
    for _ in range(2 * READ_BATCHES_MAX):
        state.append(b"event")
    topic.commit(STATE)
    records = state.replay()
    await anext(records)
    topic.lose_logs()
    await topic.partitions[STATE].cut(READ_BATCHES_MAX)
    with pytest.raises(NotLeader), trio.fail_after(5):
        async for _ in records:
            pass


async def test_a_queue_that_is_abandoned_first_does_not_open(nursery: trio.Nursery) -> None:
    topic = await LedTopic(SimEnv(0), nursery).make()
    topic.lead(1)
    queue = topic.partition_queue(AtLeastOnce(LeaseSettings()))
    queue.abandon(not_leader(topic))
    with pytest.raises(NotLeader):
        await queue.recover()
    assert not queue.log.is_open


async def test_the_next_leader_has_every_confirmed_ack_and_counts_committed_attempts(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    consumer = topic.consumer()
    found, first_id, _ = await offsets(consumer, 2)
    assert found == [0, 1]
    settle(consumer, first_id, [1])
    topic.commit(STATE)
    settle(consumer, first_id, [0])
    await offsets(consumer)
    other = await topic.copied(2)
    topic.lose()
    other.lead(2)
    other.commits_at_once = True
    await other.open_queue()
    again = [await offsets(other.consumer(), 3) for _ in range(2)]
    assert [(found, attempt) for found, _, attempt in again] == [([0], 2), ([2], 1)], "1 is settled; 0 may be"
    assert all(delivery_id > first_id + 1 for _, delivery_id, _ in again)


async def test_a_delivery_waits_until_the_jump_of_the_ids_is_committed(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    topic.commits_at_once = True
    await offsets(topic.consumer())
    other = await topic.copied(2)
    topic.lose()
    other.lead(2)
    await other.open_queue()
    assert other.end(STATE) == other.committed(STATE) + 1, "opening a topic does not wait for followers"
    given = list[object]()

    async def take() -> None:
        given.append(await offsets(other.consumer()))

    nursery.start_soon(take)
    await wait_all_tasks_blocked()
    assert not given
    other.commit(STATE)
    await wait_all_tasks_blocked()
    assert len(given) == 1


async def test_records_are_handed_over_when_their_settlement_is_committed(nursery: trio.Nursery) -> None:
    topic = await opened(nursery, AtMostOnce())
    given = list[object]()

    async def take() -> None:
        given.append((await offsets(topic.consumer()))[0])

    nursery.start_soon(take)
    await wait_all_tasks_blocked()
    assert not given
    topic.commit(STATE)
    await wait_all_tasks_blocked()
    assert given == [[0]]


async def test_a_handover_that_waits_fails_when_the_log_is_lost(nursery: trio.Nursery) -> None:
    """Also where the broker leads again before the consumer runs: that leader's log has other events."""
    topic = await opened(nursery, AtMostOnce())
    failures = list[LinnError]()

    async def take() -> None:
        with pytest.raises(NotLeader) as raised:
            await offsets(topic.consumer())
        failures.append(raised.value)

    nursery.start_soon(take)
    await wait_all_tasks_blocked()
    topic.lose(leader=7)
    topic.lead(3)
    await wait_all_tasks_blocked()
    assert [(error.leader, error.retriable) for error in failures if isinstance(error, NotLeader)] == [(7, True)]


async def test_a_decision_is_repeated_when_it_is_committed_by_any_leader(nursery: trio.Nursery) -> None:
    topic = await opened(nursery, ExactlyOnce(LeaseSettings()))
    consumer = topic.consumer("p")
    found, delivery_id, _ = await offsets(consumer)
    outcome = settle(consumer, delivery_id, found, Verdict.READY)
    assert not is_confirmed(outcome)
    given = list[object]()

    async def take(topic: LedTopic) -> None:
        delivery = await topic.consumer("p").next(1, READ_ALL, WaitDeadline(0))
        given.append((delivery.phase, delivery.delivery_id))

    nursery.start_soon(take, topic)
    await wait_all_tasks_blocked()
    assert not given, "a consumer that comes back is not told either"
    topic.commit(STATE)
    await wait_all_tasks_blocked()
    assert given == [(Phase.COMMIT, delivery_id)]
    other = await topic.copied(2)
    topic.lose()
    other.lead(2)
    other.commits_at_once = True
    await other.open_queue(ExactlyOnce(LeaseSettings()))
    await take(other)
    assert given[1:] == [(Phase.COMMIT, delivery_id)]


async def test_a_decision_that_is_not_committed_is_not_waited_for_where_the_log_is_lost(nursery: trio.Nursery) -> None:
    topic = await opened(nursery, ExactlyOnce(LeaseSettings()))
    consumer, failed = topic.consumer("p"), list[str]()
    found, delivery_id, _ = await offsets(consumer)
    settle(consumer, delivery_id, found, Verdict.READY)

    async def take() -> None:
        with pytest.raises(NotLeader):
            await offsets(topic.consumer("p"))
        failed.append("failed")

    nursery.start_soon(take)
    await wait_all_tasks_blocked()
    topic.lose_logs()
    await wait_all_tasks_blocked()
    assert failed == ["failed"]


# --- what is kept ----------------------------------------------------------------------------------------------------


async def test_records_are_trimmed_when_their_settlement_is_committed(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    consumer = topic.consumer()
    found, delivery_id, _ = await offsets(consumer, 3)
    settle(consumer, delivery_id, found)
    await wait_all_tasks_blocked()
    queue = topic.queue.partition_queues[0]
    assert queue.subscription.settled_before() == 3
    assert topic.partitions[DATA].start_offset == 0
    assert queue.trimming.trimmable_before() == 0
    topic.publish()
    topic.commit(DATA)
    found, delivery_id, _ = await offsets(consumer)
    settle(consumer, delivery_id, found)
    topic.commit(STATE)
    await wait_all_tasks_blocked()
    assert topic.partitions[DATA].start_offset == 4, "what was settled while it waited is not forgotten"
    queue.trimming.trimmable_before()  # It may be a little behind.
    assert queue.trimming.trimmable_before() == 4


async def test_nothing_is_trimmed_once_the_log_is_lost(nursery: trio.Nursery) -> None:
    topic = await opened(nursery, records=1)
    consumer = topic.consumer()
    found, delivery_id, _ = await offsets(consumer)
    settle(consumer, delivery_id, found)
    await wait_all_tasks_blocked()
    topic.lose()
    await wait_all_tasks_blocked()
    assert topic.partitions[DATA].log.bounds() == (0, 1)
    assert topic.running == 0


# --- dead letters ----------------------------------------------------------------------------------------------------


async def with_dead_letter(nursery: trio.Nursery) -> LedTopic:
    """A leader whose first record is dead, while the target has a record that is durable here and not committed."""
    topic = await opened(nursery)
    topic.partitions[DEAD].append(build_single(b"other", 0, 0))
    consumer = topic.consumer()
    found, delivery_id, _ = await offsets(consumer)
    settle(consumer, delivery_id, found, Verdict.REJECT)
    await wait_all_tasks_blocked()
    return topic


async def test_a_dead_letter_is_copied_when_its_intent_is_committed(nursery: trio.Nursery) -> None:
    topic = await with_dead_letter(nursery)
    assert topic.end(DEAD) == 1
    topic.commit(STATE)
    await wait_all_tasks_blocked()
    assert topic.end(DEAD) == 2
    assert topic.queue.partition_queues[0].subscription.dead_count == 1
    topic.commit(DEAD)
    await wait_all_tasks_blocked()
    assert topic.queue.partition_queues[0].subscription.dead_count == 0


async def test_the_next_leader_makes_no_second_copy(nursery: trio.Nursery) -> None:
    topic = await with_dead_letter(nursery)
    topic.commit(STATE)
    await wait_all_tasks_blocked()
    topic.partitions[DEAD].commit(topic.end(DEAD))
    other = await topic.copied(2)
    topic.lose()
    other.lead(2)
    other.commits_at_once = True
    queue = await other.open_queue()
    assert queue.subscription.dead_count == 1
    await wait_all_tasks_blocked()
    assert (queue.subscription.dead_count, other.end(DEAD)) == (0, 2)


async def test_a_queue_that_is_abandoned_copies_nothing(nursery: trio.Nursery) -> None:
    """The next leader makes the copies."""
    topic = await with_dead_letter(nursery)
    topic.commit(STATE)
    topic.queue.abandon(not_leader(topic))
    await wait_all_tasks_blocked()
    assert (topic.end(DEAD), topic.running) == (1, 0)


async def test_a_copy_counts_only_in_the_leadership_of_its_target(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A target that is lost and led again has other records at the offset of the copy."""
    topic = await with_dead_letter(nursery)
    topic.commit(STATE)
    await wait_all_tasks_blocked()
    target = topic.partitions[DEAD]
    target.follow(2, 2, lambda: None)
    await target.cut(1)
    target.lead(3, lambda: None)
    target.append(build_single(b"another", 0, 0))
    topic.commit(DEAD)
    await wait_all_tasks_blocked()
    assert topic.queue.partition_queues[0].subscription.dead_count == 1
    assert [record.getMessage().count("try again") for record in caplog.records] == [1]
    caplog.clear()
    await trio.sleep(2)
    topic.commit(DEAD)
    await wait_all_tasks_blocked()
    assert (topic.queue.partition_queues[0].subscription.dead_count, topic.end(DEAD)) == (0, 3)


# --- leadership is lost ----------------------------------------------------------------------------------------------


async def test_consumers_end_with_the_leaders_name_and_nothing_is_written(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    topic = await opened(nursery, AtLeastOnce(LeaseSettings(lease_ms=1_000)))
    consumers, ended = [topic.consumer(name) for name in ("", "named")], list[NotLeader]()
    found, delivery_id, _ = await offsets(consumers[0])

    async def wait() -> None:
        with pytest.raises(NotLeader) as raised:
            await offsets(consumers[1], wait_s=60)
        ended.append(raised.value)

    for offset in (1, 2):
        settle(consumers[1], (await offsets(consumers[1]))[1], [offset])
    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    queue, before, told = topic.queue.partition_queues[0], topic.end(STATE), list[bool]()
    consumers[0].on_ended = lambda: told.append(consumers[0].ended)
    topic.lose(leader=7)
    assert told == [True]
    await trio.sleep(120)
    assert [error.leader for error in ended] == [7]
    outcome = settle(consumers[0], delivery_id, found)
    assert [type(error) for _, error in outcome.refused] == [NotLeader]
    with pytest.raises(NotLeader):
        await offsets(topic.queue.join(0))
    queue.skip_to_start()
    queue.return_unsent(consumers[0].id, delivery_id, [(0, 1)])
    await queue.consumer_gone(consumers[0].id)
    await topic.queue.close()
    assert (topic.end(STATE), topic.running) == (before, 0), "no alarm, no snapshot, no task"
    assert not len(topic.partitions[DATA].watchers)
    assert not topic.partitions[DATA].on_void
    topic.queue.abandon(not_leader(topic))


async def test_a_queue_of_a_former_leadership_never_writes_again(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    consumer, old = topic.consumer(), topic.queue.partition_queues[0]
    found, delivery_id, _ = await offsets(consumer)
    topic.lose_logs()
    topic.lead(3)
    before = topic.end(STATE)
    with pytest.raises(NotLeader):
        settle(consumer, delivery_id, found)
    with pytest.raises(NotLeader):
        await old.log.until_committed()
    old.log.flush_or_keep()
    assert topic.end(STATE) == before
    assert old.log.state is not None
    assert not old.log.state.waiting


async def test_a_queue_that_is_abandoned_before_its_logs_know_writes_nothing(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    consumer, queue = topic.consumer(), topic.queue.partition_queues[0]
    found, delivery_id, _ = await offsets(consumer)
    before = topic.end(STATE)
    topic.queue.abandon(not_leader(topic))
    queue.subscription.ack(consumer.id, delivery_id, [(0, 1)], 0.0)
    queue.log.flush_or_keep()
    with pytest.raises(NotLeader):
        queue.log.flush()
    assert topic.end(STATE) == before
    assert found == [0]


async def test_a_queue_opens_again_over_the_same_logs(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    topic.commits_at_once = True
    consumer = topic.consumer()
    found, delivery_id, _ = await offsets(consumer)
    assert is_confirmed(settle(consumer, delivery_id, found))
    topic.lose()
    topic.lead(3)
    topic.queue = type(topic.queue)("t")
    await topic.open_queue()
    again, new_id, _ = await offsets(topic.consumer())
    assert again == [1]
    assert new_id > delivery_id
    with pytest.raises(NotLeader):
        await offsets(consumer)


async def test_a_queue_that_is_lost_while_it_opens_does_not_open(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    await offsets(topic.consumer())
    other = await topic.copied(2)
    topic.lose()
    other.lead(2)
    queue = other.partition_queue(AtLeastOnce(LeaseSettings()))

    async def open_it() -> None:
        with pytest.raises(NotLeader):
            await queue.recover()

    nursery.start_soon(open_it)
    while not queue.log.state or queue.log.state.committed is not other.partitions[STATE].committed:
        await trio.lowlevel.checkpoint()
    other.lose_logs(leader=1)
    await wait_all_tasks_blocked()
    assert not queue.log.is_open
    assert not len(other.partitions[DATA].watchers)


async def test_a_command_is_not_done_where_the_log_is_lost(nursery: trio.Nursery) -> None:
    """Verbs wait for what they have changed, and a log that another broker leads does not have it."""
    topic = await opened(nursery)
    queue, failed = topic.queue.partition_queues[0], list[str]()
    assert queue.purge() == 3

    async def purge() -> None:
        with pytest.raises(NotLeader):
            await queue.log.commit_all()
        failed.append("purge")

    nursery.start_soon(purge)
    await wait_all_tasks_blocked()
    assert not failed
    topic.lose()
    await wait_all_tasks_blocked()
    assert failed == ["purge"]


async def test_a_queue_that_ends_while_it_is_led_writes_no_snapshot_and_waits(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    consumer, closed = topic.consumer(), list[str]()
    found, delivery_id, _ = await offsets(consumer)
    outcome = settle(consumer, delivery_id, found)
    before = topic.end(STATE)

    async def close() -> None:
        await topic.queue.close()
        closed.append("closed")

    nursery.start_soon(close)
    await wait_all_tasks_blocked()
    assert (closed, topic.end(STATE)) == ([], before)
    topic.commit(STATE)
    await wait_all_tasks_blocked()
    assert closed == ["closed"]
    assert is_confirmed(outcome)


async def test_a_queue_that_is_lost_while_it_closes_is_closed(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    await offsets(topic.consumer())
    closed = trio.Event()

    async def close() -> None:
        await topic.queue.close()
        closed.set()

    nursery.start_soon(close)
    await wait_all_tasks_blocked()
    topic.lose_logs()
    with trio.fail_after(1):
        await closed.wait()


# --- snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_snapshot", [False, True])
async def test_leadership_that_ends_during_a_compaction_changes_nothing(
    nursery: trio.Nursery, has_snapshot: bool
) -> None:
    topic = await opened(nursery)
    consumer, queue = topic.consumer(), topic.queue.partition_queues[0]
    found, delivery_id, _ = await offsets(consumer)
    settle(consumer, delivery_id, found)
    topic.commit()
    state, before = queue.log.state, topic.end(STATE)
    assert state is not None
    nursery.start_soon(lambda: state.compact_in_background(queue.log._snapshot))
    await wait_all_tasks_blocked()
    assert topic.end(STATE) == before, "not due yet"

    async def compact() -> None:
        with pytest.raises(NotLeader):
            await state.compact(queue.log._snapshot, force=True)

    nursery.start_soon(compact)
    await wait_all_tasks_blocked()
    assert topic.partitions[STATE].log.bounds() == (0, before + 1)
    other = await topic.copied(2, {STATE: before + has_snapshot})
    topic.lose()
    await wait_all_tasks_blocked()
    assert topic.partitions[STATE].log.bounds() == (0, before + 1), "nothing is trimmed by who does not lead"
    other.lead(2)
    other.commits_at_once = True
    await other.open_queue()
    again, _, attempt = await offsets(other.consumer())
    assert (again, attempt) == ([1], 1)


async def test_a_compaction_that_nobody_waits_for_ends_without_an_error(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    consumer, queue = topic.consumer(), topic.queue.partition_queues[0]
    found, delivery_id, _ = await offsets(consumer)
    assert queue.log.state is not None
    queue.log.state.append(bytes(SNAPSHOT_AFTER_BYTES))
    settle(consumer, delivery_id, found)
    await wait_all_tasks_blocked()
    assert topic.running == 2, "the compaction, and the trim of the settled record"
    topic.lose()
    await wait_all_tasks_blocked()
    assert topic.running == 0


async def test_a_committed_snapshot_is_not_trimmed_for_by_a_former_leader(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    queue = topic.queue.partition_queues[0]
    state, end = queue.log.state, topic.end(STATE)
    assert state is not None

    async def compact() -> None:
        with pytest.raises(NotLeader):
            await state.compact(queue.log._snapshot, force=True)

    nursery.start_soon(compact)
    await wait_all_tasks_blocked()
    topic.commit(STATE)
    topic.lose()
    await wait_all_tasks_blocked()
    assert topic.partitions[STATE].log.bounds() == (0, end + 1)


async def test_a_stale_delivery_of_an_earlier_leader_settles_nothing(nursery: trio.Nursery) -> None:
    topic = await opened(nursery)
    consumer = topic.consumer()
    _, delivery_id, _ = await offsets(consumer)
    other = await topic.copied(2)
    topic.lose()
    other.lead(2)
    other.commits_at_once = True
    await other.open_queue()
    again = other.consumer()
    await offsets(again)
    outcome = settle(again, delivery_id, [0])
    assert [type(error) for _, error in outcome.refused] == [DeliveryNotCurrent]
