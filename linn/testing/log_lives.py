"""LogLives: the contents that each life of a broker found on its disk, and possible losses at its end.

Laws: a recovered log is a prefix of the earlier one. Offsets at or beyond a recovered end are assigned anew, so a
record's place is its offset together with the life since which that offset is in use: its **era**.

Possible losses of a topic at the end of a life, by its durability:

| durability | stopped | killed | lost power, sync failed |
|---|---|---|---|
| memory | all | all | all |
| os | nothing | nothing | anything |
| interval | nothing | nothing | anything seen less than `flush_interval` and some slack before the end |
| always | nothing | nothing | whatever was not confirmed as committed |
"""

from __future__ import annotations

from linn.testing.history import Ended, Entry, History, Recovered, TopicPromise

Place = tuple[str, int]
"""(topic, partition)."""


class LogLives:
    """Tracks lives and their losses; takes every entry of a history, in order."""

    def __init__(self, history: History) -> None:
        self.topics = history.topics
        self.life = 0
        """The latest life that began."""
        self._bounds: dict[Place, dict[int, tuple[int, int]]] = {}
        self._ends: dict[int, Entry] = {}

    def observe(self, entry: Entry) -> None:
        """Record beginnings and ends of lives."""
        match entry.event:
            case Recovered(life, topic, partition, start, end):
                self.life = max(self.life, life)
                self._bounds.setdefault((topic, partition), {})[life] = start, end
            case Ended(life):
                self._ends[life] = entry

    def era(self, place: Place, life: int, offset: int) -> int:
        """Return the life since which the offset is in use, as seen in the given life."""
        if self.topics[place[0]].durability == "memory":
            return life
        bounds = self._bounds.get(place, {})
        for earlier in range(life, 0, -1):
            if earlier in bounds and bounds[earlier][1] <= offset:
                return earlier
        return 0

    def lost_in(self, place: Place, life: int, offset: int) -> int | None:
        """Return the first life without the record that an earlier life had at this offset; None: the record still
        exists.
        """
        bounds = self._bounds.get(place, {})
        for later in range(life + 1, self.life + 1):
            if later in bounds and bounds[later][1] <= offset:
                return later
        return None

    def known_before(self, place: Place, life: int) -> int:
        """Return the latest life before this one whose recovered content is known; 0: none."""
        return max((earlier for earlier in self._bounds.get(place, {}) if earlier < life), default=0)

    def may_lose(self, topic: str, seen_at_s: float, since: int, until: int, *, committed: bool = True) -> Entry | None:
        """Return the end of a life in [since, until) that may have lost something seen at that time."""
        promise = self.topics[topic]
        for life in range(since, until):
            end = self._ends.get(life)
            if end is not None and _may_take(promise, end, seen_at_s, committed):
                return end
        return None

    def lost_power(self, since: int, until: int) -> bool:
        """Whether the end of a life in [since, until) may have lost unsynced bytes."""
        ends = [self._ends[life].event for life in range(since, until) if life in self._ends]
        return any(isinstance(end, Ended) and _is_hard(end) for end in ends)


def _is_hard(end: Ended) -> bool:
    return end.how in ("lost power", "sync failed")


def _may_take(promise: TopicPromise, end: Entry, seen_at_s: float, committed: bool) -> bool:
    assert isinstance(end.event, Ended)
    if promise.durability == "memory":
        return True
    if not _is_hard(end.event):
        return False
    if promise.durability == "interval":
        since_s = end.event.since_s if end.event.since_s is not None else end.at_s
        return seen_at_s + promise.flush_interval_s + promise.flush_slack_s > since_s
    return promise.durability == "os" or not committed
