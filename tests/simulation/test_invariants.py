"""Each invariant against a history that breaks it, and against one that does not, written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from linn.testing.history import (
    Altered,
    Answered,
    Asked,
    Assigned,
    Confirmed,
    Copy,
    DeadLabels,
    Delivered,
    Disturbed,
    Drained,
    Ended,
    Event,
    History,
    Joined,
    Left,
    Published,
    Read,
    ReadThrough,
    Recovered,
    Refused,
    TopicPromise,
)
from linn.testing.invariants import INVARIANTS, InvariantBroken, broken, check

Step = Event | float
"""A number sets the time, in seconds."""

STREAM = TopicPromise(name="t")
QUEUE = TopicPromise(name="t", lease_ms=1000, is_kept=False, max_deliveries=3, dead_letter="dead")
RETAINING = replace(QUEUE, retains=True)
DEAD = TopicPromise(name="dead")
MEMORY = replace(STREAM, durability="memory")
OS = replace(STREAM, durability="os")
INTERVAL = replace(STREAM, durability="interval")


def written(topic: TopicPromise, *steps: Step) -> History:
    """A history of these events, with the dead-letter topic beside."""
    now = 0.0
    history = History([topic, DEAD], lambda: now)
    for step in steps:
        if isinstance(step, Event):
            history.add(step)
        else:
            now = step
    return history


# --- events, with what matters said ---


def begun(life: int = 1, end: int = 0, start: int = 0) -> Recovered:
    return Recovered(life, "t", 0, start, end)


def published(record: str, number: int = 0, *, key: str = "", committed: bool = True) -> Event:
    return Published(record, "p", number, ("t",), key, committed)


def confirmed(record: str, offset: int = 0, life: int = 1, partition: int = 0) -> Event:
    return Confirmed(life, record, partition, offset)


def read(
    *records: str, asked_at: int = 0, first: int = 0, start: int = 0, end: int | None = None, life: int = 1
) -> Read:
    copies = tuple(Copy(record) for record in records)
    return Read(life, "t", 0, asked_at, first, start, end if end is not None else first + len(copies), copies)


def delivered(record: str, id: int, attempt: int = 1, offset: int = 0, who: str = "c", life: int = 1) -> Delivered:
    return Delivered(life, who, "t", 0, offset, (record,), id, attempt, granted_after_s=1.0)


def asked(verdict: str, id: int, offset: int = 0, who: str = "c", life: int = 1, ms: int = 0) -> Event:
    return Asked(life, who, "t", 0, offset, offset + 1, verdict, id, ms)  # type: ignore[arg-type]


def letter(reason: str, attempts: int, offset: int = 0, record: str = "a", at: int = 0) -> Read:
    copy = Copy(record, dead=DeadLabels("t", 0, offset, reason, attempts))
    return Read(1, "dead", 0, 0, at, 0, at + 1, (copy,))


def assigned(who: str, generation: int, *partitions: int, life: int = 1) -> Event:
    return Assigned(life, who, "t", "g", generation, partitions)


def handed(who: str, generation: int, first: int, *records: str, life: int = 1) -> Event:
    return Delivered(life, who, "t", 0, first, records, group="g", generation=generation)


def commits(who: str, generation: int, end: int, life: int = 1) -> Event:
    return Asked(life, who, "t", 0, 0, end, "ack", group="g", generation=generation)


AB: list[Step] = [begun(), published("a"), published("b", 1)]
A_IN: list[Step] = [begun(), published("a"), confirmed("a")]
LEASED: list[Step] = [*A_IN, 1.0, delivered("a", 1)]
RELEASER = Joined(1, "d", "t", releases=True)
EMPTY = Drained("t", 0, 0, 0)
DROPPED = read(first=1, start=1)
LOST_POWER = Ended(1, "lost power")
FOUR: list[Step] = [begun(), *(published(record, number) for number, record in enumerate("abcd"))]
LATE_COMMIT: list[Step] = [
    *FOUR,
    assigned("c", 1, 0),
    assigned("d", 2, 0),
    handed("d", 2, 0, "a"),
    commits("c", 1, 2),
]
"""Event 8 is sent by a member that has not heard yet that it lost the partition."""

BREAKING: dict[str, list[tuple[TopicPromise, list[Step]]]] = {
    "a committed record never changes": [
        (STREAM, [*AB, confirmed("a"), read("b")]),
        (STREAM, [*AB, confirmed("a"), LOST_POWER, begun(2, end=1), read("b", life=2)]),
        (OS, [*AB, confirmed("a"), Ended(1, "killed"), begun(2, end=1), read("b", life=2)]),
    ],
    "nothing confirmed is lost": [
        (STREAM, [*A_IN, LOST_POWER, begun(2, end=0)]),
        (STREAM, [*A_IN, Ended(1, "sync failed"), begun(2, end=0)]),
        (OS, [*A_IN, Ended(1, "killed"), begun(2, end=0)]),
        (INTERVAL, [*A_IN, 10.0, LOST_POWER, begun(2, end=0)]),
        (STREAM, [begun(), published("a", committed=False), read("a"), LOST_POWER, begun(2, end=0)]),
        (STREAM, [begun(), published("a"), LOST_POWER, begun(2), confirmed("a")]),
        (STREAM, [begun(), published("a"), Confirmed(1, "a"), ReadThrough(1, "t")]),
        (STREAM, [*A_IN, read(start=1, end=1, first=1)]),
        (QUEUE, [*A_IN, EMPTY]),
        (QUEUE, [*LEASED, EMPTY]),
    ],
    "confirmed means readable": [
        (STREAM, [*A_IN, read(asked_at=3, end=0)]),
        (STREAM, [*AB, read(end=1)]),
    ],
    "watermarks never go back": [
        (STREAM, [*AB, read("a", "b"), read("a", asked_at=4)]),
        (STREAM, [*AB, handed("c", 1, 0, "a", "b"), read("a", asked_at=4)]),
    ],
    "offsets never go back": [
        (QUEUE, [begun(), read(start=5, end=5, first=5), read(asked_at=2, start=4, end=5, first=5)])
    ],
    "a partition keeps the order of each producer": [(STREAM, [*AB, read("b", "a")])],
    "a record is stored once": [
        (STREAM, [*AB, read("a", "b", "a")]),
        (STREAM, [begun(), published("a"), read("a"), replace(read("a"), partition=1)]),
    ],
    "a key stays in its partition": [
        (
            STREAM,
            [begun(), published("a", key="k"), published("b", 1, key="k"), confirmed("a"), confirmed("b", partition=1)],
        )
    ],
    "what was refused is not stored": [
        (STREAM, [begun(), published("a"), Refused(1, "a", "topic.full"), read("a")]),
        (STREAM, [begun(), published("a"), Refused(1, "a", "storage.disk_full"), read("a")]),
    ],
    "only what was published is stored": [(STREAM, [begun(), read("x")])],
    "delivery ids are never reused": [
        (QUEUE, [*LEASED, delivered("a", 1, who="d")]),
        (QUEUE, [*LEASED, LOST_POWER, begun(2, end=1), delivered("a", 1, attempt=2, life=2)]),
    ],
    "at most once is never twice": [
        (replace(QUEUE, delivery="at-most-once"), [*LEASED, delivered("a", 2)]),
        (replace(QUEUE, delivery="at-most-once"), [*LEASED, LOST_POWER, begun(2, end=1), delivered("a", 9, life=2)]),
        (replace(STREAM, delivery="at-most-once"), [*A_IN, handed("c", 1, 0, "a"), handed("d", 2, 0, "a")]),
    ],
    "what is settled stays settled": [
        (QUEUE, [*LEASED, asked("ack", 1), Answered(4), delivered("a", 2, 2)]),
        (QUEUE, [*LEASED, asked("reject", 1), Answered(4), LOST_POWER, begun(2, end=1), delivered("a", 9, 2, life=2)]),
    ],
    "only a current delivery settles": [
        (QUEUE, [*LEASED, delivered("a", 2, 2, who="d"), asked("nack", 1), Answered(5)]),
    ],
    "attempts count right": [
        (QUEUE, [*A_IN, delivered("a", 1, attempt=2)]),
        (QUEUE, [*LEASED, delivered("a", 2, attempt=3)]),
        (QUEUE, [*LEASED, delivered("a", 2, attempt=1)]),
        (QUEUE, [*LEASED, Ended(1, "killed"), begun(2, end=1), delivered("a", 9, attempt=1, life=2)]),
        (QUEUE, [*LEASED, LOST_POWER, begun(2, end=1), delivered("a", 9, attempt=4, life=2)]),
    ],
    "a lease holds until its deadline": [
        (QUEUE, [*LEASED, 1.9, asked("ack", 1), Answered(4, "delivery.not_current")]),
        (
            QUEUE,
            [
                *LEASED,
                asked("extend", 1, ms=5000),
                Answered(4),
                1.9,
                asked("ack", 1),
                Answered(6, "delivery.not_current"),
            ],
        ),
    ],
    "what is returned goes back to its place": [
        (QUEUE, [*AB, delivered("a", 1), asked("nack", 1), 0.5, Answered(4), delivered("b", 2, offset=1)]),
    ],
    "a queue hands out in order": [
        (QUEUE, [*AB, delivered("b", 1, offset=1), delivered("a", 2)]),
        (QUEUE, [RELEASER, *AB, 0.4, delivered("b", 1, offset=1), delivered("a", 2)]),
        (QUEUE, [Joined(1, "d", "t"), *AB, 0.4, Left("d", "t"), delivered("b", 1, offset=1), delivered("a", 2)]),
    ],
    "every lease ends": [(QUEUE, [*LEASED, Drained("t", 1, 1, 0)]), (QUEUE, [*LEASED, Drained("t", 1, 0, 1)])],
    "a dead letter comes once": [
        (
            QUEUE,
            [*LEASED, asked("reject", 1), letter("rejected", 1), letter("rejected", 1, at=1), ReadThrough(1, "dead")],
        )
    ],
    "a dead letter tells the truth": [
        (QUEUE, [*LEASED, letter("rejected", 1), ReadThrough(1, "dead")]),
        (QUEUE, [*LEASED, asked("reject", 1), letter("rejected", 2), ReadThrough(1, "dead")]),
        (QUEUE, [*LEASED, letter("max_deliveries", 1), ReadThrough(1, "dead")]),
        (QUEUE, [*LEASED, asked("reject", 1), letter("rejected", 1, record="b"), ReadThrough(1, "dead")]),
    ],
    "no dead letter is missing": [
        (QUEUE, [*LEASED, asked("reject", 1), Answered(4), EMPTY, ReadThrough(1, "dead")]),
        (QUEUE, [*LEASED, delivered("a", 2, 2), delivered("a", 3, 3), EMPTY, ReadThrough(1, "dead")]),
        (RETAINING, [*LEASED, asked("reject", 1), Answered(4), EMPTY, read("a"), ReadThrough(1, "dead")]),
        (QUEUE, [*LEASED, asked("reject", 1), Answered(4), EMPTY, DROPPED, ReadThrough(1, "dead")]),
    ],
    "a record is acked or dead, not both": [
        (QUEUE, [*LEASED, asked("ack", 1), Answered(4), letter("rejected", 1), EMPTY, ReadThrough(1, "dead")]),
    ],
    "a partition has one owner in a generation": [
        (STREAM, [begun(), assigned("c", 1, 0), assigned("d", 1, 0)]),
        (STREAM, [begun(), assigned("c", 1, 0), LOST_POWER, begun(2), assigned("d", 1, 0, life=2)]),
    ],
    "only the owner commits": [
        (STREAM, [begun(), assigned("c", 1, 0), assigned("d", 2, 0), commits("c", 1, 0), Answered(3)]),
        (STREAM, [*LATE_COMMIT, Answered(8), assigned("c", 2), assigned("c", 3, 0)]),
        (STREAM, [*LATE_COMMIT, assigned("c", 2), assigned("c", 3, 0), Answered(8)]),
    ],
    "a group goes on where it committed": [
        (
            STREAM,
            [*FOUR, assigned("c", 1, 0), commits("c", 1, 2), Answered(6), assigned("d", 2, 0), handed("d", 2, 1, "b")],
        ),
        (
            STREAM,
            [*FOUR, assigned("c", 1, 0), commits("c", 1, 2), Answered(6), assigned("d", 2, 0), handed("d", 2, 3, "d")],
        ),
        (STREAM, [*LATE_COMMIT, Answered(8), assigned("c", 2), assigned("c", 3, 0)]),
        (STREAM, [*FOUR, assigned("c", 1, 0), handed("c", 1, 1, "b")]),
    ],
    "a group reads in order": [
        (STREAM, [*FOUR, assigned("c", 1, 0), handed("c", 1, 0, "a"), handed("c", 1, 2, "c")]),
        (STREAM, [*FOUR, assigned("c", 1, 0), handed("c", 1, 0, "a", "b"), handed("c", 1, 1, "b")]),
    ],
}

KEEPING: dict[str, list[tuple[TopicPromise, list[Step]]]] = {
    "a committed record never changes": [
        (STREAM, [*AB, confirmed("a"), read("a", "b")]),
        (OS, [*AB, confirmed("a"), LOST_POWER, begun(2), read("b", life=2)]),
        (OS, [*AB, LOST_POWER, begun(2), confirmed("b", life=2), read("a")]),
        (MEMORY, [*AB, confirmed("a"), Ended(1, "stopped"), begun(2), read("b", life=2)]),
    ],
    "nothing confirmed is lost": [
        (STREAM, [begun(), published("a"), LOST_POWER, begun(2)]),
        (STREAM, [begun(), published("a", committed=False), confirmed("a"), LOST_POWER, begun(2, end=0)]),
        (OS, [*A_IN, LOST_POWER, begun(2, end=0), ReadThrough(2, "t")]),
        (INTERVAL, [*A_IN, 1.0, LOST_POWER, begun(2, end=0)]),
        (INTERVAL, [*A_IN, 9.0, Ended(1, "sync failed", since_s=0.5), begun(2, end=0)]),
        (MEMORY, [*A_IN, Ended(1, "stopped"), begun(2, end=0)]),
        (STREAM, [begun(), published("a"), Confirmed(1, "a"), read("a"), ReadThrough(1, "t")]),
        (QUEUE, [*LEASED, asked("ack", 1), EMPTY]),
    ],
    "confirmed means readable": [(STREAM, [*A_IN, read(asked_at=2, end=0), read("a", asked_at=3)])],
    "watermarks never go back": [
        (STREAM, [*AB, read("a", "b"), read("a", asked_at=3)]),
        (STREAM, [*AB, read("a", "b"), LOST_POWER, begun(2, end=2), read("a", asked_at=4, life=1)]),
    ],
    "offsets never go back": [
        (QUEUE, [begun(), read(start=5, end=5, first=5), read(asked_at=1, start=4, end=5, first=5)]),
        (
            QUEUE,
            [begun(), read(start=5, end=5, first=5), LOST_POWER, begun(2, 5), read(asked_at=4, end=5, first=5, life=2)],
        ),
    ],
    "a partition keeps the order of each producer": [(STREAM, [*AB, read("a", "b")])],
    "a record is stored once": [
        (replace(STREAM, grows=True), [begun(), published("a"), read("a"), replace(read("a"), partition=1)]),
        (OS, [*AB, read("a", "b"), LOST_POWER, begun(2, end=1), read("a", life=2)]),
    ],
    "a key stays in its partition": [
        (
            STREAM,
            [begun(), published("a", key="k"), published("b", 1, key="l"), confirmed("a"), confirmed("b", partition=1)],
        ),
        (
            replace(STREAM, grows=True),
            [begun(), published("a", key="k"), published("b", 1, key="k"), confirmed("a"), confirmed("b", partition=1)],
        ),
    ],
    "what was refused is not stored": [
        (STREAM, [*AB, Refused(1, "b", "topic.full"), read("a")]),
        (
            STREAM,
            [begun(), Recovered(1, "t", 1, 0, 0), published("a"), Refused(1, "a", "storage.disk_full"), read("a")],
        ),
    ],
    "only what was published is stored": [(STREAM, [begun(), published("x"), read("x")])],
    "delivery ids are never reused": [
        (QUEUE, [*LEASED, delivered("a", 2, 2, who="d")]),
        (QUEUE, [*AB, delivered("a", 1), delivered("b", 1, offset=1)]),
        (replace(QUEUE, durability="memory"), [*LEASED, Ended(1, "killed"), begun(2), delivered("a", 1, life=2)]),
    ],
    "at most once is never twice": [
        (replace(QUEUE, delivery="at-most-once"), [*AB, delivered("a", 1), delivered("b", 2, offset=1)]),
        (
            replace(QUEUE, delivery="at-most-once", durability="os"),
            [*LEASED, LOST_POWER, begun(2, end=1), delivered("a", 9, life=2)],
        ),
        (replace(STREAM, delivery="at-most-once"), [*AB, handed("c", 1, 0, "a"), handed("d", 2, 1, "b")]),
    ],
    "what is settled stays settled": [
        (QUEUE, [*LEASED, asked("ack", 1), delivered("a", 2, 2)]),
        (QUEUE, [*LEASED, asked("ack", 1), Answered(4, "storage.disk_full"), delivered("a", 2, 2)]),
        (QUEUE, [*A_IN, delivered("a", 2, 1, who="d"), asked("ack", 2, who="d"), Answered(4), Left("d", "t")]),
        (
            replace(QUEUE, durability="os"),
            [*LEASED, asked("ack", 1), Answered(4), LOST_POWER, begun(2, end=1), delivered("a", 9, 2, life=2)],
        ),
    ],
    "only a current delivery settles": [
        (QUEUE, [*LEASED, asked("nack", 1), delivered("a", 2, 2, who="d"), Answered(4)]),
        (QUEUE, [*LEASED, delivered("a", 2, 2, who="d"), 9.0, asked("ack", 1), Answered(5, "delivery.not_current")]),
    ],
    "attempts count right": [
        (QUEUE, [*LEASED, delivered("a", 2, attempt=2), delivered("a", 3, attempt=3)]),
        (QUEUE, [*LEASED, Left("d", "t"), delivered("a", 4, attempt=3)]),
        (QUEUE, [*LEASED, LOST_POWER, begun(2, end=1), delivered("a", 9, attempt=1, life=2)]),
        (QUEUE, [*A_IN, Disturbed("a link is cut"), delivered("a", 2, attempt=2)]),
    ],
    "a lease holds until its deadline": [
        (QUEUE, [*LEASED, 2.1, asked("ack", 1), Answered(4, "delivery.not_current")]),
        (QUEUE, [*LEASED, asked("ack", 1), asked("ack", 1), Answered(4), Answered(5, "delivery.not_current")]),
        (QUEUE, [*LEASED, asked("extend", 1, ms=10), 1.5, asked("ack", 1), Answered(6, "delivery.not_current")]),
        (QUEUE, [*LEASED, Altered("t", "stream"), asked("ack", 1), Answered(5, "delivery.not_current")]),
    ],
    "what is returned goes back to its place": [
        (
            QUEUE,
            [
                *AB,
                delivered("a", 1),
                asked("nack", 1),
                0.5,
                Answered(4),
                delivered("a", 2, 2),
                delivered("b", 3, offset=1),
            ],
        ),
        (QUEUE, [*AB, delivered("a", 1), asked("nack", 1), 1.5, Answered(4), delivered("b", 2, offset=1)]),
        (
            replace(QUEUE, redelivery_delay_ms=100),
            [*AB, delivered("a", 1), asked("nack", 1), 0.5, Answered(4), delivered("b", 2, offset=1)],
        ),
    ],
    "a queue hands out in order": [
        (QUEUE, [*AB, delivered("b", 2, offset=1), delivered("a", 1)]),
        (QUEUE, [*AB, delivered("a", 1), delivered("b", 2, offset=1), delivered("a", 3, attempt=2)]),
        (QUEUE, [RELEASER, *AB, delivered("b", 2, offset=1), 0.5, delivered("a", 3)]),
        (QUEUE, [RELEASER, *AB, delivered("b", 2, offset=1), Left("d", "t"), delivered("a", 3)]),
    ],
    "every lease ends": [(QUEUE, [*LEASED, asked("ack", 1), EMPTY])],
    "a dead letter comes once": [
        (QUEUE, [*LEASED, asked("reject", 1), letter("rejected", 1), ReadThrough(1, "dead"), EMPTY]),
    ],
    "a dead letter tells the truth": [
        (QUEUE, [*LEASED, asked("reject", 1), letter("rejected", 1), ReadThrough(1, "dead")]),
        (
            QUEUE,
            [*LEASED, delivered("a", 2, 2), delivered("a", 3, 3), letter("max_deliveries", 3), ReadThrough(1, "dead")],
        ),
    ],
    "no dead letter is missing": [
        (QUEUE, [*LEASED, asked("reject", 1), Answered(4), letter("rejected", 1), EMPTY, ReadThrough(1, "dead")]),
        (QUEUE, [*LEASED, asked("ack", 1), delivered("a", 2, 2), delivered("a", 3, 3), EMPTY, ReadThrough(1, "dead")]),
        (RETAINING, [*LEASED, asked("reject", 1), Answered(4), EMPTY, DROPPED, ReadThrough(1, "dead")]),
        (
            RETAINING,
            [*LEASED, delivered("a", 2, 2), delivered("a", 3, 3), EMPTY, begun(2, 1, 1), ReadThrough(2, "dead")],
        ),
    ],
    "a record is acked or dead, not both": [
        (QUEUE, [*LEASED, asked("ack", 1), Answered(4), EMPTY, ReadThrough(1, "dead")]),
    ],
    "a partition has one owner in a generation": [
        (STREAM, [begun(), assigned("c", 1, 0), assigned("d", 2, 0), assigned("c", 2, 1)]),
        (OS, [begun(), assigned("c", 1, 0), LOST_POWER, begun(2), assigned("d", 1, 0, life=2)]),
    ],
    "only the owner commits": [
        (STREAM, [begun(), assigned("c", 1, 0), assigned("d", 2, 0), commits("c", 1, 0), Answered(3, "group.fenced")]),
        (STREAM, [begun(), assigned("c", 1, 0), commits("c", 1, 0), assigned("d", 2, 0), Answered(2)]),
        (
            STREAM,
            [
                begun(),
                assigned("c", 1, 0),
                assigned("d", 2, 0),
                commits("c", 1, 0),
                assigned("c", 3, 0),
                Answered(3, "group.fenced"),
            ],
        ),
    ],
    "a group goes on where it committed": [
        (
            STREAM,
            [*FOUR, assigned("c", 1, 0), commits("c", 1, 2), Answered(6), assigned("d", 2, 0), handed("d", 2, 2, "c")],
        ),
        (STREAM, [*FOUR, assigned("c", 1, 0), commits("c", 1, 2), assigned("d", 2, 0), handed("d", 2, 0, "a")]),
        (STREAM, [*FOUR, assigned("c", 1, 0), commits("c", 1, 2), assigned("d", 2, 0), handed("d", 2, 2, "c")]),
        (
            OS,
            [
                *FOUR,
                assigned("c", 1, 0),
                commits("c", 1, 2),
                Answered(6),
                LOST_POWER,
                begun(2, end=4),
                assigned("d", 2, 0, life=2),
                handed("d", 2, 1, "b", life=2),
            ],
        ),
        (STREAM, [*LATE_COMMIT, assigned("c", 2), assigned("c", 3, 0), Answered(8, "group.fenced")]),
    ],
    "a group reads in order": [
        (STREAM, [*FOUR, assigned("c", 1, 0), handed("c", 1, 0, "a"), handed("c", 1, 1, "b", "c")]),
        (
            STREAM,
            [
                *FOUR,
                assigned("c", 1, 0),
                handed("c", 1, 0, "a"),
                handed("c", 1, 1, "b"),
                Asked(1, "c", "t", 0, 0, 1, "nack", group="g", generation=1),
                handed("c", 1, 2, "c"),
                handed("c", 1, 0, "a"),
            ],
        ),
        (replace(STREAM, is_kept=False), [*FOUR, assigned("c", 1, 0), handed("c", 1, 0, "a"), handed("c", 1, 2, "c")]),
    ],
}


def cases(table: dict[str, list[tuple[TopicPromise, list[Step]]]]) -> list[object]:
    return [
        pytest.param(name, topic, steps, id=f"{name}, {number}")
        for name, several in table.items()
        for number, (topic, steps) in enumerate(several)
    ]


@pytest.mark.parametrize("table", [BREAKING, KEEPING])
def test_every_invariant_has_histories(table: dict[str, object]) -> None:
    assert list(table) == list(INVARIANTS)


@pytest.mark.parametrize(("name", "topic", "steps"), cases(BREAKING))
def test_a_history_that_breaks_an_invariant_is_found(name: str, topic: TopicPromise, steps: list[Step]) -> None:
    assert name in [finding.name for finding in broken(written(topic, *steps))]


@pytest.mark.parametrize(("name", "topic", "steps"), cases(KEEPING))
def test_a_history_that_keeps_it_is_not(name: str, topic: TopicPromise, steps: list[Step]) -> None:
    assert broken(written(topic, *steps)) == []


def test_the_error_names_the_invariant_and_shows_the_events() -> None:
    history = written(STREAM, Joined(1, "c", "t"), *AB, 3.5, confirmed("a"), read("b"))
    with pytest.raises(
        InvariantBroken, match=r"(?s)never changes: offset 0 .* was 'a' and is 'b'.*4 3\.5.*Confirmed"
    ) as raised:
        check(history)
    assert raised.value.name == "a committed record never changes"
    assert [entry.index for entry in raised.value.findings[0].entries] == [4, 5]
    check(written(STREAM, *AB, confirmed("a")))
