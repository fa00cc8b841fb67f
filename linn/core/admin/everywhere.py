"""Verbs that all brokers of a cluster answer together.

Laws: the broker that was asked answers first, and its refusal is the answer, unless it only lacks the group. A list
leaves out brokers that can't be asked; a change is made at all brokers that can, and fails with the first error.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from linn.core.cluster.peers import PeerLinks
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import GroupUnknown, LinnError
from linn.core.ports.principal import Principal
from linn.verbs import Verb

logger = logging.getLogger("linn.administration")


async def everywhere(
    verb: Verb[Any, Any],
    arguments: str,
    caller: Principal,
    nodes: Iterable[int],
    links: PeerLinks,
    here: Callable[[], Awaitable[str]],
) -> str:
    """Carry out a verb here and at other nodes; returns the merged result.

    Raises LinnErrors of `here`; errors of `PeerLinks.perform` for a change; GroupUnknown: no broker has the group.
    Cancellation: a change that has begun is completed where it has.
    """
    assert verb.merge is not None, "the verb is for all brokers"
    found: dict[int, Any] = {}
    errors: dict[int, LinnError] = {}
    unknown: GroupUnknown | None = None
    try:
        found[0] = json.loads(await here())
    except GroupUnknown as error:
        unknown = error

    async def ask(node: int) -> None:
        try:
            found[node] = json.loads(await links.perform(node, verb.name, arguments, caller))
        except GroupUnknown:
            return
        except LinnError as error:
            logger.debug("node %(node)d has no part in an answer: %(error)s", {"node": node} | log_fields(error))
            errors[node] = error

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(ask, node)
    if verb.acts and errors:
        raise errors[min(errors)]
    if not found:
        raise errors[min(errors)] if errors else unknown or GroupUnknown("no broker has the group")
    return json.dumps(verb.merge([found[node] for node in sorted(found)]))
