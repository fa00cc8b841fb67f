"""What the exchanges have in common whose bindings are predicates: the bindings, their index, and why one matches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from linn.core.batch.steps import Steps, at_once
from linn.core.routing.binding_table import BindingTable
from linn.core.routing.exchange import Binding, Subject
from linn.core.routing.explanation import Explanation
from linn.core.routing.predicate.predicate import Predicate
from linn.plugins.predicate_index import PredicateIndex


class PredicateExchange(ABC):
    """Matches the bindings whose predicates are true. A type of exchange says what a binding's predicate is."""

    def __init__(self, name: str, settings: object) -> None:
        self.name = name
        self._table = BindingTable()
        self._index = PredicateIndex()

    @abstractmethod
    def predicate_of(self, binding: Binding) -> Predicate:
        """What a binding says. Raises BindingInvalid where it says nothing that this type understands."""

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        predicate = self.predicate_of(binding)
        number = self._table.add(binding)
        if number is not None:
            self._index.add(number, predicate)

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it is there."""
        number = self._table.remove(binding)
        if number is not None:
            self._index.remove(number, self.predicate_of(binding))

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return self._table.all()

    def fields(self) -> frozenset[str]:
        """What the predicates read beyond routing key and labels."""
        return self._index.fields()

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings whose predicates are true."""
        return at_once(self.match_in_steps(subject))

    def match_in_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        """As `match`, in steps."""
        numbers = yield from self._index.matching(subject)
        return self._table.numbered(numbers) if numbers else ()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Which parts of the binding's predicate are true."""
        return self.predicate_of(binding).explain(subject)
