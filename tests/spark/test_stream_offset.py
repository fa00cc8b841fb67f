"""Offsets of streaming queries: what the next micro-batch reads, and what is lost."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from linn.spark_plugin.errors import SparkDataLost
from linn.spark_plugin.source.bounds import PartitionBounds
from linn.spark_plugin.source.options import LATEST
from linn.spark_plugin.source.ranges import OffsetRange
from linn.spark_plugin.source.stream_offset import StreamOffset, next_end, pending_records, ranges_between

FLIGHTS, AGAIN = UUID(int=1), UUID(int=2)


def there(*ends: tuple[int, int], id: UUID = FLIGHTS) -> list[PartitionBounds]:
    """Partitions of the topic `flights`, with their earliest and latest offsets."""
    return [PartitionBounds("flights", id, at, earliest, latest) for at, (earliest, latest) in enumerate(ends)]


def at(*offsets: int, id: UUID = FLIGHTS) -> StreamOffset:
    return StreamOffset({"flights": id}, {("flights", number): offset for number, offset in enumerate(offsets)})


def read(start: StreamOffset, end: StreamOffset, bounds: list[PartitionBounds], fails: bool = True) -> list[range]:
    return [range(each.start, each.end) for each in ranges_between(start, end, bounds, fails)]


def test_offsets_are_the_same_after_their_way_through_json() -> None:
    known = StreamOffset({"b": AGAIN, "a": FLIGHTS}, {("a", 10): 5, ("a", 9): 7, ("b", 0): LATEST})
    text = json.dumps(known.to_json())
    assert StreamOffset.from_json(json.loads(text)) == known
    assert text.index('"9"') < text.index('"10"') < text.index('"b"')


@pytest.mark.parametrize("found", [{"a": 5}, {"a": {"id": "x", "offsets": {}}}, {"a": {"id": str(AGAIN)}}])
def test_offsets_of_something_else_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(SparkDataLost, match="is none of linn's Spark source"):
        StreamOffset.from_json(found)


def test_a_batch_takes_everything_without_a_limit() -> None:
    assert next_end(at(3, 0), there((0, 10), (0, 4)), None, True) == at(10, 4)


def test_a_limit_is_shared_by_how_much_is_there_and_starves_nobody() -> None:
    bounds = there((0, 10_000), (0, 5))
    assert next_end(at(0, 0), bounds, 100, True) == at(99, 1)
    start, batches = at(0, 0), 0
    while start != at(10_000, 5):
        end = next_end(start, bounds, 1_000, True)
        assert end != start
        start, batches = end, batches + 1
    assert batches <= 11


def test_a_start_at_the_end_stays_there_in_the_first_batch_and_when_it_is_replayed() -> None:
    start = at(LATEST, 2)
    end = next_end(start, there((0, 10), (0, 4)), None, True)
    assert end == at(10, 4)
    later = there((0, 90), (0, 90))
    assert read(start, end, later) == [range(2, 4)]
    assert pending_records(start, later) == 88


def test_a_partition_that_is_new_is_read_from_its_start() -> None:
    end = next_end(at(5), there((0, 5), (0, 7)), None, True)
    assert end == at(5, 7)
    assert read(at(5), end, there((0, 9), (0, 9))) == [range(7)]


def test_a_topic_that_was_made_again_is_data_loss_or_read_from_its_start() -> None:
    remade = there((0, 3), id=AGAIN)
    with pytest.raises(SparkDataLost, match="deleted and made again"):
        next_end(at(5), remade, None, True)
    end = next_end(at(5), remade, None, False)
    assert end == at(3, id=AGAIN)
    assert ranges_between(at(5), end, remade, False) == [OffsetRange("flights", AGAIN, 0, 0, 3)]


def test_a_partition_that_is_gone_is_data_loss_or_left_out() -> None:
    with pytest.raises(SparkDataLost, match="partition 1 of flights is gone"):
        next_end(at(5, 5), there((0, 5)), None, True)
    assert next_end(at(5, 5), there((0, 6)), None, False) == at(6)


def test_a_log_that_lost_its_end_is_data_loss_or_read_from_there() -> None:
    with pytest.raises(SparkDataLost, match="ends at offset 3, before 5"):
        next_end(at(5), there((0, 3)), None, True)
    assert next_end(at(5), there((0, 3)), None, False) == at(3)


def test_what_retention_took_is_data_loss_or_passed_over() -> None:
    bounds = there((8, 20))
    with pytest.raises(SparkDataLost, match="offsets 5 to 8 of partition 0 of flights are gone"):
        ranges_between(at(5), at(15), bounds, True)
    assert read(at(5), at(15), bounds, fails=False) == [range(8, 15)]
    assert read(at(5), at(7), bounds, fails=False) == []


def test_a_batch_of_a_deleted_topic_is_data_loss_or_empty() -> None:
    with pytest.raises(SparkDataLost, match="are gone with the topic"):
        ranges_between(at(5), at(9), [], True)
    assert read(at(5), at(9), there((0, 50), id=AGAIN), fails=False) == []
