"""RedisParticipant: effects in a Redis database, sent with their marks in one MULTI/EXEC.

Laws: the application queues commands, and nothing is sent before the commit. The state of a place is one key, which the
commit watches while it reads the marks, so that the EXEC does nothing if another process was faster. The state names
its writer, so that after a lost connection it is known whether the EXEC took place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from linn.client.participants.driver import require_driver
from linn.client.participants.participant import NO_FLOOR, Floor, Mark, Place
from linn.client.participants.spans import Span, applied_parts, planned_change, raised_floor
from linn.core.errors.tree import TransactionEnded

if TYPE_CHECKING:
    import redis
    from redis.client import Pipeline

_INSTANCES = "linn:instances"
"""Key of the counter that numbers the instances of participants."""
_ENDS = ("execute", "reset", "close", "discard")
"""Methods of a pipeline that would end the transaction."""


class _State(NamedTuple):
    """State of a place, and the commit that wrote it: (instance, number)."""

    floor: Floor
    marks: list[Mark]
    writer: tuple[int, int]


class RedisParticipant:
    """Effects in a Redis database. The handle is a pipeline: queue commands, and leave `execute` to linn.

    Example:
        participant = RedisParticipant("redis://127.0.0.1:6379/0")
    """

    def __init__(self, url: str = "redis://127.0.0.1:6379", **options: Any) -> None:
        require_driver("redis", "RedisParticipant", "redis")
        import redis

        self._client: redis.Redis = redis.Redis.from_url(url, **options)
        self._instance = 0
        self._commits = 0
        self._handle: Pipeline | None = None
        self._key = ""
        self._place: Place
        self._state: _State

    def open(self) -> None:
        """Connect. Raises redis.RedisError."""
        self._instance = int(self._client.incr(_INSTANCES))

    def floor(self, place: Place) -> Floor:
        """The floor of a place; `NO_FLOOR` if nothing was ever committed. Raises redis.RedisError."""
        return _state_of(self._client.get(_key_of(place))).floor

    def begin(self, place: Place) -> Pipeline:
        """Read the state of the place, and return a pipeline that queues commands. Raises redis.RedisError."""
        self._place, self._key = place, _key_of(place)
        self._state = _state_of(self._client.get(self._key))
        handle = self._client.pipeline(transaction=True)
        handle.multi()  # From here on commands are queued, and WATCH is refused.
        for name in _ENDS:
            if hasattr(handle, name):
                setattr(handle, name, _refuse)
        self._handle = handle
        return handle

    def applied(self, mark: Mark) -> Sequence[Span]:
        """Return the parts of a mark that had their effect when the transaction began. Raises TransactionEnded."""
        self._held()
        stored = [(row.first, row.end) for row in self._state.marks if row.epoch == mark.epoch]
        return applied_parts(mark, self._state.floor, stored)

    def prepare(self) -> None:
        """Check that Redis answers. Raises redis.RedisError, TransactionEnded."""
        self._held()
        self._client.ping()

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        """Send effects, marks and floor. Raises ParticipantConflict, TransactionEnded, redis.RedisError."""
        from redis import WatchError

        handle = self._held()
        self._commits += 1
        while True:
            try:
                if self._send(handle, marks, floor):
                    break
            except WatchError:  # Another process wrote the state, or the connection was lost: read it again.
                continue
        self.rollback()

    def _send(self, handle: Pipeline, marks: Sequence[Mark], floor: Floor) -> bool:
        """Send everything in one transaction, unless marks are stored; return True if it took place, now or before."""
        writer = (self._instance, self._commits)
        sending: Any
        with self._client.pipeline(transaction=True) as sending:
            sending.watch(self._key)
            now = _state_of(sending.get(self._key))
            if now.writer == writer:
                return True
            floor = raised_floor(now.floor, floor)
            removed, added = planned_change(self._place, marks, now.floor, floor, now.marks)
            kept = [*(mark for mark in now.marks if mark not in removed), *added]
            sending.multi()
            sending.command_stack = list(handle.command_stack)
            sending.scripts = set(handle.scripts)
            sending.set(self._key, json.dumps({"floor": floor, "marks": kept, "writer": writer}))
            sending.execute()
        return True

    def _held(self) -> Pipeline:
        """Return the handle, in its transaction."""
        assert self._handle is not None, "no transaction was begun"
        if not self._handle.explicit_transaction:
            raise TransactionEnded("the transaction was ended by the application, without its marks")
        return self._handle

    def rollback(self) -> None:
        """Drop the queued commands, if any."""
        handle, self._handle = self._handle, None
        if handle is not None:
            for name in _ENDS:
                handle.__dict__.pop(name, None)
            handle.reset()

    def close(self) -> None:
        """Drop the queued commands, and disconnect."""
        self.rollback()
        self._client.close()


def _key_of(place: Place) -> str:
    return f"linn:place:{place.topic_id}:{place.partition}:{place.reader}"


def _state_of(value: Any) -> _State:
    """Decode the state in a key's value."""
    if value is None:
        return _State(NO_FLOOR, [], (0, 0))
    found = json.loads(value)
    first, second = found["writer"]
    return _State(Floor(*found["floor"]), [Mark(*mark) for mark in found["marks"]], (first, second))


def _refuse(*arguments: object, **options: object) -> NoReturn:
    raise TransactionEnded("this would end the transaction, which is the participant's: leave it to linn")
