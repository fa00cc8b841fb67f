"""`--where`: which messages somebody wants to see, by a predicate."""

from __future__ import annotations

from collections.abc import Callable

from linn.client.consume.message import Message
from linn.core.routing.exchange import Subject
from linn.core.routing.predicate.predicate import Predicate

Selects = Callable[[Message], bool]


def selection(where: str) -> Selects:
    """Whether a message is wanted. Raises PredicateInvalid."""
    predicate = Predicate.parse(where)
    return lambda message: predicate.matches(subject_of(message))


def subject_of(message: Message) -> Subject:
    """What a predicate looks at in a message, as an exchange would be given it."""
    headers = {name: value for name, value in message.headers if value is not None}
    return Subject(message.routing_key, message.labels, message.key, headers, len(message.value or b""))
