"""The built-in exchanges: direct, fanout and topic, as in AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from linn.core.batch.steps import Steps, at_once
from linn.core.errors.tree import BindingInvalid, LimitExceeded
from linn.core.plugins.hookspecs import hookimpl
from linn.core.routing.binding_table import BindingTable
from linn.core.routing.exchange import Binding, ExchangeKind, Subject
from linn.core.routing.explanation import Explanation
from linn.core.routing.predicate.explanation import explain_tree
from linn.core.routing.predicate.tree import Comparison
from linn.core.routing.subject_field import SubjectField
from linn.plugins.pattern_explanation import explain_pattern
from linn.plugins.pattern_index import PatternIndex

PATTERN_WORDS_MAX = 64
"""Words of a binding's pattern. RabbitMQ's keys end at 255 bytes, so at 128 words; nobody has been seen near it."""


KEY_WORDS_MAX = 128
"""Words of a routing key that a topic exchange looks at: RabbitMQ's keys have no more."""


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These exchanges have no settings but their type."""


class KeyedExchange:
    """What exchanges have in common whose bindings have a key and no arguments. An exchange adds its index."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        self.name = name
        self._table = BindingTable()

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        if binding.arguments:
            unknown = ", ".join(sorted(binding.arguments))
            raise BindingInvalid(f"exchange {self.name} knows no binding arguments, but got {unknown}")
        self.check_key(binding.key)
        number = self._table.add(binding)
        if number is not None:
            self.added(number, binding)

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it is there."""
        number = self._table.remove(binding)
        if number is not None:
            self.removed(number, binding)

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return self._table.all()

    def fields(self) -> frozenset[str]:
        """Nothing but the routing key counts."""
        return frozenset()

    def check_key(self, key: str) -> None:
        """Raises BindingInvalid where the key means nothing here."""

    def added(self, number: int, binding: Binding) -> None:
        """Put a new binding into the index."""

    def removed(self, number: int, binding: Binding) -> None:
        """Take a binding out of the index."""


class DirectExchange(KeyedExchange):
    """A binding matches the routing key that is equal to its own."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        super().__init__(name, settings)
        self._by_key: dict[str, dict[int, Binding]] = {}

    def added(self, number: int, binding: Binding) -> None:
        """Put a new binding into the index."""
        self._by_key.setdefault(binding.key, {})[number] = binding

    def removed(self, number: int, binding: Binding) -> None:
        """Take a binding out of the index."""
        same_key = self._by_key[binding.key]
        del same_key[number]
        if not same_key:
            del self._by_key[binding.key]

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings of that key."""
        found = self._by_key.get(subject.routing_key)
        return tuple(found.values()) if found is not None else ()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Whether the key is that of the binding."""
        return explain_tree(Comparison(SubjectField("routing_key"), "=", binding.key), subject)


class FanoutExchange(KeyedExchange):
    """Every binding matches."""

    def match(self, subject: Subject) -> Sequence[Binding]:
        """All bindings."""
        return self._table.all()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Nothing is asked."""
        return Explanation("everything", True, "a fanout has no conditions")


class TopicExchange(KeyedExchange):
    """Patterns of words separated by dots: `*` is exactly one word, `#` any number of them, none included."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        super().__init__(name, settings)
        self._index = PatternIndex()

    def check_key(self, key: str) -> None:
        """Raises BindingInvalid where there are too many words."""
        if key.count(".") >= PATTERN_WORDS_MAX:
            raise BindingInvalid(f"a pattern of {key.count('.') + 1} words, more than {PATTERN_WORDS_MAX}")

    def added(self, number: int, binding: Binding) -> None:
        """Put a new binding into the index."""
        self._index.add(number, binding.key)

    def removed(self, number: int, binding: Binding) -> None:
        """Take a binding out of the index."""
        self._index.remove(number, binding.key)

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings whose patterns match. Raises LimitExceeded where the key has more than KEY_WORDS_MAX words."""
        return at_once(self.match_in_steps(subject))

    def match_in_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        """As `match`, in steps."""
        key = subject.routing_key
        if key.count(".") >= KEY_WORDS_MAX:
            raise LimitExceeded(f"a routing key of {key.count('.') + 1} words, more than {KEY_WORDS_MAX}")
        # An empty key is one empty word, as in RabbitMQ: `*` matches it.
        numbers = yield from self._index.matching(key)
        return self._table.numbered(numbers) if numbers else ()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """What the words of the pattern stand for, or where the key parts from it."""
        return explain_pattern(binding.key, subject.routing_key)


@hookimpl
def linn_register_exchange() -> list[ExchangeKind]:
    """`type = "direct"`, `"fanout"` and `"topic"`."""
    return [
        ExchangeKind("direct", NoSettings, DirectExchange),
        ExchangeKind("fanout", NoSettings, FanoutExchange),
        ExchangeKind("topic", NoSettings, TopicExchange),
    ]
