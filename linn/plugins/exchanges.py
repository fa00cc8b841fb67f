"""The built-in exchanges: direct, fanout and topic, as in AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from linn.api import (
    Binding,
    BindingInvalid,
    BindingTable,
    Comparison,
    ExchangeKind,
    Explanation,
    LimitExceeded,
    Steps,
    Subject,
    SubjectField,
    explain_tree,
    hookimpl,
    run_steps,
)
from linn.plugins.pattern_index import PatternIndex

PATTERN_WORDS_MAX = 64
"""Limit of the words in a binding's pattern, far above real patterns. RabbitMQ's keys have at most 128 words."""


KEY_WORDS_MAX = 128
"""Limit of the words in a routing key on a topic exchange: RabbitMQ's keys have no more."""


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of these exchanges: none besides their type."""


class KeyedExchange:
    """The base of exchanges whose bindings have a key and no arguments. A subclass adds its index."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        self.name = name
        self._table = BindingTable()

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        if binding.arguments:
            unknown = ", ".join(sorted(binding.arguments))
            raise BindingInvalid(f"exchange {self.name} takes no binding arguments, but got {unknown}")
        self.check_key(binding.key)
        number = self._table.add(binding)
        if number is not None:
            self.added(number, binding)

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it exists."""
        number = self._table.remove(binding)
        if number is not None:
            self.removed(number, binding)

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return self._table.all()

    def fields(self) -> frozenset[str]:
        """Return no fields: only the routing key counts."""
        return frozenset()

    def check_key(self, key: str) -> None:
        """Check a binding's key. Raises BindingInvalid if it has no meaning for this exchange."""

    def added(self, number: int, binding: Binding) -> None:
        """Add a binding to the index."""

    def removed(self, number: int, binding: Binding) -> None:
        """Remove a binding from the index."""


class DirectExchange(KeyedExchange):
    """An exchange whose bindings match routing keys equal to their own key."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        super().__init__(name, settings)
        self._by_key: dict[str, dict[int, Binding]] = {}

    def added(self, number: int, binding: Binding) -> None:
        """Add a binding to the index."""
        self._by_key.setdefault(binding.key, {})[number] = binding

    def removed(self, number: int, binding: Binding) -> None:
        """Remove a binding from the index."""
        same_key = self._by_key[binding.key]
        del same_key[number]
        if not same_key:
            del self._by_key[binding.key]

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings with the routing key."""
        found = self._by_key.get(subject.routing_key)
        return tuple(found.values()) if found is not None else ()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Explain whether the routing key equals the binding's key."""
        return explain_tree(Comparison(SubjectField("routing_key"), "=", binding.key), subject)


class FanoutExchange(KeyedExchange):
    """An exchange in which every binding matches."""

    def match(self, subject: Subject) -> Sequence[Binding]:
        """All bindings."""
        return self._table.all()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Explain that nothing is compared."""
        return Explanation("everything", True, "a fanout has no conditions")


class TopicExchange(KeyedExchange):
    """An exchange of dotted patterns: `*` matches exactly one word, `#` any number of words, including none."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        super().__init__(name, settings)
        self._index = PatternIndex()

    def check_key(self, key: str) -> None:
        """Check the number of words. Raises BindingInvalid if there are too many."""
        if key.count(".") >= PATTERN_WORDS_MAX:
            raise BindingInvalid(f"a pattern of {key.count('.') + 1} words, more than {PATTERN_WORDS_MAX}")

    def added(self, number: int, binding: Binding) -> None:
        """Add a binding to the index."""
        self._index.add(number, binding.key)

    def removed(self, number: int, binding: Binding) -> None:
        """Remove a binding from the index."""
        self._index.remove(number, binding.key)

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings whose patterns match. Raises LimitExceeded if the key has more than KEY_WORDS_MAX words."""
        return run_steps(self.match_in_steps(subject))

    def match_in_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        """Match in steps."""
        key = subject.routing_key
        if key.count(".") >= KEY_WORDS_MAX:
            raise LimitExceeded(f"a routing key of {key.count('.') + 1} words, more than {KEY_WORDS_MAX}")
        # An empty key is one empty word, as in RabbitMQ: `*` matches it.
        numbers = yield from self._index.matching(key)
        return self._table.numbered(numbers) if numbers else ()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Explain which words each word of the pattern matched, or where the key differs from it."""
        return explain_pattern(binding.key, subject.routing_key)


@hookimpl
def linn_register_exchange() -> list[ExchangeKind]:
    """Register `type = "direct"`, `"fanout"` and `"topic"`."""
    return [
        ExchangeKind("direct", NoSettings, DirectExchange),
        ExchangeKind("fanout", NoSettings, FanoutExchange),
        ExchangeKind("topic", NoSettings, TopicExchange),
    ]


def explain_pattern(pattern: str, key: str) -> Explanation:
    """Explain each word of the pattern by the words it matches, or by the word at which key and pattern differ."""
    words, given = pattern.split("."), key.split(".")
    reached = _reached(words, given)
    count = max(index for index, ends in enumerate(reached) if ends)
    end = max(reached[count])
    matched = len(given) in reached[-1]
    if matched:
        count, end = len(words), len(given)
    parts = _alignment(words[:count], given, reached, end)
    if matched:
        said = _joined(parts)
    else:
        parts += [Explanation(word, False) for word in words[count:]]
        said = _difference(words[count:], given[end:], behind_hash=count > 0 and words[count - 1] == "#")
    return Explanation(f'key matches "{pattern}"', matched, said, tuple(parts))


def _reached(words: list[str], given: list[str]) -> list[list[int]]:
    """For each n, the numbers of words of the key that the first n words of the pattern can match, ascending."""
    reached = [[0]]
    for word in words:
        ends = reached[-1]
        if word == "#":
            reached.append(list(range(ends[0], len(given) + 1)) if ends else [])
        else:
            reached.append([end + 1 for end in ends if end < len(given) and word in ("*", given[end])])
    return reached


def _alignment(words: list[str], given: list[str], reached: list[list[int]], end: int) -> list[Explanation]:
    """The words matched by each word of the pattern, if together they match the first `end` words of the key."""
    parts: list[Explanation] = []
    for index in range(len(words) - 1, -1, -1):
        # The most for the preceding words, so the fewest for a `#`.
        start = max(place for place in reached[index] if place <= end) if words[index] == "#" else end - 1
        taken = ".".join(given[start:end])
        parts.append(Explanation(words[index], True, f'is "{taken}"' if end > start else "is nothing"))
        end = start
    return parts[::-1]


def _joined(parts: list[Explanation]) -> str:
    """The words matched by the wildcards, as text."""
    wild = [f"{part.text} {part.because}" for part in parts if part.text in ("*", "#")]
    return ", ".join(wild) or "word for word"


def _difference(words: list[str], given: list[str], *, behind_hash: bool) -> str:
    """The reason why the match ends, given the rest of pattern and key, which are never both empty."""
    if not words:
        return f'the pattern ends before "{".".join(given)}"'
    if behind_hash:
        return f'none of the remaining words is "{words[0]}"'
    if not given:
        return f'the key ends before "{".".join(words)}"'
    return f'"{given[0]}" is not "{words[0]}"'
