"""The exchange: an index of regions by cells of the earth's grid, so that a message looks at few of many bindings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from linn.core.routing.binding_table import BindingTable
from linn.core.routing.exchange import Binding, Subject
from linn.core.routing.explanation import Explanation
from linn_geo_exchange.region import Circle, Point, Region
from linn_geo_exchange.region_arguments import region_of

CELL_DEGREES = 5
"""The grid has 36 by 72 cells. Smaller ones would cost large regions more than they save small ones."""

Cell = tuple[int, int]


class GeoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[exchanges.NAME]` with `type = "geo"`."""

    latitude: Annotated[str, msgspec.Meta(min_length=1, description="The label with the latitude, in degrees.")] = "lat"
    longitude: Annotated[str, msgspec.Meta(min_length=1, description="The label with the longitude, in degrees.")] = (
        "lon"
    )


class GeoExchange:
    """A binding has a region, and matches the messages whose labels say that they are in it."""

    def __init__(self, name: str, settings: GeoSettings) -> None:
        self.name = name
        self._latitude = settings.latitude
        self._longitude = settings.longitude
        self._table = BindingTable()
        self._cells: dict[Cell, dict[int, Region]] = {}

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        region = region_of(binding)
        number = self._table.add(binding)
        if number is not None:
            for cell in cells_of(region):
                self._cells.setdefault(cell, {})[number] = region

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it is there."""
        number = self._table.remove(binding)
        if number is not None:
            for cell in cells_of(region_of(binding)):
                del self._cells[cell][number]
                if not self._cells[cell]:
                    del self._cells[cell]

    def bindings(self) -> Sequence[Binding]:
        """All bindings."""
        return self._table.all()

    def fields(self) -> frozenset[str]:
        """Labels are enough."""
        return frozenset()

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings of the regions that a message is in; none, where its labels don't say where it is."""
        point = self._point_of(subject)
        if point is None:
            return ()
        regions = self._cells.get(cell_of(point), {})
        return self._table.numbered([number for number, region in regions.items() if region.holds(point)])

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """For `linn route explain`: where the message is, if anywhere."""
        text = ", ".join(f"{name} {value}" for name, value in binding.arguments.items())
        point = self._point_of(subject)
        if point is None:
            missing = f"labels {self._latitude} and {self._longitude} are no place on earth"
            return Explanation(text, False, missing)
        place = f"the message is at latitude {point.latitude:g}, longitude {point.longitude:g}"
        return Explanation(text, region_of(binding).holds(point), place)

    def _point_of(self, subject: Subject) -> Point | None:
        latitude = _degrees(subject.labels.get(self._latitude), 90)
        longitude = _degrees(subject.labels.get(self._longitude), 180)
        return Point(latitude, longitude) if latitude is not None and longitude is not None else None


def _degrees(value: object, limit: float) -> float | None:
    """A label as degrees; None where it isn't there, is no number, or none from -limit to limit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -limit <= value <= limit else None


def cell_of(point: Point) -> Cell:
    """The cell that a point is in. Both names of the antimeridian are one cell's."""
    return math.floor(point.latitude / CELL_DEGREES), _column(math.floor(point.longitude / CELL_DEGREES))


def cells_of(region: Region) -> Iterator[Cell]:
    """The cells that a region may have a part in, each once."""
    box = region.box() if isinstance(region, Circle) else region
    found: dict[Cell, None] = {}
    for part in box.parts():
        for row in _steps(part.south, part.north):
            for column in _steps(part.west, part.east):
                found[row, _column(column)] = None
    yield from found


def _steps(low: float, high: float) -> range:
    return range(math.floor(low / CELL_DEGREES), math.floor(high / CELL_DEGREES) + 1)


def _column(step: int) -> int:
    return step % (360 // CELL_DEGREES)
