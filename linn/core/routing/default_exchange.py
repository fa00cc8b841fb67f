"""The default exchange of AMQP: nameless, bound to every topic by the topic's own name, and to nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from linn.core.errors.tree import BindingInvalid
from linn.core.routing.exchange import Binding, Subject, Target
from linn.core.routing.explanation import Explanation

DEFAULT_EXCHANGE = ""


class DefaultExchange:
    """Sends each message to the topic that its routing key names."""

    def __init__(self, topics: Collection[str]) -> None:
        """`topics` are the names there are, as they come and go."""
        self._topics = topics

    def bind(self, binding: Binding) -> None:
        """Raises BindingInvalid: its bindings are the topics."""
        raise BindingInvalid("the default exchange can't be bound to: it sends to the topic that the routing key names")

    def unbind(self, binding: Binding) -> None:
        """There is nothing to remove."""

    def bindings(self) -> Sequence[Binding]:
        """None that anybody made."""
        return ()

    def fields(self) -> frozenset[str]:
        """Nothing but the routing key counts."""
        return frozenset()

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The binding of the topic of that name, if there is one."""
        name = subject.routing_key
        return (Binding(Target(name), name),) if name in self._topics else ()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Whether the routing key is the topic's name."""
        named = binding.target.name == subject.routing_key
        return Explanation("the routing key is the topic's name", named, f'the routing key is "{subject.routing_key}"')
