"""Making and removing bindings one step at a time: a topic or an exchange may have thousands.

Law: each binding takes effect in its own step. A source bound to a target before and after a change stays bound during
the change: new bindings are made before old ones are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from linn.core.batch.steps import Steps
from linn.core.config.topic_settings import BindingSettings
from linn.core.errors.tree import BindingInvalid
from linn.core.routing.binding_table import Identity, identity_of
from linn.core.routing.exchange import Binding, Target
from linn.core.routing.router import Router
from linn.core.topics.catalog import Catalog

T = TypeVar("T")


def binding_to(target: Target, settings: BindingSettings) -> Binding:
    """The binding in the form that its exchange takes."""
    return Binding(target, settings.key, settings.arguments)


def check_kept(source: Router, target: Target, *, is_kept: bool) -> None:
    """Check that no target that is kept over a restart is bound to an exchange that is not. Raises BindingInvalid."""
    if is_kept and source.is_transient:
        text = f"exchange {source.name} is not kept over a restart, as {target.name} is: the binding would be lost"
        raise BindingInvalid(text)


def checks(check: Callable[[T], None], things: Iterable[T]) -> Steps[None]:
    """Check every part of a change before any part of it is carried out: ten thousand bindings take 0.1 s."""
    for thing in things:
        check(thing)
        yield


def bind(catalog: Catalog, target: Target, bindings: Iterable[BindingSettings]) -> Steps[None]:
    """Bind a target to its exchanges; existing bindings stay. Raises ExchangeUnknown, BindingInvalid."""
    for binding in bindings:
        catalog.router(binding.exchange).bind(binding_to(target, binding))
        yield


def unbind(catalog: Catalog, target: Target, bindings: Iterable[BindingSettings]) -> Steps[None]:
    """Remove bindings to a target from exchanges that still exist."""
    for binding in bindings:
        if binding.exchange in catalog.routers:
            catalog.routers[binding.exchange].unbind(binding_to(target, binding))
        yield


def rebind(
    catalog: Catalog, target: Target, bindings: Iterable[BindingSettings], before: Iterable[BindingSettings]
) -> Steps[None]:
    """Replace the earlier bindings `before` to a target. Raises what `bind` raises."""
    stay: set[tuple[str, Identity]] = set()
    for binding in bindings:
        catalog.router(binding.exchange).bind(made := binding_to(target, binding))
        stay.add((binding.exchange, identity_of(made)))
        yield
    gone: list[BindingSettings] = []
    for binding in before:
        if (binding.exchange, identity_of(binding_to(target, binding))) not in stay:
            gone.append(binding)
        yield
    yield from unbind(catalog, target, gone)
