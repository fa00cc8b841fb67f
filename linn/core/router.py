"""Where a batch goes: an exchange's answers, once per distinct (routing key, labels), remembered within a bound.

Law: the routes of a batch whose encoded pairs were seen before cost one dictionary look-up; a change of bindings
forgets all answers. What an exchange of a plugin raises fails that publish, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from linn.core.batch import RecordBatch, indexes_by_pair
from linn.core.batch_builder import take_batch
from linn.core.errors import LinnError, TopicError
from linn.core.exchange import Binding, Exchange
from linn.core.routes import Pair

CACHED_PAIRS_MAX = 65_536
"""Answers for single pairs: about 20 MB with labels of a usual size. When it is full it starts again."""
CACHED_PAIR_CHARACTERS_MAX = 1_024
"""Larger pairs are asked about each time, or a client could fill the memory with labels of megabytes."""
CACHED_BATCHES_MAX = 4_096
"""Answers for whole sets of pairs, by their encoded bytes."""
CACHED_ROUTES_BYTES_MAX = 4_096
"""Only sets of pairs up to this size are remembered as a whole: larger ones seldom come twice."""

Destinations = tuple[str, ...]


class Router:
    """One exchange and its answers."""

    def __init__(self, name: str, kind: str, make: Callable[[], Exchange]) -> None:
        self.name = name
        self.kind = kind
        self._make = make
        self._exchange = make()
        self._by_pair: dict[tuple[object, ...], Destinations] = {}
        self._by_routes: dict[bytes, tuple[Destinations, ...]] = {}

    def check(self, binding: Binding) -> None:
        """Whether `bind` would take a binding; nothing changes. Raises BindingInvalid."""
        self._make().bind(binding)

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        self._exchange.bind(binding)
        self.forget()

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it is there."""
        self._exchange.unbind(binding)
        self.forget()

    def unbind_topic(self, topic: str) -> None:
        """Remove all bindings of a topic."""
        for binding in self.bindings():
            if binding.topic == topic:
                self._exchange.unbind(binding)
        self.forget()

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return self._exchange.bindings()

    def forget(self) -> None:
        """Forget all answers: bindings, or what they are about, have changed."""
        self._by_pair.clear()
        self._by_routes.clear()

    def route(self, batch: RecordBatch) -> list[tuple[str, RecordBatch]]:
        """The batch for each topic: itself where all its records go there, else those that do, as a new batch.

        Raises:
            BatchMalformed: its routes or columns can't be read. TopicError: the exchange failed.
        """
        by_pair = self._destinations(batch)
        first = by_pair[0]
        if all(destinations == first for destinations in by_pair):
            return [(topic, batch) for topic in first]
        indexes = indexes_by_pair(batch)
        parts: list[tuple[str, RecordBatch]] = []
        for topic in dict.fromkeys(topic for destinations in by_pair for topic in destinations):
            chosen = [place for place, destinations in enumerate(by_pair) if topic in destinations]
            if len(chosen) == len(by_pair):
                parts.append((topic, batch))
                continue
            taken = sorted(index for place in chosen for index in indexes[place])
            if taken:
                parts.append((topic, take_batch(batch, taken)))
        return parts

    def _destinations(self, batch: RecordBatch) -> tuple[Destinations, ...]:
        """The topics of each of the batch's pairs."""
        routes = batch.routes
        key = bytes(routes) if routes is not None and len(routes) <= CACHED_ROUTES_BYTES_MAX else None
        if key is not None and (known := self._by_routes.get(key)) is not None and len(known) == batch.pair_count:
            return known
        answer = tuple(self._ask(pair) for pair in batch.pairs())
        if key is not None:
            if len(self._by_routes) >= CACHED_BATCHES_MAX:
                self._by_routes.clear()
            self._by_routes[key] = answer
        return answer

    def _ask(self, pair: Pair) -> Destinations:
        # The types are part of the key: for Python True, 1 and 1.0 are one.
        key = (pair, *(type(value) for _, value in pair.labels))
        known = self._by_pair.get(key)
        if known is None:
            try:
                known = _topics_of(self._exchange.route(pair))
            except LinnError:
                raise
            except Exception as error:
                raise TopicError(
                    f"exchange {self.name} ({self.kind}) failed: {type(error).__name__}: {error}"
                ) from error
            if _size_of(pair) <= CACHED_PAIR_CHARACTERS_MAX:
                if len(self._by_pair) >= CACHED_PAIRS_MAX:
                    self._by_pair.clear()
                self._by_pair[key] = known
        return known


def _topics_of(answer: object) -> Destinations:
    """What an exchange answered. Raises TypeError where it isn't topics' names."""
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise TypeError(f"route() returned a {type(answer).__name__}, not a sequence of names")
    topics = tuple(answer)
    if not all(type(topic) is str for topic in topics):
        raise TypeError("route() returned what is no topic's name")
    return topics


def _size_of(pair: Pair) -> int:
    size = len(pair.routing_key)
    for name, value in pair.labels:
        size += len(name) + (len(value) if isinstance(value, str) else 8)
    return size
