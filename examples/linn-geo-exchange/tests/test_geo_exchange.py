from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linn_geo_exchange.exchange import GeoExchange, GeoSettings
from linn_geo_exchange.region import Box, Circle, Point, distance_km
from linn_geo_exchange.region_arguments import region_of

import linn
from linn.api import Binding, BindingInvalid, Subject, Target
from linn.testing.exchanges import ExchangeConformance, ExchangeHarness, Rule
from linn.testing.process import BrokerNotReady, BrokerProcess

NEW_YORK, LONDON, SUVA = Point(40.71, -74.01), Point(51.51, -0.13), Point(-18.14, 178.44)
NEAR_NEW_YORK = {"latitude": 40.71, "longitude": -74.01, "radius_km": 50}
PACIFIC = {"south": -60, "west": 150, "north": 60, "east": -120}
LATITUDES = st.floats(-90, 90) | st.integers(-18, 18).map(lambda step: 5.0 * step)
LONGITUDES = st.floats(-180, 180) | st.integers(-36, 36).map(lambda step: 5.0 * step)
POINTS = st.builds(Point, LATITUDES, LONGITUDES)
BOXES = st.builds(
    lambda a, west, b, east: {"south": min(a, b), "west": west, "north": max(a, b), "east": east},
    LATITUDES, LONGITUDES, LATITUDES, LONGITUDES,
)  # fmt: skip
CIRCLES = st.builds(
    lambda point, radius_km: {"latitude": point.latitude, "longitude": point.longitude, "radius_km": radius_km},
    POINTS, st.floats(0, 20_015),
)  # fmt: skip


def at(point: Point) -> Subject:
    return Subject("", {"lat": point.latitude, "lon": point.longitude})


def bound(*regions: dict[str, Any]) -> GeoExchange:
    exchange = GeoExchange("places", GeoSettings())
    for number, arguments in enumerate(regions):
        exchange.bind(Binding(Target(f"topic-{number}"), "", arguments))
    return exchange


def targets(exchange: GeoExchange, point: Point) -> list[str]:
    return [binding.target.name for binding in exchange.match(at(point))]


class TestGeoExchange(ExchangeConformance):
    @pytest.fixture
    def harness(self) -> ExchangeHarness:
        whole = {"south": -90, "west": -180, "north": 90, "east": 180}
        return ExchangeHarness(
            make=lambda: GeoExchange("places", GeoSettings()),
            bindings=[Rule(arguments=arguments) for arguments in (NEAR_NEW_YORK, PACIFIC, whole)],
            matching=[at(NEW_YORK), at(LONDON), at(SUVA), Subject("", {"lat": 0, "lon": 0})],
            refused=[
                Rule(),
                Rule("a key", NEAR_NEW_YORK),
                Rule(arguments={"south": 1}),
                Rule(arguments=PACIFIC | {"south": 61}),
                Rule(arguments=PACIFIC | {"west": 181}),
                Rule(arguments=PACIFIC | {"west": True}),
                Rule(arguments=NEAR_NEW_YORK | {"radius_km": -1}),
                Rule(arguments=NEAR_NEW_YORK | {"radius_km": float("nan")}),
            ],
        )


def test_messages_go_where_they_are() -> None:
    exchange = bound(NEAR_NEW_YORK, PACIFIC)
    assert [targets(exchange, point) for point in (NEW_YORK, SUVA, LONDON)] == [["topic-0"], ["topic-1"], []]


@pytest.mark.parametrize(
    "labels", [{}, {"lat": 40.7}, {"lat": "40.7", "lon": "-74"}, {"lat": 91, "lon": 0}, {"lat": True, "lon": True}]
)
def test_a_record_without_a_position_matches_nothing(labels: dict[str, Any]) -> None:
    everywhere = bound({"south": -90, "west": -180, "north": 90, "east": 180})
    assert everywhere.match(Subject("", labels)) == ()


def test_the_antimeridian_and_the_poles_are_no_edges() -> None:
    pacific = region_of(Binding(Target("t"), "", PACIFIC))
    assert all(pacific.holds(Point(0, longitude)) for longitude in (150, 180, -180, -120))
    assert not pacific.holds(Point(0, 0))
    to_the_line = Box(0, 170, 10, 180)
    assert to_the_line.holds(Point(5, -180))
    assert all(Circle(Point(89.9, 0), 100).holds(Point(89.9, longitude)) for longitude in range(-180, 181, 30))


def test_distances_are_those_on_the_map() -> None:
    assert distance_km(NEW_YORK, LONDON) == pytest.approx(5570, abs=10)
    assert distance_km(Point(0, 179.5), Point(0, -179.5)) == pytest.approx(111.2, abs=0.1)


@settings(max_examples=300, deadline=None)
@given(regions=st.lists(BOXES | CIRCLES, min_size=1, max_size=8), points=st.lists(POINTS, min_size=1, max_size=8))
def test_the_index_finds_what_a_look_at_every_region_finds(
    regions: list[dict[str, float]], points: list[Point]
) -> None:
    exchange = bound(*regions)
    for point in points:
        inside = [binding for binding in exchange.bindings() if region_of(binding).holds(point)]
        assert list(exchange.match(at(point))) == inside


def test_a_wrong_binding_is_told_by_its_key() -> None:
    for arguments, key in ((PACIFIC | {"north": 91}, "north"), (PACIFIC | {"nroth": 1}, "nroth")):
        with pytest.raises(BindingInvalid) as raised:
            bound(arguments)
        assert raised.value.key == key


TOML = """
[exchanges.places]
type = "geo"
[topics.new-york]
kind = "stream"
[[topics.new-york.bindings]]
exchange = "places"
latitude = 40.71
longitude = -74.01
radius_km = 50
[topics.pacific]
kind = "stream"
"""


async def test_a_broker_routes_by_place(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, TOML) as broker:
        async with linn.connect(broker.url) as client:
            await client.admin.bind("places", "pacific", **PACIFIC)
            async with client.producer(exchange="places") as producer:
                for name, point in (("Manhattan", NEW_YORK), ("Suva", SUVA), ("London", LONDON)):
                    await producer.publish(name.encode(), labels={"lat": point.latitude, "lon": point.longitude})
            for topic, value in (("new-york", b"Manhattan"), ("pacific", b"Suva")):
                fetched = await client.fetch(topic, 0, 0)
                assert [value for batch in fetched.batches for value in batch.values] == [value]
        broker.stop()


def test_a_binding_that_is_no_region_is_found_before_the_broker_serves(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, TOML.replace("radius_km = 50", 'radius_km = "50"'))
    with pytest.raises(BrokerNotReady, match=r"bindings\[0\].radius_km: must be a number, not '50'"):
        broker.start()
