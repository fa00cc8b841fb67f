"""The rights that verbs need, by their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from linn import rights
from linn.rights import Need


def shows_visible(_: object) -> Iterable[Need]:
    """Need nothing, because the result leaves out what the caller may not see."""
    return ()


def named(operation: str, kind: str) -> Callable[[Any], Iterable[Need]]:
    """Need an operation on the resource that the argument `name` names."""
    return lambda asked: (Need(operation, kind, asked.name),)


def of_topic(operation: str) -> Callable[[Any], Iterable[Need]]:
    """Need an operation on the topic that the argument `topic` names."""
    return lambda asked: (Need(operation, rights.TOPIC, asked.topic),)


def of_group(operation: str) -> Callable[[Any], Iterable[Need]]:
    """Need an operation on the group that the argument `group` names."""
    return lambda asked: (Need(operation, rights.GROUP, asked.group),)


def broker(operation: str) -> Callable[[Any], Iterable[Need]]:
    """Need an operation on the broker."""
    return lambda _: (Need(operation, rights.BROKER),)


def _bound_exchanges(bindings: object) -> Iterator[Need]:
    """Need `bind` on each exchange that settings name in their bindings."""
    for binding in bindings if isinstance(bindings, list | tuple) else ():
        if isinstance(binding, dict) and isinstance(binding.get("exchange"), str):
            yield Need(rights.BIND, rights.EXCHANGE, binding["exchange"])


def topic_settings(asked: Any) -> Iterator[Need]:
    """Need a right now for each thing that a topic's settings will do later.

    Dead letters are published; interceptors, storage and tables of services run code with the broker's rights.
    """
    yield Need(rights.CONFIGURE, rights.TOPIC, asked.name)
    settings = asked.settings
    if isinstance(settings.get("dead_letter"), str):
        yield Need(rights.PUBLISH, rights.TOPIC, settings["dead_letter"])
    if isinstance(settings.get("dead_letter_exchange"), str):
        yield Need(rights.PUBLISH, rights.EXCHANGE, settings["dead_letter_exchange"])
    yield from _bound_exchanges(settings.get("bindings"))
    tables = [key for key, value in settings.items() if isinstance(value, dict) or "." in key]
    if tables or settings.keys() & {"interceptors", "storage"}:
        yield Need(rights.RUN, rights.BROKER)


def exchange_settings(asked: Any) -> Iterator[Need]:
    """Need a right now for each thing that an exchange's settings will do later: publish to its alternate."""
    yield Need(rights.CONFIGURE, rights.EXCHANGE, asked.name)
    if isinstance(asked.settings.get("alternate"), str):
        yield Need(rights.PUBLISH, rights.EXCHANGE, asked.settings["alternate"])
    yield from _bound_exchanges(asked.settings.get("bindings"))


def binding(asked: Any) -> Iterator[Need]:
    yield Need(rights.BIND, rights.EXCHANGE, asked.exchange)
    if asked.topic is not None:
        yield Need(rights.CONFIGURE, rights.TOPIC, asked.topic)
    if asked.target_exchange is not None:
        yield Need(rights.CONFIGURE, rights.EXCHANGE, asked.target_exchange)
