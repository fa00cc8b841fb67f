"""The public names of the client's classes: those without an underscore."""

from __future__ import annotations

import inspect
from collections.abc import Iterator


def public_classes(module: object) -> list[type]:
    """The classes that `linn.client` or `linn.sync` exports, without ports."""
    exported = [getattr(module, name) for name in module.__all__]  # type: ignore[attr-defined]
    return [one for one in exported if inspect.isclass(one) and not getattr(one, "_is_protocol", False)]


def own_classes(public: type) -> Iterator[type]:
    """The class and those of linn's that it inherits from."""
    return (one for one in public.__mro__ if one.__module__.startswith("linn."))


def public_members(public: type) -> dict[str, object]:
    """Methods and properties by name, inherited ones included."""
    found: dict[str, object] = {}
    for one in own_classes(public):
        for name, member in vars(one).items():
            described = inspect.isfunction(member) or isinstance(member, property)
            if described and not name.startswith("_"):
                found.setdefault(name, member)
    return found


def public_methods(public: type) -> dict[str, object]:
    """Methods by name."""
    return {name: member for name, member in public_members(public).items() if inspect.isfunction(member)}
