"""Many topics of a broker that dies: other brokers lead them with a few writes to the metadata store."""

from __future__ import annotations

import trio
from broker_world import SimBroker, broker_world
from cluster_world import TIMEOUT_S, until
from replicas_seen import ALL, in_sync
from simulated_time import simulated

from linn.core.log.replication.leader import LOST_S
from linn.testing.sim_env import SimEnv

TOPICS = 60
FILE = "".join(f'[topics.t{number}]\nkind = "stream"\nreplicas = 3\n' for number in range(TOPICS))
LED_AGAIN_S = 0.5
"""Time from the end of a session until its topics are led and open, where nothing takes time but messages."""


def led(broker: SimBroker) -> list[str]:
    """The topics that are open at a broker."""
    return [name for name, topic in broker.broker.topics.items() if name.startswith("t") and topic.led_by is None]


@simulated
async def test_the_topics_of_a_dead_broker_are_led_again_after_few_writes(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(3, FILE)
        names = [f"t{number}" for number in range(TOPICS)]
        await until(lambda: all(len(in_sync(brokers[0], name)) == 3 for name in names))
        await until(lambda: sum(len(led(it)) for it in brokers) == TOPICS)
        dead, *others = sorted(brokers, key=lambda it: -len(led(it)))
        count = len(led(dead))
        assert count >= TOPICS // 3

        dead.env.kill()
        await dead.ended()
        before = len(world.store.history)
        await trio.sleep(LOST_S + 1)
        writes = [write for write in world.store.history[before:] if any("parts/" in key for key in write.changes)]
        changed = {key for write in writes for key in write.changes if "parts/" in key}
        assert len(changed) == TOPICS - count, "the leaders that live drop the dead one"
        assert len(writes) <= 3 * len(others), "each writes all of its topics together"

        assert others[0].broker.cluster is not None
        sessions = others[0].broker.cluster.view
        await until(lambda: dead.number not in sessions.state.sessions, 2 * TIMEOUT_S)
        before = len(world.store.history)
        took_s = await until(lambda: sum(len(led(it)) for it in others) == TOPICS, LED_AGAIN_S)
        writes = [write for write in world.store.history[before - 1 :] if any("parts/" in key for key in write.changes)]
        assert len({key for write in writes for key in write.changes if "parts/" in key}) >= count
        assert len(writes) <= 4, took_s
        client = await others[0].client()
        for name in names[:5]:
            await client.publish(name, ["goes on"], acks=ALL)
