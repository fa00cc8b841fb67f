"""The built-in exchanges: direct, fanout and topic, as in AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from linn.core.binding_table import BindingTable
from linn.core.errors import BindingInvalid, LimitExceeded
from linn.core.exchange import Binding, ExchangeKind, Subject
from linn.core.explanation import Explanation
from linn.core.hookspecs import hookimpl
from linn.core.predicate_explanation import explain_tree
from linn.core.predicate_tree import Comparison
from linn.core.subject_field import SubjectField
from linn.plugins.pattern_explanation import explain_pattern

PATTERN_WORDS_MAX = 64
"""Words of a binding's pattern. RabbitMQ's keys end at 255 bytes, so at 128 words; nobody has been seen near it."""


KEY_WORDS_MAX = 128
"""Words of a routing key that a topic exchange looks at: RabbitMQ's keys have no more. Each costs as many steps as the
patterns have places."""


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


class _Node:
    """One word's place in the trie of patterns."""

    __slots__ = ("hash", "numbers", "star", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.star: _Node | None = None
        self.hash: _Node | None = None
        self.numbers: set[int] = set()
        """The bindings whose pattern ends here."""

    def is_bare(self) -> bool:
        """Whether nothing ends here or goes on from here."""
        return not (self.numbers or self.words or self.star or (self.hash is not None and self.hash is not self))


class TopicExchange(KeyedExchange):
    """Patterns of words separated by dots: `*` is exactly one word, `#` any number of them, none included.

    Law: matching walks a set of places word by word, so its time is the number of words times the number of places,
    whatever the patterns: `#.#.#.#` can't make it backtrack.
    """

    def __init__(self, name: str, settings: NoSettings) -> None:
        super().__init__(name, settings)
        self._root = _Node()

    def check_key(self, key: str) -> None:
        """Raises BindingInvalid where there are too many words."""
        if key.count(".") >= PATTERN_WORDS_MAX:
            raise BindingInvalid(f"a pattern of {key.count('.') + 1} words, more than {PATTERN_WORDS_MAX}")

    def added(self, number: int, binding: Binding) -> None:
        """Put a new binding into the trie."""
        node = self._root
        for word in binding.key.split("."):
            node = _child(node, word)
        node.numbers.add(number)

    def removed(self, number: int, binding: Binding) -> None:
        """Take a binding out of the trie, with the places that lead nowhere then."""
        node, way = self._root, []
        for word in binding.key.split("."):
            way.append((node, word))
            node = _child(node, word)
        node.numbers.remove(number)
        for parent, word in reversed(way):
            if parent.hash is parent and word == "#":
                continue  # `#.#` is the same place twice.
            if not _child(parent, word).is_bare():
                break
            _drop_child(parent, word)

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings whose patterns match. Raises LimitExceeded where the key has more than KEY_WORDS_MAX words."""
        words = subject.routing_key.split(".")
        if len(words) > KEY_WORDS_MAX:
            raise LimitExceeded(f"a routing key of {len(words)} words, more than {KEY_WORDS_MAX}")
        # An empty key is one empty word, as in RabbitMQ: `*` matches it.
        places = _with_hashes([self._root])
        for word in words:
            reached: list[_Node] = []
            for place in places:
                if (exact := place.words.get(word)) is not None:
                    reached.append(exact)
                if place.star is not None:
                    reached.append(place.star)
                if place.hash is place:  # A place behind `#` stays where it is for every further word.
                    reached.append(place)
            if not reached:
                return ()
            places = _with_hashes(reached)
        return self._table.numbered([number for place in places for number in place.numbers])

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """What the words of the pattern stand for, or where the key parts from it."""
        return explain_pattern(binding.key, subject.routing_key)


def _child(node: _Node, word: str) -> _Node:
    """The place behind a word, made where there is none."""
    if word == "*":
        node.star = node.star or _Node()
        return node.star
    if word == "#":
        if node.hash is None:
            node.hash = _Node()
            # A hash node is its own `hash` child: that marks it, and makes `#.#` the same as `#`.
            node.hash.hash = node.hash
        return node.hash
    return node.words.setdefault(word, _Node())


def _drop_child(node: _Node, word: str) -> None:
    if word == "*":
        node.star = None
    elif word == "#":
        node.hash = None
    else:
        del node.words[word]


def _with_hashes(places: list[_Node]) -> list[_Node]:
    """The places, and those that `#` reaches from them without a word; each once."""
    behind = [place.hash for place in places if place.hash is not None]
    if not behind:
        return places  # Only a place behind `#` is reached in two ways.
    return list({id(place): place for place in (*places, *behind)}.values())


@hookimpl
def linn_register_exchange() -> list[ExchangeKind]:
    """`type = "direct"`, `"fanout"` and `"topic"`."""
    return [
        ExchangeKind("direct", NoSettings, DirectExchange),
        ExchangeKind("fanout", NoSettings, FanoutExchange),
        ExchangeKind("topic", NoSettings, TopicExchange),
    ]
