"""The consistent-hash exchange: each message goes to one target, chosen by a hash of its routing key or another field.

Equal values go to the same target. Targets are placed on a ring of 2**64 places, each at a number of places
proportional to its weight; a value goes to the target at the next place after the value's hash (Karger et al., 1997).
An added target takes its share about equally from all others, a removed one gives its share to all others, and no other
value moves.

Laws: placement depends only on the targets' names and weights, not on the order of bindings, the process or the
machine; tests fix it.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated

import msgspec

from linn.api import (
    Binding,
    BindingInvalid,
    BindingTable,
    ExchangeKind,
    Explanation,
    FieldValue,
    PredicateInvalid,
    Steps,
    Subject,
    Target,
    hookimpl,
    parse_field,
    run_steps,
    shown_value,
)

WEIGHT_MAX = 1_000
"""Largest weight: a target with a thousand times the share of another is probably a mistake."""
POINTS_PER_WEIGHT = 128
"""Places on the ring per unit of weight: shares are within about 9 per cent, with weight 10 within 3."""
POINTS_MAX = 1 << 19
"""Limit of the places on the ring, 20 MB. To stay below it, the number per target is halved repeatedly, down to one."""
POINTS_A_STEP = 1 << 12
"""Places laid out in one step: a millisecond or two."""

_POINTS_PER_DIGEST = 8
_POINTS = struct.Struct(f"<{_POINTS_PER_DIGEST}Q")


class ConsistentHashSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[exchanges.NAME]` with `type = "consistent-hash"`."""

    hash_on: Annotated[
        str,
        msgspec.Meta(
            description="The hashed field: `routing_key`, `key`, `label.NAME` or `header.NAME`; a missing one is empty."
        ),
    ] = "routing_key"

    def __post_init__(self) -> None:
        """Check the field. Raises ValueError if it is not a field."""
        try:
            parse_field(self.hash_on)
        except PredicateInvalid as error:
            raise ValueError(f"hash_on: {error.text}") from None


class ConsistentHashExchange:
    """An exchange that chooses one binding for each value. The key of a binding is its weight; an empty key means 1."""

    def __init__(self, name: str, settings: ConsistentHashSettings) -> None:
        self.name = name
        self._field = parse_field(settings.hash_on)
        self._read = self._field.reader()
        self._fields = frozenset([self._field.asks] if self._field.asks is not None else [])
        self._table = BindingTable()
        self._points: list[int] = []
        self._owners: list[Binding] = []
        """The binding of the target at each point."""
        self._is_current = True
        self._changes = 0

    def bind(self, binding: Binding) -> None:
        """Add a binding. The weights of a target that is bound several times add up. Raises BindingInvalid."""
        if binding.arguments:
            unknown = ", ".join(sorted(binding.arguments))
            raise BindingInvalid(f"exchange {self.name} takes no binding arguments, but got {unknown}")
        weight_of(binding)
        if self._table.add(binding) is not None:
            self._changed()

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it exists."""
        if self._table.remove(binding) is not None:
            self._changed()

    def _changed(self) -> None:
        self._is_current = False
        self._changes += 1

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return self._table.all()

    def fields(self) -> frozenset[str]:
        """The hashed field, unless it is the routing key or a label."""
        return self._fields

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The binding of the subject's target; empty if there are no bindings."""
        return run_steps(self.match_in_steps(subject))

    def match_in_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        """Match in steps: after a change of the bindings, lay out the ring again first."""
        while not self._is_current:
            yield from self._lay_ring()
        if not self._points:
            return ()
        place = bisect_left(self._points, hash_of(self._read(subject)))
        return (self._owners[place % len(self._owners)],)

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Explain which target the hash leads to."""
        chosen = self.match(subject)
        value = self._read(subject)
        has = f"{self._field} is {shown_value(value)}" if value is not None else f"there is no {self._field}"
        leads = f"{has}, whose hash leads to {chosen[0].target.name}" if chosen else "there are no bindings"
        return Explanation(f"weight {weight_of(binding)}", binding in chosen, leads)

    def _lay_ring(self) -> Steps[None]:
        """Lay out all points, in half a second at the largest size; the work is lost if bindings change meanwhile."""
        changes = self._changes
        owners: dict[Target, Binding] = {}
        weights: dict[Target, int] = {}
        for binding in self._table.all():
            owners.setdefault(binding.target, binding)
            weights[binding.target] = weights.get(binding.target, 0) + weight_of(binding)
        halvings = 0
        while sum(weights.values()) * POINTS_PER_WEIGHT >> halvings > POINTS_MAX:
            halvings += 1
        ring: dict[int, Binding] = {}
        # Order two targets at the same point, if there ever are any.
        for target, owner in sorted(owners.items(), key=lambda item: item[0]):
            count = max(1, weights[target] * POINTS_PER_WEIGHT >> halvings)
            for first in range(0, count, POINTS_A_STEP):
                ring.update(dict.fromkeys(points_of(target, first, min(count, first + POINTS_A_STEP)), owner))
                yield
            if changes != self._changes:
                return
        self._points = sorted(ring)
        self._owners = [ring[point] for point in self._points]
        self._is_current = True


def weight_of(binding: Binding) -> int:
    """The weight in a binding's key. Raises BindingInvalid."""
    if not binding.key:
        return 1
    weight = int(binding.key) if binding.key.isascii() and binding.key.isdecimal() and len(binding.key) < 9 else 0
    if not 1 <= weight <= WEIGHT_MAX:
        raise BindingInvalid(
            f"the key of a binding is its weight, a whole number from 1 to {WEIGHT_MAX}, not {binding.key!r:.40}", "key"
        )
    return weight


def hash_of(value: FieldValue | None) -> int:
    """A 64-bit hash of a field's value. Equal numbers have equal hashes; a missing field is hashed like empty text."""
    return int.from_bytes(hashlib.blake2b(_bytes_of(value), digest_size=8).digest(), "little")


def points_of(target: Target, first: int, end: int) -> list[int]:
    """The points of a target from `first`, a multiple of POINTS_A_STEP, to `end`, the same for any number of points."""
    name = f"{'exchange' if target.is_exchange else 'topic'}:{target.name}:".encode()
    points: list[int] = []
    for number in range(first // _POINTS_PER_DIGEST, -(-end // _POINTS_PER_DIGEST)):
        points += _POINTS.unpack(hashlib.blake2b(name + b"%d" % number, digest_size=_POINTS.size).digest())
    return points[: end - first]


def _bytes_of(value: FieldValue | None) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).encode()


@hookimpl
def linn_register_exchange() -> ExchangeKind:
    """Register `type = "consistent-hash"`."""
    return ExchangeKind("consistent-hash", ConsistentHashSettings, ConsistentHashExchange)
