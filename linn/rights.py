"""The vocabulary of rights: kinds of resources, the operations on each, and the rules of a role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TOPIC, EXCHANGE, GROUP, TRANSACTION, BROKER = "topic", "exchange", "group", "transaction", "broker"
SEE, PUBLISH, CONSUME, BROWSE, CONFIGURE = "see", "publish", "consume", "browse", "configure"
BIND, USE, ADMIN, RUN, AUDIT = "bind", "use", "admin", "run", "audit"

OPERATIONS: Mapping[str, tuple[str, ...]] = {
    TOPIC: (SEE, PUBLISH, CONSUME, BROWSE, CONFIGURE),
    EXCHANGE: (SEE, PUBLISH, BIND, CONFIGURE),
    GROUP: (SEE, USE, CONFIGURE),
    TRANSACTION: (SEE, USE, CONFIGURE),
    BROKER: (SEE, ADMIN, RUN, AUDIT),
}
"""The operations on each kind of resource. Each of the others includes "see"."""


class Need(NamedTuple):
    """A right that a request needs: an operation on one resource."""

    operation: str
    kind: str
    name: str = ""
    """The name of the resource; "" for the broker."""

    def described(self) -> str:
        """The operation and the resource, such as `publish topic:orders`."""
        return f"{self.operation} {self.kind}:{self.name[:80]}" if self.kind != BROKER else f"{self.operation} broker"
