"""Regions of the earth: boxes between meridians and parallels, and circles. Degrees, north and east are positive."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

EARTH_RADIUS_KM = 6371.0088
"""The mean radius: distances are right to half a per cent."""


class Point(NamedTuple):
    """A place on the earth."""

    latitude: float
    """-90 to 90."""
    longitude: float
    """-180 to 180."""


@dataclass(frozen=True, slots=True)
class Box:
    """From south to north, and from west eastwards to east: over the antimeridian where west is greater than east."""

    south: float
    west: float
    north: float
    east: float

    def holds(self, point: Point) -> bool:
        """Whether a point is in it. Its edges belong to it."""
        if not self.south <= point.latitude <= self.north:
            return False
        # The antimeridian is one line with two names.
        longitudes = (-180.0, 180.0) if abs(point.longitude) == 180.0 else (point.longitude,)
        return any(self._spans(longitude) for longitude in longitudes)

    def _spans(self, longitude: float) -> bool:
        if self.west <= self.east:
            return self.west <= longitude <= self.east
        return longitude >= self.west or longitude <= self.east

    def parts(self) -> Iterator[Box]:
        """The same region as boxes that don't cross the antimeridian."""
        if self.west <= self.east:
            yield self
        else:
            yield Box(self.south, self.west, self.north, 180.0)
            yield Box(self.south, -180.0, self.north, self.east)


@dataclass(frozen=True, slots=True)
class Circle:
    """All that is within a distance of a point, along the surface."""

    centre: Point
    radius_km: float

    def holds(self, point: Point) -> bool:
        """Whether a point is in it."""
        return distance_km(self.centre, point) <= self.radius_km

    def box(self) -> Box:
        """A box around it; around a pole it has all longitudes."""
        # A little more than the circle, so that what rounding takes away does not matter.
        angle = math.degrees(self.radius_km / EARTH_RADIUS_KM) + 1e-6
        south, north = self.centre.latitude - angle, self.centre.latitude + angle
        if south <= -90 or north >= 90:
            return Box(max(south, -90.0), -180.0, min(north, 90.0), 180.0)
        widest = math.sin(math.radians(angle)) / math.cos(math.radians(self.centre.latitude))
        half = math.degrees(math.asin(min(1.0, widest))) + 1e-6
        return Box(south, _wrapped(self.centre.longitude - half), north, _wrapped(self.centre.longitude + half))


Region = Box | Circle


def distance_km(one: Point, other: Point) -> float:
    """The distance along the surface, by the haversine formula."""
    south, north = math.radians(one.latitude), math.radians(other.latitude)
    turn = math.radians(other.longitude - one.longitude)
    half = math.sin((north - south) / 2) ** 2 + math.cos(south) * math.cos(north) * math.sin(turn / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, half)))


def _wrapped(longitude: float) -> float:
    return (longitude + 180.0) % 360.0 - 180.0
