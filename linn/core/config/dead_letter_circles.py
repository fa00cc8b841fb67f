"""Circles in which dead letters may go, through topics and exchanges. The file of the other checks is full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from linn.core.config.configured import ConfiguredExchange
from linn.core.config.problem import Problems
from linn.core.config.topic_settings import TopicSettings
from linn.core.routing.graph import way_between

_EXCHANGE = "exchange "
"""Precedes the name of an exchange in a way; no topic's name has a space."""
_KEY = "\0"
"""Precedes the routing key of the dead letters in an exchange, where it is known."""


def warn_of_circles(
    topics: Mapping[str, TopicSettings], exchanges: Mapping[str, ConfiguredExchange], problems: Problems
) -> None:
    """Warn of each topic whose dead letters may come back to it. They are dropped then, unless a consumer rejected them
    on the way.

    A binding counts whatever it matches; only a direct exchange is known to pass on a `dead_letter_key` that is equal.
    """
    bound: dict[str, list[tuple[str, str]]] = {}
    for names, tables in (("", topics), (_EXCHANGE, exchanges)):
        for name, table in tables.items():
            for binding in table.bindings:
                bound.setdefault(binding.exchange, []).append((names + name, binding.key))

    def exits(place: str) -> Iterator[str]:
        if not place.startswith(_EXCHANGE):
            topic = topics.get(place)
            if topic is not None and topic.dead_letter is not None:
                yield topic.dead_letter
            elif topic is not None and topic.dead_letter_exchange is not None:
                key = "" if topic.dead_letter_key is None else _KEY + topic.dead_letter_key
                yield _EXCHANGE + topic.dead_letter_exchange + key
            return
        name, mark, key = place.removeprefix(_EXCHANGE).partition(_KEY)
        exchange = exchanges.get(name)
        is_exact = bool(mark) and exchange is not None and exchange.kind == "direct"
        for target, binding_key in bound.get(name, ()):
            if not is_exact or binding_key == key:
                yield target + mark + key if target.startswith(_EXCHANGE) else target
        if exchange is not None and exchange.alternate is not None:
            yield _EXCHANGE + exchange.alternate + mark + key

    for name, topic in topics.items():
        there = next(exits(name), name)
        way = way_between(there, name, exits) if there != name else None
        if way is not None:
            key = "dead_letter" if topic.dead_letter is not None else "dead_letter_exchange"
            text = " -> ".join([place.partition(_KEY)[0] for place in (name, *way)])
            problems.warn(("topics", name, key), f"dead letters go round in a circle: {text}")
