"""What linn finds by the entry point `geo`."""

from __future__ import annotations

from linn.core.plugins.hookspecs import hookimpl
from linn.core.routing.exchange import ExchangeKind
from linn_geo_exchange.exchange import GeoExchange, GeoSettings


@hookimpl
def linn_register_exchange() -> ExchangeKind:
    """`type = "geo"` in `[exchanges.NAME]`."""
    return ExchangeKind("geo", GeoSettings, GeoExchange)
