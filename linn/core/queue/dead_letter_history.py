"""The history of a dead letter: in which topics it died, why, how often and when. It ends cycles of dead letters.

Law: a record that dies again in a topic, after it has come round without a rejection, is in a cycle: no decision would
end it. A consumer that rejects it decides, so a cycle with a rejection goes on.

The label's text is JSON: [topic, reason, times, first time, last time] for each topic and reason, the latest last, with
times in ms since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from linn.core.batch.record import LabelValue
from linn.core.batch.routes import TEXT_BYTES_MAX
from linn.core.queue.dead_letter import DeadReason

ENTRIES_MAX = 32
"""Limit of the entries; the oldest goes first. A cycle of more topics than that is not noticed."""


class Death(NamedTuple):
    """The deaths of a record in one topic for one reason."""

    topic: str
    reason: str
    times: int
    first_ms: int
    last_ms: int


_DECODER = msgspec.json.Decoder(list[Death])


def deaths_of(label: LabelValue | None) -> list[Death]:
    """The deaths in a label, the latest last; none if there is no label, or none that can be read."""
    try:
        return _DECODER.decode(label) if isinstance(label, str) else []
    except msgspec.DecodeError:
        return []


def label_of(deaths: Sequence[Death]) -> str:
    """The label's text, without the oldest deaths if it would be too long."""
    deaths = deaths[-ENTRIES_MAX:]
    while len(text := msgspec.json.encode(deaths)) > TEXT_BYTES_MAX:
        deaths = deaths[1:]
    return text.decode()


def with_death(deaths: Sequence[Death], topic: str, reason: DeadReason, now_ms: int) -> list[Death]:
    """The history after another death."""
    same = [death for death in deaths if (death.topic, death.reason) == (topic, reason.label)]
    times, first_ms = (same[0].times, same[0].first_ms) if same else (0, now_ms)
    others = [death for death in deaths if death not in same]
    return [*others, Death(topic, reason.label, times + 1, first_ms, now_ms)]


def is_cycle(deaths: Sequence[Death], topic: str, reason: DeadReason) -> bool:
    """Whether a death in a topic closes a cycle without a rejection."""
    reasons = {reason.label}
    for death in reversed(deaths):
        reasons.add(death.reason)
        if death.topic == topic:
            return DeadReason.REJECTED.label not in reasons
    return False
