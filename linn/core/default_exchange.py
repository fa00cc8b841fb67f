"""The default exchange of AMQP: nameless, bound to every topic by the topic's own name, and to nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from linn.core.errors import BindingInvalid
from linn.core.exchange import Binding
from linn.core.routes import Pair

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

    def route(self, pair: Pair) -> Sequence[str]:
        """The topic of that name, if there is one."""
        return (pair.routing_key,) if pair.routing_key in self._topics else ()
