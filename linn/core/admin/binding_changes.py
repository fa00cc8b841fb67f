"""Making and removing bindings one step at a time: a topic or an exchange may have thousands.

Law: each binding counts from its own step on. A source that leads to a target before and after a change leads to it
during the change as well: new bindings are made before old ones are removed.
"""

from __future__ import annotations

from collections.abc import Iterable

from linn.core.admin.administered import Administered
from linn.core.batch.steps import Steps
from linn.core.config.topic_settings import BindingSettings
from linn.core.routing.binding_table import Identity, identity_of
from linn.core.routing.exchange import Binding, Target


def binding_to(target: Target, settings: BindingSettings) -> Binding:
    """The binding in the form that its exchange takes."""
    return Binding(target, settings.key, settings.arguments)


def bind(broker: Administered, target: Target, bindings: Iterable[BindingSettings]) -> Steps[None]:
    """Bind a target to its exchanges; existing bindings stay. Raises ExchangeUnknown, BindingInvalid."""
    for binding in bindings:
        broker.router(binding.exchange).bind(binding_to(target, binding))
        yield


def unbind(broker: Administered, target: Target, bindings: Iterable[BindingSettings]) -> Steps[None]:
    """Remove bindings to a target from those exchanges that still exist."""
    for binding in bindings:
        if binding.exchange in broker.routers:
            broker.routers[binding.exchange].unbind(binding_to(target, binding))
        yield


def rebind(
    broker: Administered, target: Target, bindings: Iterable[BindingSettings], before: Iterable[BindingSettings]
) -> Steps[None]:
    """Replace the bindings to a target, given those that it had before. Raises as `bind`."""
    stay: set[tuple[str, Identity]] = set()
    for binding in bindings:
        broker.router(binding.exchange).bind(made := binding_to(target, binding))
        stay.add((binding.exchange, identity_of(made)))
        yield
    gone: list[BindingSettings] = []
    for binding in before:
        if (binding.exchange, identity_of(binding_to(target, binding))) not in stay:
            gone.append(binding)
        yield
    yield from unbind(broker, target, gone)
