"""Routing of batches: one exchange with the exchanges behind it, and a bounded cache of its answers.

An exchange finds the bindings that match; the router turns them into topics. A binding may lead to another exchange,
which is asked in turn, and an exchange in which nothing matches may have an alternate, which is asked instead. As in
RabbitMQ, a topic gets a record once, however many paths lead to it, and the alternate is used if none of the exchange's
own bindings matched, whatever happened to the record behind the bindings that did.

Laws: the routes of a batch whose encoded pairs were seen before cost one dictionary look-up; a change of any binding
clears the cache. An exception of a plugin's exchange fails that publish, and no other.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import body_slice
from linn.core.batch.routes import Pair
from linn.core.batch.steps import STEP_RECORDS, Steps, run_steps
from linn.core.errors.texts import one_line
from linn.core.errors.tree import LimitExceeded, LinnError, TopicError
from linn.core.routing.budget import PublishBudget
from linn.core.routing.exchange import Binding, Exchange, MatchesInSteps, Subject, Target
from linn.core.routing.explanation import Explanation, explain
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.routed_batch import Destinations, RoutedBatch
from linn.core.routing.subject_columns import Content, ContentFields, check_fields

CACHED_PAIRS_MAX = 65_536
"""Cached answers for single pairs: about 20 MB with labels of a usual size. A full cache is cleared."""
CACHED_PAIR_CHARACTERS_MAX = 1_024
"""Longest pair that counts as one answer; larger ones are limited by their characters, or a client could fill the
memory with labels of megabytes; larger contents are not cached.
"""
CACHED_LARGE_CHARACTERS_MAX = 4 << 20
"""Limit of the characters of cached larger pairs: twice as many as one batch can hold. A full cache is cleared."""
CACHED_NAMES_MAX = 1 << 22
"""Limit of the topic names in all distinct answers together: 32 MiB of pointers."""
CACHED_BATCHES_MAX = 4_096
"""Cached answers for whole sets of pairs, by their encoded bytes."""
CACHED_ROUTES_BYTES_MAX = 4_096
"""Largest encoded set of pairs that is cached as a whole: larger ones seldom recur."""
ROUTING_S_MAX = 2.0
"""Time limit for routing one batch: three times what 65,535 distinct keys take with ordinary patterns. Malicious
patterns would take a minute.
"""


class _Time:
    """Seconds that exchanges have spent on one batch."""

    __slots__ = ("spent_s",)

    def __init__(self) -> None:
        self.spent_s = 0.0


class _Refused(Exception):
    """An exchange raised for one subject."""

    def __init__(self, error: LinnError) -> None:
        super().__init__(error.text)
        self.error = error


class Router:
    """One exchange and its cached answers."""

    def __init__(
        self,
        name: str,
        kind: str,
        make: Callable[[], Exchange],
        graph: ExchangeGraph[Router] | None = None,
        alternate: str | None = None,
        settings: Mapping[str, Any] | None = None,
        owner: str | None = None,
    ) -> None:
        """Make a router. `graph` holds the other exchanges; the caller adds this one to it. `settings` are for display.

        `owner` is the plugin that registered the type, in a form for people; None: linn itself.
        """
        self.name = name
        self.kind = kind
        self.alternate = alternate
        self.settings = settings or {}
        self.is_internal = False
        """Whether clients can't publish to it."""
        self.is_transient = False
        """Whether it ends with the broker that made it."""
        self.on_unused: Callable[[], None] | None = None
        """Called when the last binding was removed."""
        self._is_bound = False
        self._owner = owner
        self._make = make
        self._exchange = exchange = make()
        self._in_steps = exchange.match_in_steps if isinstance(exchange, MatchesInSteps) else None
        self._graph: ExchangeGraph[Router] = graph if graph is not None else ExchangeGraph()
        self._exits: set[str] | None = set()
        """Exchanges that bindings lead to; None: to be looked up."""
        self._version = -1
        self._fields: ContentFields | None = None
        self._sees_content = False
        self._by_pair: dict[tuple[object, ...], Destinations] = {}
        self._known: dict[Destinations, Destinations] = {}
        """Each distinct answer once: a fanout to 10,000 topics has one, and not one per pair."""
        self._known_names = 0
        self._by_large_pair: dict[tuple[object, ...], Destinations] = {}
        self.remembered_characters = 0
        """Characters of cached large pairs."""
        self._by_routes: dict[bytes, tuple[Destinations, ...]] = {}

    # --- bindings ---

    def check(self, binding: Binding) -> None:
        """Check that `bind` would accept a binding; changes nothing. Raises BindingInvalid."""
        self._check_target(binding.target)
        self._make().bind(binding)

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        self._check_target(binding.target)
        self._exchange.bind(binding)
        self._is_bound = True
        if binding.target.is_exchange and self._exits is not None:
            self._exits.add(binding.target.name)
        self._graph.changed()

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it exists."""
        self._exchange.unbind(binding)
        if binding.target.is_exchange:
            self._exits = None
        self._graph.changed()
        if self.on_unused is not None and self._is_bound and not self.bindings():
            self._is_bound = False
            self.on_unused()

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return self._exchange.bindings()

    def exits(self) -> Iterable[str]:
        """The exchanges that a message may be passed on to, in a stable order."""
        if self._exits is None:
            self._exits = {binding.target.name for binding in self.bindings() if binding.target.is_exchange}
        found = sorted(self._exits)
        if self.alternate is not None:
            found.append(self.alternate)
        return found

    def _check_target(self, target: Target) -> None:
        if target.is_exchange:
            self._graph.check_link(self.name, target.name)

    # --- routing ---

    def route_steps(self, batch: RecordBatch, budget: PublishBudget) -> Steps[RoutedBatch]:
        """Find the topics of each of the batch's records, in steps between which other tasks may run.

        Bindings may change meanwhile: each record is routed by the bindings at the moment when it is examined. Records
        for which an exchange raises are `refusals` of the result.

        Raises:
            BatchMalformed: its routes or columns can't be read.
            LimitExceeded: the exchanges took longer than ROUTING_S_MAX, or it is over the budget.
        """
        time = _Time()
        while True:
            self._refresh()
            fields = self._fields
            asking = self._ask_pairs(batch, time) if fields is None else self._ask_contents(batch, fields, time, budget)
            routed = yield from asking
            if routed is not None:
                return routed

    def route(self, batch: RecordBatch, budget: PublishBudget | None = None) -> list[tuple[str, RecordBatch]]:
        """Find the batch for each topic without a pause: for tools. Raises as `route_steps`."""
        budget = budget or PublishBudget()
        routed = run_steps(self.route_steps(batch, budget))
        for error in routed.refusals():
            raise error
        return run_steps(routed.part_steps(budget))

    def _refresh(self) -> None:
        """Clear the cache if a binding has changed since its answers were given."""
        graph = self._graph
        if self._version == graph.version:
            return
        self._forget()
        names: set[str] = set()
        for router in graph.reached_from(self):
            names |= router.look_for_fields()
        self._fields = ContentFields(names) if names else None
        self._version = graph.version

    def _forget(self) -> None:
        self._by_pair.clear()
        self._by_routes.clear()
        self._known.clear()
        self._known_names = 0
        self._forget_large()

    def _forget_large(self) -> None:
        self._by_large_pair.clear()
        self.remembered_characters = 0

    def look_for_fields(self) -> frozenset[str]:
        """Ask the exchange which fields its bindings examine, besides routing key and labels. Raises TopicError."""
        try:
            fields = frozenset(self._exchange.fields())
            check_fields(fields)
        except Exception as error:
            raise self._failure(error) from error
        self._sees_content = bool(fields)
        return fields

    def _of_pair(self, pair: Pair, time: _Time) -> Steps[Destinations]:
        key = _exact(pair)
        known = self._found(key)
        if known is None:
            known = yield from self._resolve(Subject(pair.routing_key, dict(pair.labels)), key, pair, (), time)
        return known

    def _found(self, key: tuple[object, ...]) -> Destinations | None:
        found = self._by_pair.get(key)
        return found if found is not None or not self._by_large_pair else self._by_large_pair.get(key)

    def _ask_pairs(self, batch: RecordBatch, time: _Time) -> Steps[RoutedBatch | None]:
        """Ask about each pair. None: bindings examine more than pairs by now."""
        routes, version = batch.routes, self._version
        key = bytes(routes) if routes is not None and len(routes) <= CACHED_ROUTES_BYTES_MAX else None
        if key is not None and (known := self._by_routes.get(key)) is not None and len(known) == batch.pair_count:
            return RoutedBatch(batch, known, batch.route_index if len(known) > 1 else None)
        answers, errors = list[Destinations](), dict[int, LinnError]()
        for pair in batch.pairs():
            if answers:
                yield
                self._refresh()
                if self._fields is not None:
                    return None
            try:
                answers.append((yield from self._of_pair(pair, time)))
            except _Refused as refused:
                errors[len(answers)] = refused.error
                answers.append(())
        if key is not None and self._graph.version == version and not errors:
            if len(self._by_routes) >= CACHED_BATCHES_MAX:
                self._by_routes.clear()
            self._by_routes[key] = tuple(answers)
        return RoutedBatch(batch, answers, batch.route_index, errors)

    def _ask_contents(
        self, batch: RecordBatch, fields: ContentFields, time: _Time, budget: PublishBudget
    ) -> Steps[RoutedBatch | None]:
        """Ask about each distinct (pair, content). None: bindings examine other fields by now."""
        budget.look_into(batch)
        exact, which = [_exact(pair) for pair in batch.pairs()], batch.route_index
        answers, errors = list[Destinations](), dict[int, LinnError]()
        numbers, number_of = array("I"), dict[int, int]()
        kinds: dict[tuple[int, Content], int] = {}
        for piece in batch.body().pieces(range(batch.count), STEP_RECORDS):
            first, last = piece[0], piece[-1] + 1
            rows = fields.rows(batch if last - first == batch.count else body_slice(batch, first, last))
            for kind in zip(which[first:last] if which is not None else repeat(0), rows, strict=False):
                number = kinds.get(kind)
                if number is None:
                    yield
                    self._refresh()
                    if self._fields is None or self._fields.names != fields.names:
                        return None
                    asking = self._of_content(batch.pairs()[kind[0]], exact[kind[0]], fields, kind[1], time)
                    number = len(answers)
                    try:
                        answer = yield from asking
                        number = number_of.setdefault(id(answer), number)
                    except _Refused as refused:
                        answer, errors[number] = (), refused.error
                    if number == len(answers):
                        answers.append(answer)
                    if len(kinds) >= CACHED_PAIRS_MAX:
                        kinds.clear()
                    kinds[kind] = number
                numbers.append(number)
            yield
        return RoutedBatch(batch, answers, numbers, errors)

    def _of_content(
        self,
        pair: Pair,
        exact: tuple[object, ...],
        fields: ContentFields,
        content: Content,
        time: _Time,
    ) -> Steps[Destinations]:
        key = (*exact, content)
        known = self._found(key)
        if known is None:
            subject = fields.subject(pair.routing_key, dict(pair.labels), content)
            known = yield from self._resolve(subject, key, pair, content, time)
        return known

    def _remember(self, key: tuple[object, ...], answer: Destinations, pair: Pair, content: Content) -> Destinations:
        """Cache an answer unless it is too large; returns it, or an equal one that is already cached."""
        size = _size_of(pair)
        if content:
            size += sum([len(value) for value in content if type(value) is bytes])
        if size > CACHED_PAIR_CHARACTERS_MAX:
            if not content:
                self._remember_large(key, answer, size)
            return answer
        if len(self._by_pair) >= CACHED_PAIRS_MAX or self._known_names > CACHED_NAMES_MAX:
            self._forget()
        known = self._known.get(answer)
        if known is None:
            known = self._known[answer] = answer
            self._known_names += len(answer)
        self._by_pair[key] = known
        return known

    def _remember_large(self, key: tuple[object, ...], answer: Destinations, size: int) -> None:
        size += sum(map(len, answer))
        if self.remembered_characters + size > CACHED_LARGE_CHARACTERS_MAX:
            self._forget_large()
        if size <= CACHED_LARGE_CHARACTERS_MAX:
            self._by_large_pair[key] = answer
            self.remembered_characters += size

    # --- asking ---

    def _resolve(
        self,
        subject: Subject,
        key: tuple[object, ...],
        pair: Pair,
        content: Content,
        time: _Time,
    ) -> Steps[Destinations]:
        """Find the topics for one subject, and cache them under `key`.

        Raises LimitExceeded if the batch has used up its time; _Refused: an exchange raised for this subject.
        """
        monotonic, version = self._graph.monotonic, self._graph.version
        asking = self._asked(subject)
        while True:
            if time.spent_s > ROUTING_S_MAX:
                text = f"exchange {self.name} took more than {ROUTING_S_MAX:g} s for one batch: name fewer keys in one"
                raise LimitExceeded(text)
            began_s = monotonic()
            try:
                next(asking)
            except StopIteration as end:
                answer: Destinations = end.value
                break
            except LinnError as error:
                raise _Refused(error) from error
            finally:
                time.spent_s += monotonic() - began_s
            yield
        # What changed meanwhile may be in it or not: it counts, but for this one only.
        return self._remember(key, answer, pair, content) if self._graph.version == version else answer

    def _asked(self, subject: Subject) -> Steps[Destinations]:
        """Find the topics for one subject through all exchanges on the path, nearest first."""
        # An exchange is shown only the fields that it has asked for, even if another on the path asked for more.
        plain = subject if self._fields is None else Subject(subject.routing_key, subject.labels)
        topics: dict[str, None] = {}
        seen = {self.name}
        for router in (waiting := [self]):
            targets = yield from router.target_steps(subject if router._sees_content else plain)
            for name, is_exchange in targets:
                if not is_exchange:
                    topics[name] = None
                elif name not in seen and (there := self._graph.routers.get(name)) is not None:
                    seen.add(name)
                    waiting.append(there)
        return tuple(topics)

    def target_steps(self, subject: Subject) -> Steps[Sequence[Target]]:
        """The targets in this exchange alone: its alternate if nothing matches. Raises TopicError."""
        matched = yield from self._match_steps(subject)
        if not matched and self.alternate is not None:
            return [Target(self.alternate, is_exchange=True)]
        return [binding.target for binding in matched]

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The matching bindings. Raises TopicError if the exchange fails; its own LinnErrors pass unchanged."""
        return run_steps(self._match_steps(subject))

    def _match_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        try:
            if self._in_steps is not None:
                return _checked((yield from self._in_steps(subject)))
            return _checked(self._exchange.match(subject))
        except LinnError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Explain why one of its bindings matches a subject or not. Raises as `match`."""
        try:
            return explain(self._exchange, subject, binding)
        except LinnError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> TopicError:
        of = f", of {self._owner}," if self._owner is not None else ""
        text = f"exchange {self.name} ({self.kind}){of} failed: {type(error).__name__}: {error}"
        return TopicError(one_line(text))


def _checked(answer: object) -> Sequence[Binding]:
    """Check an exchange's answer. Raises TypeError if it isn't bindings."""
    if not isinstance(answer, list | tuple):
        raise TypeError(f"match() returned a {type(answer).__name__}, not a list or tuple of bindings")
    if not set(map(type, answer)) <= _BINDINGS:
        raise TypeError("match() returned something that is not a binding")
    return answer


_BINDINGS = {Binding}


def _exact(pair: Pair) -> tuple[object, ...]:
    # The types are part of the key: for Python True, 1 and 1.0 are one.
    return (pair, *[type(value) for _, value in pair.labels])


def _size_of(pair: Pair) -> int:
    sizes = [len(name) + (len(value) if isinstance(value, str) else 8) for name, value in pair.labels]
    return len(pair.routing_key) + sum(sizes)
