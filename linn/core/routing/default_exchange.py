"""The default exchange of AMQP: nameless, bound to every topic by the topic's own name, and to nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from linn.core.errors.tree import BindingInvalid
from linn.core.routing.exchange import Binding, Subject, Target
from linn.core.routing.explanation import Explanation

DEFAULT_EXCHANGE = ""


class DefaultExchange:
    """An exchange that sends each message to the topic named by its routing key."""

    def __init__(self, topics: Collection[str]) -> None:
        """`topics` is the live collection of topic names."""
        self._topics = topics

    def bind(self, binding: Binding) -> None:
        """Refuse: the bindings of this exchange are the topics. Raises BindingInvalid."""
        raise BindingInvalid("the default exchange can't be bound to: it sends to the topic that the routing key names")

    def unbind(self, binding: Binding) -> None:
        """Do nothing: there are no bindings to remove."""

    def bindings(self) -> Sequence[Binding]:
        """Return no bindings: none can be made."""
        return ()

    def fields(self) -> frozenset[str]:
        """Return no fields: only the routing key counts."""
        return frozenset()

    def match(self, subject: Subject) -> Sequence[Binding]:
        """Return the binding of the topic of that name, if there is one."""
        name = subject.routing_key
        return (Binding(Target(name), name),) if name in self._topics else ()

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Explain whether the routing key is the topic's name."""
        named = binding.target.name == subject.routing_key
        return Explanation("the routing key is the topic's name", named, f'the routing key is "{subject.routing_key}"')
