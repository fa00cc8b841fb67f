"""Verbs of the admin interface, as requests to the broker and its answers."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from linn import verbs
from linn.client.arguments import checked_text
from linn.client.connection.connector import Connector
from linn.core.errors.tree import ConfigError, ProtocolError
from linn.verbs import A, R
from linn.wire.messages import Administer, Administered


class Performing:
    """The part of `Admin` that all of its methods use."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def perform(self, /, verb: str, **arguments: Any) -> Any:
        """Perform any admin verb of the broker and return its result.

        Raises ConfigError if an argument is not JSON, MessageInvalid if a text is not valid Unicode.

        Example:
            print(await client.admin.perform("topic.show", name="orders"))
        """
        checked_text(verb, "a verb")
        try:
            encoded = json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the arguments of {verb} can't be written as JSON: {error}") from error
        checked_text(encoded, f"an argument of {verb}")
        shown = verb.partition(".")[2] in ("show", "list", "can", "status")
        answer = (await self._connector.request(Administer(verb, encoded), repeat=shown)).message
        if not isinstance(answer, Administered):
            raise ProtocolError(f"the broker answered {verb} with {type(answer).__name__}")
        return json.loads(answer.result)

    async def _ask(self, verb: verbs.Verb[A, R], arguments: A) -> R:
        result: R = await self.perform(verb.name, **msgspec.structs.asdict(arguments))
        return result
