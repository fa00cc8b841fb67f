"""A broker's groups over topics that it leads, whose positions are in logs of the topics' own."""

from __future__ import annotations

import trio
from led_topic import DATA, GROUPS, LedTopic

from linn.core.errors.replication import NotLeader
from linn.core.groups.coordinator import GroupCoordinator, Stream
from linn.core.groups.member import GroupMember, JoinRequest
from linn.core.log.partition import Partition
from linn.core.log.state_log import StateLog
from linn.plugins.assignors import StickyAssignor
from linn.testing.sim_env import SimEnv


class LedGroups:
    """The group coordinator of one broker, and the topics that it leads."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.env = SimEnv(0)
        self.nursery = nursery
        self.topics: dict[str, LedTopic] = {}
        self.told: list[tuple[str, str, int]] = []
        """(member, topic, epoch) of every share that a member was told."""
        self.groups = GroupCoordinator(self._find, lambda _: StickyAssignor(), self.env.clock, self._spawn)

    def _find(self, topic: str) -> Stream | None:
        return Stream({0: self.topics[topic].partitions[DATA]}, False)

    def _spawn(self, task: object) -> None:
        self.nursery.start_soon(task)  # type: ignore[arg-type]

    async def new_topic(self, name: str, records: int = 10) -> LedTopic:
        """Lead a new topic."""
        topic = await LedTopic(self.env, self.nursery).make()
        topic.lead(1)
        topic.publish(records)
        topic.commit()
        await self.adopt(name, topic)
        return topic

    async def adopt(self, name: str, topic: LedTopic) -> None:
        self.topics[name] = topic
        await self.groups.adopt(name, StateLog(topic.partitions[GROUPS], self.env.clock), {0: topic.end(DATA)})

    async def taken_over(self, name: str, other: LedGroups, end: int | None = None) -> LedTopic:
        """Lead a topic of another broker from now on; `end`: of the log of positions, if not its watermark."""
        old = other.topics[name]
        new = await old.copied(old.number + 1, {} if end is None else {GROUPS: end})
        other.lose(name)
        new.lead(old.epoch + 1)
        await self.adopt(name, new)
        return new

    def lose(self, name: str, leader: int = 7) -> None:
        """Lead a topic no more."""
        topic = self.topics.pop(name)
        topic.lose_logs(leader)
        self.groups.release(name, self.log_of(topic).not_leader())

    @staticmethod
    def log_of(topic: LedTopic) -> Partition:
        return topic.partitions[GROUPS]

    def join(self, topic: str = "t", member: str = "ann", group: str = "g") -> GroupMember:
        def told(epoch: int, _: object, __: object) -> None:
            self.told.append((member, topic, epoch))

        return self.groups.join(JoinRequest(group, topic, lambda _: 0, told, member))

    def position(self, topic: str = "t", group: str = "g") -> int | None:
        found = self.groups.groups.get(group)
        return found.position(topic, 0) if found is not None else None


def not_leader(leader: int = 7) -> NotLeader:
    return NotLeader("elsewhere", leader=leader, epoch=2)
