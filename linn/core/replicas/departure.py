"""The departure of this broker before an orderly stop: other brokers lead its topics before it is gone.

A topic moves in three steps: the leader takes no more publishes, waits until the in-sync set has the ones it took,
and names its successor in the metadata store, which begins the next epoch. The plan chooses the successor as it does
when a leader has died. In the same write this node leaves the in-sync set, so that no publish waits for it.

Laws: whatever fails, the stop goes on after `DEPARTURE_S`; then the end of the session tells the controller to elect. A
topic is moved once: of several brokers that stop at a time, none gets it back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

import trio

from linn.core.cluster.node import ClusterNode
from linn.core.cluster.plan import KEYS_MAX, departure
from linn.core.cluster.view import BackOff
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.metadata import MetadataError, RevisionConflict
from linn.core.errors.replication import NotLeader
from linn.core.replicas.topic_replica import TopicReplica

DEPARTURE_S = 3.0
"""Longest time for all of it: a store that does not answer must not keep a broker from stopping."""
CATCH_UP_S = 1.0
"""Longest wait for publishes to be committed. Clients send the others again, to the next leader."""

logger = logging.getLogger("linn.cluster")


class Departure:
    """The departure from the topics of these replicas."""

    def __init__(self, node: ClusterNode, replicas: Iterable[TopicReplica], env: Env) -> None:
        self._node = node
        self._replicas = [replica for replica in replicas if replica.is_member]
        self._left = {replica.key for replica in self._replicas}
        """Keys of the topics that are not done."""
        self._revision = 0
        self._back_off = BackOff(env.clock, env.rng)

    async def run(self) -> None:
        """Depart from all topics. Waits at most `DEPARTURE_S`."""
        if not self._node.is_registered:
            return
        with trio.move_on_after(DEPARTURE_S) as scope:
            led = [replica for replica in self._replicas if replica.has_successor]
            for replica in self._replicas:
                replica.depart()
            with trio.move_on_after(CATCH_UP_S):
                for replica in led:
                    with suppress(NotLeader):
                        await replica.committed()
            while self._left:
                await self._try_to_write()
            await self._node.view.wait_revision(self._revision)
            if led:
                logger.info("the node stops; other nodes lead its topics: %(count)d moved", {"count": len(led)})
        if scope.cancelled_caught:
            logger.warning("the node stops before other nodes lead all of its topics")

    async def _try_to_write(self) -> None:
        view, store = self._node.view, self._node.store
        version, state = view.version, view.state
        keys_max = min(KEYS_MAX, store.changes_max)
        try:
            for write in departure(state, self._node.number, self._left, self._node.policy_of, keys_max):
                self._revision = await store.put_all(write.changes, write.conditions)
                self._left -= write.changes.keys()
        except RevisionConflict:
            await view.wait_newer(version)  # The cause is on its way.
        except MetadataError as error:
            logger.debug("the departure waits: %(error)s", log_fields(error))
            await self._back_off.pause()
        else:
            self._left.clear()
