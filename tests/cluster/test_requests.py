"""Lanes and requests of one link, without I/O: windows, outcomes, and what is known when the link is lost."""

from __future__ import annotations

import pytest

from linn.cluster.requests import Outcome, Requests
from linn.cluster.window import FIRST_BYTES_MAX, Limits, Window, size_of
from linn.core.errors.peers import PeerUnknown, PeerUnreachable
from linn.core.errors.tree import ConnectionLost, LinnError, ProtocolError, TopicUnknown
from linn.wire import messages as m
from linn.wire.connection import Event

LIMITS = Limits(lanes_max=2, lane_requests_max=2, lane_bytes_max=100_000, requests_max=4, bytes_max=150_000)
LOST = ConnectionLost("the cable is cut")


class Asking:
    """Requests whose outcomes are kept."""

    def __init__(self) -> None:
        self.requests = Requests(LIMITS)
        self.outcomes: dict[int, Outcome] = {}
        self.put_bytes = 0

    def open(self) -> int:
        lane = self.requests.open_lane()
        assert lane is not None
        return lane

    def ask(self, lane: int, size: int = 1, *, is_repeatable: bool = False) -> int | None:
        correlation = self.requests.next_correlation(lane, size)
        if correlation is not None:
            self.put_bytes += size

            def tell(outcome: Outcome) -> None:
                assert correlation is not None
                assert correlation not in self.outcomes
                self.outcomes[correlation] = outcome

            end = self.put_bytes
            self.requests.asked(lane, correlation, size, end, tell, is_repeatable=is_repeatable)
        return correlation

    def answer(self, lane: int, correlation: int, message: m.Message) -> None:
        self.requests.take(Event(correlation, message, [], lane))


@pytest.fixture
def asking() -> Asking:
    return Asking()


def test_answers_come_in_any_order(asking: Asking) -> None:
    one, two = asking.open(), asking.open()
    assert [asking.ask(one), asking.ask(two), asking.ask(one)] == [1, 2, 3]
    asking.answer(one, 3, m.Administered("three"))
    asking.answer(two, 2, m.Failed("topic.unknown", "no such topic"))
    asking.answer(one, 1, m.Administered("one"))
    assert asking.outcomes[1] == Event(1, m.Administered("one"), [], one)
    assert asking.outcomes[3] == Event(3, m.Administered("three"), [], one)
    assert isinstance(asking.outcomes[2], TopicUnknown)


def test_a_lane_without_room_leaves_the_others_theirs(asking: Asking) -> None:
    one, two = asking.open(), asking.open()
    assert asking.ask(one, 60_000)
    assert asking.ask(one, 60_000) is None, "over the lane's bytes"
    assert asking.ask(one, 40_000) is None, "more than half of what is left to all"
    assert asking.ask(one, 10_000) is None, "with the request before"
    assert asking.ask(two, 90_001) is None, "over the link's bytes"
    assert asking.ask(two, 50_000)
    assert asking.ask(two, 1) is None, "more than half of what is left to all"
    asking.answer(one, 1, m.Administered("{}"))
    assert asking.ask(two, 0)
    assert asking.ask(two, 0) is None, "over the lane's requests"


def test_however_many_lanes_wait_others_have_room_for_a_small_request_and_some_for_large_ones() -> None:
    limits = Limits()
    link = Window(limits.requests_max, limits.bytes_max)
    for size in (limits.lane_bytes_max, limits.lane_bytes_max // 3, 1_000):
        waiting = 0
        while waiting < 100:
            lane = Window(limits.lane_requests_max, limits.lane_bytes_max)
            while lane.has_room(size) and link.has_room_for(lane, size):
                lane.take(size)
                link.take(size)
            waiting += 1
            other = Window(limits.lane_requests_max, limits.lane_bytes_max)
            assert link.has_room_for(other, FIRST_BYTES_MAX), waiting
            if not lane.requests:
                break
    for _ in range(limits.requests_max):
        lane = Window(limits.lane_requests_max, limits.lane_bytes_max)
        assert link.has_room_for(lane, 300)
        lane.take(300)
        link.take(300)
    assert link.has_room_for(Window(1, 1), 300), "a lane's first small one is beyond all limits"
    assert not link.has_room_for(lane, 300)


def test_a_single_request_may_be_larger_than_a_window() -> None:
    window = Window(2, 100)
    assert window.has_room(1_000)
    window.take(1_000)
    assert not window.has_room(0)
    window.give_back(1_000)
    assert window.has_room(1_000)


def test_a_lane_takes_its_place_until_the_other_side_has_ended_it(asking: Asking) -> None:
    one, _ = asking.open(), asking.open()
    assert asking.requests.open_lane() is None
    assert asking.ask(one, 100_000) == 1
    asking.requests.close_lane(one)
    assert asking.requests.open_lane() is None
    asking.answer(one, 0, m.CloseLane())
    three = asking.open()
    assert three == 3, "numbers are not used again"
    assert asking.ask(three, 100_000), "the window is whole again"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event(7, m.Administered("{}"), [], 1), "answers nothing that was asked"),
        (Event(1, m.Administered("{}"), [], 9), "in a lane that is not open"),
        (Event(0, m.CloseLane(), [], 1), "was not closed"),
    ],
)
def test_answers_to_nothing_are_errors_of_protocol(asking: Asking, event: Event, text: str) -> None:
    asking.ask(asking.open())
    with pytest.raises(ProtocolError, match=text):
        asking.requests.take(event)


def test_pushes_are_taken_in_lanes_that_listen_until_they_are_closed(asking: Asking) -> None:
    listening, other = asking.open(), asking.open()
    pushed, lost = list[Event](), list[LinnError]()
    asking.requests.listen(listening, pushed.append, lost.append)
    push = Event(0, m.Deliver(1, 0, 0, 0), [], listening)
    asking.requests.take(push)
    assert pushed == [push]
    with pytest.raises(ProtocolError, match="answers nothing"):
        asking.requests.take(push._replace(lane=other))
    asking.requests.close_lane(listening)
    asking.requests.take(push)
    assert len(pushed) == 1, "it was on its way"
    asking.requests.lose(0, LOST)
    assert lost == []


def test_the_end_of_a_link_is_told_to_a_lane_before_its_requests() -> None:
    asking = Asking()
    lane = asking.open()
    told: list[object] = []
    asking.requests.listen(lane, told.append, lambda error: told.append((error, dict(asking.outcomes))))
    asking.ask(lane)
    asking.requests.lose(0, LOST)
    assert told == [(LOST, {})]
    assert len(asking.outcomes) == 1


def test_legs_leave_a_tenth_of_the_lanes_to_others() -> None:
    requests = Requests(LIMITS._replace(lanes_max=20))
    for _ in range(18):
        assert requests.has_room_for_leg(0)
        requests.open_lane()
    assert not requests.has_room_for_leg(0)
    assert requests.has_room_for_leg(1), "one that rests can be closed"


def test_what_was_not_sent_whole_was_surely_not_carried_out(asking: Asking) -> None:
    lane, other = asking.open(), asking.open()
    sent, half_sent, read = asking.ask(lane, 10), asking.ask(lane, 10), asking.ask(other, 10, is_repeatable=True)
    asking.requests.lose(19, LOST)
    assert (sent, half_sent, read) == (1, 2, 3)
    assert type(asking.outcomes[1]) is PeerUnknown
    assert type(asking.outcomes[2]) is PeerUnreachable
    assert type(asking.outcomes[3]) is PeerUnreachable, "it changes nothing: it may be asked again"
    assert not PeerUnknown.retriable
    assert PeerUnreachable.retriable
    asking.requests.lose(19, LOST)
    assert len(asking.outcomes) == 3, "each has one outcome"


def test_the_size_of_a_verb_is_that_of_its_arguments() -> None:
    assert size_of(m.Administer("topic.create", "x" * 30)) == 30
    assert size_of(m.CloseLane()) == 0
    assert size_of(m.Settle(1, [m.Settlement(0, 1, 0, 1)] * 10, ["x" * 7])) == 407
