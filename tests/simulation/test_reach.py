"""The seeds reach what they are for: nothing is simulated only in name."""

from __future__ import annotations

from collections import Counter
from functools import cache

from sim_plan import DEATHS, FAULTS, ORDERS, OVERFLOWS, STORAGES, Plan
from simulated_run import run_once
from test_crashes import SEEDS

from linn.testing import history as events
from linn.testing.history import History

RUN = (8, 12, 15, 22, 46, 77, 84, 564, 708)
"""Together they see everything; after a change of the plan look for others."""


@cache
def histories() -> list[History]:
    return [run_once(seed).world.history for seed in RUN]


def test_the_seeds_of_every_test_run_hold_every_death_fault_storage_and_way_to_consume() -> None:
    plans = [Plan(seed) for seed in range(SEEDS)]
    lives = [life for plan in plans for life in plan.lives]
    topics = [topic for plan in plans for topic in plan.topics]
    assert {life.death for life in lives} == set(DEATHS)
    assert {name for life in lives for _, name in life.faults} == set(FAULTS)
    assert {(topic.kind, topic.storage) for topic in topics} == {
        (kind, storage) for kind in ("queue", "stream", "both") for storage in STORAGES
    }
    assert {(consumer.mode, bool(consumer.group)) for plan in plans for consumer in plan.consumers} == {
        (mode, grouped) for mode in ("pull", "push", "python") for grouped in (True, False)
    }
    assert {consumer.mode for plan in plans for consumer in plan.consumers if consumer.shared} == {
        "pull",
        "push",
        "python",
    }
    assert {topic.settings.get("order") for topic in topics} == {None, *ORDERS}
    assert {topic.settings.get("overflow") for topic in topics} == {None, *OVERFLOWS}
    for is_python in (True, False):
        mine = [producer for plan in plans for producer in plan.producers if producer.is_python == is_python]
        assert any(producer.later for producer in mine)
        assert any(producer.priorities > 1 for producer in mine)
    assert {(producer.is_python, producer.acks) for plan in plans for producer in plan.producers} == {
        (is_python, acks) for is_python in (True, False) for acks in ("none", "leader")
    }


def test_runs_see_every_kind_of_event() -> None:
    seen = {type(entry.event).__name__ for history in histories() for entry in history.entries}
    assert seen == {event.__name__ for event in events.Event.__subclasses__()}


def test_lives_end_in_every_way_and_most_settlements_count() -> None:
    happened = [entry.event for history in histories() for entry in history.entries]
    assert {event.how for event in happened if isinstance(event, events.Ended)} == {
        "stopped",
        "killed",
        "lost power",
        "sync failed",
    }
    codes = Counter(event.code for event in happened if isinstance(event, events.Answered))
    assert codes[""] > sum(codes.values()) / 2
    assert "delivery.not_current" in codes
    attempts = [event.attempt for event in happened if isinstance(event, events.Delivered)]
    assert max(attempts) > 2
    read = [copy for event in happened if isinstance(event, events.Read) for copy in event.copies]
    assert {copy.dead.reason for copy in read if copy.dead is not None} == {"rejected", "max_deliveries"}
