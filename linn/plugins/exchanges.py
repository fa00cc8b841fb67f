"""The built-in exchanges: direct, fanout and topic, as in AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from linn.core.errors import BindingInvalid
from linn.core.exchange import Binding, ExchangeKind
from linn.core.hookspecs import hookimpl
from linn.core.routes import Pair

PATTERN_WORDS_MAX = 64
"""Words of a binding's pattern. RabbitMQ's keys end at 255 bytes, so at 128 words; nobody has been seen near it."""


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These exchanges have no settings but their type."""


class _Bindings:
    """The bindings of an exchange in the order in which they were made, each once."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        self.name = name
        self._bindings: dict[tuple[str, str], Binding] = {}

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        if binding.arguments:
            unknown = ", ".join(sorted(binding.arguments))
            raise BindingInvalid(f"exchange {self.name} knows no binding arguments, but got {unknown}")
        self.check_key(binding.key)
        self._bindings.setdefault((binding.key, binding.topic), binding)
        self.rebuild()

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it is there."""
        self._bindings.pop((binding.key, binding.topic), None)
        self.rebuild()

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return list(self._bindings.values())

    def check_key(self, key: str) -> None:
        """Raises BindingInvalid where the key means nothing here."""

    def rebuild(self) -> None:
        """The bindings have changed."""


class DirectExchange(_Bindings):
    """A binding matches the routing key that is equal to its own."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        super().__init__(name, settings)
        self._topics: dict[str, list[str]] = {}

    def rebuild(self) -> None:
        """The bindings have changed."""
        topics: dict[str, dict[str, None]] = {}
        for binding in self._bindings.values():
            topics.setdefault(binding.key, {})[binding.topic] = None
        self._topics = {key: list(names) for key, names in topics.items()}

    def route(self, pair: Pair) -> Sequence[str]:
        """The topics for a pair."""
        return self._topics.get(pair.routing_key, ())


class FanoutExchange(_Bindings):
    """Every binding matches."""

    def __init__(self, name: str, settings: NoSettings) -> None:
        super().__init__(name, settings)
        self._topics: list[str] = []

    def rebuild(self) -> None:
        """The bindings have changed."""
        self._topics = list(dict.fromkeys(binding.topic for binding in self._bindings.values()))

    def route(self, pair: Pair) -> Sequence[str]:
        """The topics for a pair."""
        return self._topics


class _Node:
    """One word's place in the trie of patterns."""

    __slots__ = ("hash", "star", "topics", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.star: _Node | None = None
        self.hash: _Node | None = None
        self.topics: dict[str, None] = {}


class TopicExchange(_Bindings):
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

    def rebuild(self) -> None:
        """The bindings have changed."""
        self._root = _Node()
        for binding in self._bindings.values():
            node = self._root
            for word in binding.key.split("."):
                node = _child(node, word)
            node.topics[binding.topic] = None

    def route(self, pair: Pair) -> Sequence[str]:
        """The topics for a pair."""
        # An empty key is one empty word, as in RabbitMQ: `*` matches it.
        places = _with_hashes([self._root])
        for word in pair.routing_key.split("."):
            reached: list[_Node] = []
            for place in places:
                if (exact := place.words.get(word)) is not None:
                    reached.append(exact)
                if place.star is not None:
                    reached.append(place.star)
            # A place behind `#` stays where it is for every further word.
            reached += [place for place in places if place.hash is place]
            places = _with_hashes(reached)
            if not places:
                return ()
        topics: dict[str, None] = {}
        for place in places:
            topics.update(place.topics)
        return list(topics)


def _child(node: _Node, word: str) -> _Node:
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


def _with_hashes(places: list[_Node]) -> list[_Node]:
    """The places, and those that `#` reaches from them without a word; each once."""
    found: dict[int, _Node] = {}
    for place in places:
        found[id(place)] = place
        if place.hash is not None:
            found[id(place.hash)] = place.hash
    return list(found.values())


@hookimpl
def linn_register_exchange() -> list[ExchangeKind]:
    """`type = "direct"`, `"fanout"` and `"topic"`."""
    return [
        ExchangeKind("direct", NoSettings, DirectExchange),
        ExchangeKind("fanout", NoSettings, FanoutExchange),
        ExchangeKind("topic", NoSettings, TopicExchange),
    ]
