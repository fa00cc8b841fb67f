"""The base of exchanges whose bindings are predicates: their bindings, index and explanations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from linn.api import Binding, BindingTable, Explanation, Predicate, Steps, Subject, run_steps
from linn.plugins.predicate_index import PredicateIndex


class PredicateExchange(ABC):
    """An exchange whose bindings match messages by a predicate. A subclass derives the predicate from a binding."""

    def __init__(self, name: str, settings: object) -> None:
        self.name = name
        self._table = BindingTable()
        self._index = PredicateIndex()

    @abstractmethod
    def predicate_of(self, binding: Binding) -> Predicate:
        """Derive the predicate of a binding. Raises BindingInvalid."""

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        predicate = self.predicate_of(binding)
        number = self._table.add(binding)
        if number is not None:
            self._index.add(number, predicate)

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it exists."""
        number = self._table.remove(binding)
        if number is not None:
            self._index.remove(number, self.predicate_of(binding))

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return self._table.all()

    def fields(self) -> frozenset[str]:
        """The fields that the predicates read beyond routing key and labels."""
        return self._index.fields()

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings whose predicates are true."""
        return run_steps(self.match_in_steps(subject))

    def match_in_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        """Match in steps."""
        numbers = yield from self._index.matching(subject)
        return self._table.numbered(numbers) if numbers else ()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Explain which parts of the binding's predicate are true."""
        return self.predicate_of(binding).explain(subject)
