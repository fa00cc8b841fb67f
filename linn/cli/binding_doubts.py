"""Bindings that are valid and hardly match what was meant, by the type of their exchange."""

from __future__ import annotations

from linn.core.config.topic_settings import BindingSettings
from linn.core.errors.tree import LinnError
from linn.core.routing.predicate.predicate import Predicate


def doubt(kind: str, binding: BindingSettings) -> str | None:
    """What is odd about a binding to an exchange of a built-in type; None where nothing is, or it is another type."""
    if kind == "direct":
        return _direct(binding.key)
    if kind == "topic":
        return _topic(binding.key)
    if kind == "fanout" and binding.key:
        return "a fanout sends everything: the key has no effect"
    if kind == "content":
        return _content(binding.arguments.get("when"))
    return None


def _direct(key: str) -> str | None:
    if {"*", "#"} & set(key.split(".")):
        return f'a direct exchange takes only keys that are equal to "{key}"; patterns need type = "topic"'
    return None


def _topic(pattern: str) -> str | None:
    words = pattern.split(".")
    odd = next((word for word in words if len(word) > 1 and ("*" in word or "#" in word)), None)
    if odd is not None:
        return f'"{odd}" is taken as it is: * and # stand for whole words, between dots'
    if "" in words and pattern:
        return "has an empty word: only keys with a dot too many match"
    return None


def _content(when: object) -> str | None:
    try:
        if isinstance(when, str) and Predicate.parse(when).demands() == ():
            return "is never true: no message matches"
    except LinnError:
        return None  # The exchange itself has said so.
    return None
