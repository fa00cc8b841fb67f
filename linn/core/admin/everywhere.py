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
from linn.core.env.env import Clock
from linn.core.env.log_fields import log_fields
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import GroupUnknown, LinnError, TopicUnknown
from linn.core.ports.principal import Principal
from linn.verbs import SHOW_TOPIC, Verb

KNOWN_WAIT_S = 2.0
"""Longest wait for other brokers to take over a change of a topic. They have it within milliseconds if they follow."""
KNOWN_POLL_S = 0.005

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


async def wait_known(
    name: str, settings: Any, caller: Principal, nodes: Iterable[int], links: PeerLinks, clock: Clock
) -> None:
    """Wait until other nodes know a topic that is new or was changed; at most KNOWN_WAIT_S.

    Its leader has opened it then, with these `settings`, so that a client can use it at any broker. Nodes that can't be
    asked are left out. Cancellation: the change is made.
    """
    arguments = json.dumps({"name": name})

    async def wait(node: int) -> None:
        while True:
            try:
                shown = json.loads(await links.perform(node, SHOW_TOPIC.name, arguments, caller))
                if shown["settings"] == settings:
                    return
            except TopicUnknown:
                pass
            except NotLeader as error:
                if error.leader:
                    return
            except LinnError as error:
                about = {"node": node, "topic": name} | log_fields(error)
                logger.debug("node %(node)d does not tell whether it knows %(topic)s: %(error)s", about)
                return
            await clock.sleep(KNOWN_POLL_S)

    with trio.move_on_after(KNOWN_WAIT_S):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(wait, node)
