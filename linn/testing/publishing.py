"""Publishing in a test, with a client of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linn.client import ClientEnv, Password, Receipt, Tls, connect


async def publish(
    url: str,
    topic: str | None,
    exchange: str | None,
    values: Sequence[bytes | None],
    properties: Any,
    env: ClientEnv,
    tls: Tls | None = None,
    login: Password | None = None,
) -> list[Receipt]:
    """Publish to a topic, or an exchange if it is None. Raises as `Producer.publish`."""
    async with connect(url, name="linn-testing", env=env, tls=tls, login=login) as client:
        async with client.producer(topic, exchange=exchange) as producer:
            return [await producer.publish(value, **properties) for value in values]
