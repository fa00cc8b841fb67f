"""The verbs about services: which there are and how they do, and the actions that they offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linn.core.admin.administered import Administered
from linn.core.admin.exchanges import text_of
from linn.core.errors.tree import ConfigError

Arguments = Mapping[str, Any]


class ServiceAdministration:
    """Services, shown and acted on while the broker runs."""

    def __init__(self, broker: Administered) -> None:
        self._broker = broker

    async def list_all(self, arguments: Arguments) -> Any:
        """The services that something configures, with their states."""
        return self._broker.services.describe()

    async def perform(self, arguments: Arguments, caller: str) -> Any:
        """Carry out an action of a service."""
        service, action = text_of(arguments, "service"), text_of(arguments, "action")
        given = arguments.get("arguments", {})
        if not isinstance(given, dict):
            raise ConfigError('the argument "arguments" must be a JSON object')
        return await self._broker.services.perform(service, action, given, caller)
