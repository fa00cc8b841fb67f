"""What a binding says, as a region. Everything that is wrong with it is a `BindingInvalid` that names the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from linn.api import Binding, BindingInvalid, did_you_mean
from linn_geo_exchange.region import EARTH_RADIUS_KM, Box, Circle, Point, Region

BOX = ("south", "west", "north", "east")
CIRCLE = ("latitude", "longitude", "radius_km")
RADIUS_KM_MAX = math.pi * EARTH_RADIUS_KM
"""Half way around: a circle of this radius is the whole earth."""


def region_of(binding: Binding) -> Region:
    """The box or circle that a binding asks for. Raises BindingInvalid."""
    if binding.key:
        raise BindingInvalid(f"a geo exchange routes by labels, and takes no key; give {_ways()}", "key")
    arguments = binding.arguments
    for name in arguments:
        if name not in BOX + CIRCLE:
            raise BindingInvalid(f'unknown key "{name[:40]}"{did_you_mean(name, BOX + CIRCLE)}', name)
    if set(arguments) == set(BOX):
        return _box(arguments)
    if set(arguments) == set(CIRCLE):
        centre = Point(_number(arguments, "latitude", 90), _number(arguments, "longitude", 180))
        return Circle(centre, _radius(arguments))
    raise BindingInvalid(f"a region is {_ways()}")


def _box(arguments: Mapping[str, Any]) -> Box:
    south, north = _number(arguments, "south", 90), _number(arguments, "north", 90)
    if south > north:
        raise BindingInvalid(f"{south:g} is north of north = {north:g}", "south")
    return Box(south, _number(arguments, "west", 180), north, _number(arguments, "east", 180))


def _radius(arguments: Mapping[str, Any]) -> float:
    radius_km = _number(arguments, "radius_km", RADIUS_KM_MAX)
    if radius_km < 0:
        raise BindingInvalid(f"must not be negative, as {radius_km:g} is", "radius_km")
    return radius_km


def _number(arguments: Mapping[str, Any], name: str, limit: float) -> float:
    value = arguments[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BindingInvalid(f"must be a number, not {value!r:.40}", name)
    if not -limit <= value <= limit:  # Also of NaN.
        raise BindingInvalid(f"must be from {-limit:.0f} to {limit:.0f}, not {value:g}", name)
    return float(value)


def _ways() -> str:
    return f"a box of {', '.join(BOX)}, or a circle of {', '.join(CIRCLE)}"
