"""A publish of which other brokers store shares: what each gets, and the one outcome."""

from __future__ import annotations

from collections.abc import Sequence

from raw_client import records

from linn.core.batch.batch import RecordBatch
from linn.core.errors.peers import PeerUnknown, PeerUnreachable
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, MessageTooLarge, ProducerDuplicate
from linn.core.publish.plan import Elsewhere, Planned
from linn.core.publish.request import PublishRequest, PublishResult, RefusedRecords
from linn.core.publish.split_publish import TOPICS_MAX, SplitPublish

NOTHING = PublishResult(-1, -1, 0, [])
STORED = PublishResult(0, 7, 3, [], 2, 8, 9)
TOO_LARGE = MessageTooLarge("it is too large")


def elsewhere(
    leader: int, *topics: str, batch: RecordBatch | None = None, indexes: Sequence[int] = (0, 1, 2)
) -> Elsewhere:
    return Elsewhere(leader, topics, batch or records(["a", "b", "c"]), lambda: indexes)


def several(copies: int) -> PublishResult:
    return PublishResult(-1, -1, copies, [], refused=[])


def split(*away: Elsewhere, own: PublishResult = NOTHING, numbered: bool = False, target: str = "e") -> SplitPublish:
    batch = records(["a", "b", "c"])
    if numbered:
        batch.number(1 << 40, 0, 0, 0)
    request = PublishRequest(target, [batch], to_exchange=target == "e", wants_returned=True)
    return SplitPublish(request, [own], [Planned([], [], elsewhere=away)])


def outcome(publish: SplitPublish, *told: Sequence[PublishResult] | LinnError) -> Sequence[PublishResult] | LinnError:
    """The outcome of all shares in turn; only the last one completes it."""
    *earlier, last = zip(publish.shares, told, strict=True)
    assert [publish.told(*each) for each in earlier] == [None] * len(earlier)
    whole = publish.told(*last)
    assert whole is not None
    return whole


def test_a_broker_gets_batches_for_the_same_topics_in_one_request() -> None:
    first, second, third = records(["a"]), records(["b"]), records(["c"])
    request = PublishRequest("e", [first, second, third], to_exchange=True, acks="leader", wants_returned=True)
    plans = [
        Planned([], [], elsewhere=[elsewhere(2, "x", "y", batch=first), elsewhere(3, "z", batch=first)]),
        Planned([], [0, 1]),
        Planned([], [], elsewhere=[elsewhere(2, "x", "y", batch=third)]),
    ]
    publish = SplitPublish(request, [NOTHING] * 3, plans)
    assert publish.nodes == {2, 3}
    assert [(share.node, [*share.request.topics], [*share.request.batches]) for share in publish.shares] == [
        (2, ["x", "y"], [first, third]),
        (3, ["z"], [first]),
    ]
    assert {(share.request.target, share.request.acks) for share in publish.shares} == {("e", "leader")}
    assert not any(share.request.wants_returned for share in publish.shares)
    results = outcome(publish, [STORED._replace(copies=2), STORED._replace(copies=4)], [STORED._replace(copies=1)])
    assert isinstance(results, list)
    assert [result.copies for result in results] == [3, 0, 4]


def test_very_many_topics_make_several_shares() -> None:
    names = [f"t{number}" for number in range(2 * TOPICS_MAX + 1)]
    publish = split(elsewhere(2, *names))
    assert [len(share.request.topics) for share in publish.shares] == [TOPICS_MAX, TOPICS_MAX, 1]
    assert [name for share in publish.shares for name in share.request.topics] == names


def test_one_topic_that_has_all_of_a_batch_tells_its_place() -> None:
    assert outcome(split(elsewhere(2, "x")), [STORED]) == [STORED._replace(refused=[])]
    assert outcome(split(elsewhere(2, "x", "y")), [STORED]) == [several(3)]
    assert outcome(split(elsewhere(2, "x"), elsewhere(3, "y")), [STORED], [STORED]) == [several(6)]
    assert outcome(split(elsewhere(2), target="t"), [STORED]) == [STORED._replace(refused=[])]


def test_refused_records_are_named_by_their_indexes_in_the_whole_batch_and_once() -> None:
    own = NOTHING._replace(copies=1, returned=[9, 10], refused=[RefusedRecords(TOO_LARGE, [0, 1])])
    publish = split(elsewhere(2, "x", indexes=(1, 4, 5, 8)), elsewhere(3, "y", indexes=(4, 5)), own=own)
    refused = STORED._replace(refused=[RefusedRecords(TOO_LARGE, [0, 1, 2, 4])])
    (result,) = outcome(publish, [refused], [refused._replace(refused=[RefusedRecords(TOO_LARGE, [0, 2])])])
    assert [each.records for each in result.refused] == [[0, 1], [1, 2, 5, 6, 8, 9], [4, 5]]
    assert (result.copies, result.returned) == (7, [9, 10])


def test_a_share_that_came_again_after_later_ones_is_stored() -> None:
    again = ProducerDuplicate("it is stored")
    both = elsewhere(2, "x"), elsewhere(3, "y")
    assert outcome(split(*both, numbered=True), again, [STORED]) == [several(3)]
    assert outcome(split(elsewhere(2), target="t", numbered=True), again) is again


def test_a_publish_with_numbers_fails_as_its_share_did_and_for_good_rather_than_for_now() -> None:
    both = elsewhere(2, "x"), elsewhere(3, "y")
    moved, never = NotLeader("moved"), TOO_LARGE
    assert moved.retriable
    assert not never.retriable
    assert outcome(split(*both, numbered=True), moved, [STORED]) is moved
    assert outcome(split(*both, numbered=True), moved, never) is never


def test_a_publish_without_numbers_that_is_stored_in_part_is_not_to_be_sent_again() -> None:
    both = elsewhere(2, "x"), elsewhere(3, "y")
    away, lost = PeerUnreachable("away"), PeerUnknown("lost")
    assert outcome(split(*both), away, away) is away
    error = outcome(split(*both), away, [STORED])
    assert isinstance(error, PeerUnknown)
    assert error.text == "it is stored in part: away"
    assert outcome(split(*both), lost, [STORED]) is lost
