"""A table of one exchange's bindings, each kept once, in the order in which they were made.

Law: adding, removing and looking up cost the same whatever the number of bindings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from linn.core.errors.tree import BindingInvalid
from linn.core.routing.exchange import Binding, Target

Identity = tuple[Target, str, bytes]


def identity_of(binding: Binding) -> Identity:
    """The identity of a binding: target, key and arguments (`1`, `1.0` and `true` are three values).

    Raises BindingInvalid if the arguments are not values of TOML or JSON.
    """
    if not binding.arguments:
        return binding.target, binding.key, b""
    try:
        arguments = msgspec.json.encode(dict(binding.arguments), order="deterministic")
    except (TypeError, ValueError, RecursionError) as error:
        raise BindingInvalid(f"the arguments of a binding are not plain values: {error}") from error
    return binding.target, binding.key, arguments


class BindingTable:
    """Bindings by an increasing number."""

    def __init__(self) -> None:
        self._numbers: dict[Identity, int] = {}
        self._bindings: dict[int, Binding] = {}
        self._next = 0

    def add(self, binding: Binding) -> int | None:
        """Add a binding; returns its number, or None if it exists. Raises BindingInvalid."""
        identity = identity_of(binding)
        if identity in self._numbers:
            return None
        number = self._next
        self._next += 1
        self._numbers[identity] = number
        self._bindings[number] = binding
        return number

    def remove(self, binding: Binding) -> int | None:
        """Remove a binding; returns its number, or None if it does not exist. Raises BindingInvalid."""
        number = self._numbers.pop(identity_of(binding), None)
        if number is not None:
            del self._bindings[number]
        return number

    def all(self) -> Sequence[Binding]:
        """All bindings in the order in which they were made."""
        return list(self._bindings.values())

    def numbered(self, numbers: Iterable[int]) -> Sequence[Binding]:
        """The existing bindings among these numbers, each once, in the order in which they were made."""
        bindings = self._bindings
        return [bindings[number] for number in sorted(set(numbers)) if number in bindings]

    def __len__(self) -> int:
        return len(self._bindings)
