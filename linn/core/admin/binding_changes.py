"""Bindings made and taken back in steps, one for each: a topic or an exchange may have thousands.

Law: each binding counts from its own step on, and what leads to a target before a change and after it does so meanwhile
too: the new bindings are made before the old ones are taken back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linn.core.batch.steps import Steps
from linn.core.config.topic_settings import BindingSettings
from linn.core.routing.binding_table import Identity, identity_of
from linn.core.routing.exchange import Binding, Target

if TYPE_CHECKING:
    from linn.core.broker.broker import Broker


def binding_to(target: Target, settings: BindingSettings) -> Binding:
    """A binding as its exchange knows it."""
    return Binding(target, settings.key, settings.arguments)


def bind(broker: Broker, target: Target, bindings: Iterable[BindingSettings]) -> Steps[None]:
    """Have exchanges lead to a target; one that does so already goes on. Raises ExchangeUnknown, BindingInvalid."""
    for binding in bindings:
        broker.router(binding.exchange).bind(binding_to(target, binding))
        yield


def unbind(broker: Broker, target: Target, bindings: Iterable[BindingSettings]) -> Steps[None]:
    """Let exchanges, those that are still there, lead to a target no more."""
    for binding in bindings:
        if binding.exchange in broker.routers:
            broker.routers[binding.exchange].unbind(binding_to(target, binding))
        yield


def rebind(
    broker: Broker, target: Target, bindings: Iterable[BindingSettings], before: Iterable[BindingSettings]
) -> Steps[None]:
    """Have exchanges lead to a target by these bindings, and by those no more that it had before. Raises as `bind`."""
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
