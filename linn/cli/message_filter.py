"""`--where`: selection of messages by a predicate.

Separate from the commands that share it because the predicate parser is loaded only where the option is given.
"""

from __future__ import annotations

from collections.abc import Callable

from linn.client.consume.message import Message
from linn.core.routing.exchange import Subject
from linn.core.routing.predicate.predicate import Predicate

MessageFilter = Callable[[Message], bool]


def message_filter(where: str) -> MessageFilter:
    """Return a function that tells whether a message matches. Raises PredicateInvalid."""
    predicate = Predicate.parse(where)
    return lambda message: predicate.matches(subject_of(message))


def split_filter(where: str | None) -> tuple[str | None, MessageFilter | None]:
    """Return the predicate if the broker can apply it, as it examines labels and routing key only; else a function.

    Raises PredicateInvalid.
    """
    if where is None or not Predicate.parse(where).fields():
        return where, None
    return None, message_filter(where)


def subject_of(message: Message) -> Subject:
    """Return the properties of a message that predicates can name, as an exchange would get them."""
    headers = {name: value for name, value in message.headers if value is not None}
    return Subject(message.routing_key, message.labels, message.key, headers, len(message.value or b""))
