"""This broker's replica of one topic: all its logs, which have one leader, one epoch and one in-sync set.

The rules are in `linn.core.log.replication`, which does no I/O: this class tells them of events, and carries out their
commands. Following is a task: it asks the leader for news, again and again, and acknowledges by asking.

Laws: a log is cut only while nothing of the topic is open here but its logs. While a log is being cut, this broker
takes no other role. The logs stay open in all roles; the topic that is open at its leader uses them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.cluster.following import FollowLane, LogNews
from linn.core.cluster.view import BackOff
from linn.core.env.env import Clock
from linn.core.env.log_fields import log_fields
from linn.core.errors.metadata import MetadataError, MetadataUnknown, RevisionConflict
from linn.core.errors.replication import CopyMisplaced, NotEnoughReplicas, NotLeader
from linn.core.errors.tree import LinnError, ProtocolError, StorageError, SyncFailed
from linn.core.log.partition import Partition
from linn.core.log.replication.events import (
    ChangeIsr,
    Command,
    Commit,
    Cut,
    Follow,
    GoOffline,
    Lag,
    Lead,
    LogTable,
    Match,
    PartView,
    ReadPart,
    Recovered,
)
from linn.core.log.replication.follower import Follower
from linn.core.log.replication.leader import Leader
from linn.core.log.replication.replica import Replica
from linn.core.log.storage import PartitionId, PartitionLog
from linn.core.replicas.follower_seat import TopicSeat
from linn.core.replicas.follower_thinning import FollowerThinning
from linn.core.replicas.log_numbers import id_of, is_data, number_of, subscription_of
from linn.core.replicas.replica_host import ReplicaHost
from linn.core.topics.change import sync_names
from linn.core.topics.topic import Topic
from linn.descriptions import ReplicasDescription

logger = logging.getLogger("linn.cluster")

APPENDS_FAIL_S = 10.0
"""Time without an append, for lack of disk space, after which a leader lets another broker lead."""
RETREAT_AGAIN_S = 10.0
"""Pause between attempts to let another broker lead: there may be none."""
NEWS_BYTES_MAX = 1 << 20
"""Bytes asked for at a time: enough for the overhead of a message not to count, and sent within milliseconds."""


class TopicReplica:
    """The port `TopicLogs` of one topic. `load` it; then `run` follows whenever another broker leads."""

    def __init__(self, topic: Topic, key: str, host: ReplicaHost) -> None:
        """`key`: of the topic's entry in the metadata store."""
        self.topic = topic
        self.key = key
        self.clock: Clock = host.clock
        self.counts = host.counts
        self.logs: dict[int, Partition] = {}
        self.is_recovered = False
        """Whether this broker leads, and all that the logs held when it was elected is committed."""
        self._host = host
        self._plain: dict[int, PartitionLog] = {}
        self._rules = Replica(host.number, host.session, self._plain, topic.settings.min_in_sync or 1)
        self._thinning = FollowerThinning(topic, self.logs, host.clock.monotonic)
        self._part: PartView | None = None
        self._seats: dict[int, TopicSeat] = {}
        """Followers by node."""
        self._wanted: Follow | None = None
        self._changed = trio.lowlevel.ParkingLot()
        """Wakes what waits for another role, or for the topic to be closed here."""
        self._following = trio.CancelScope()
        self._is_changing = self._serves = self._departs = self._recovers = self._is_closed = False
        self._is_full = False
        """Whether the disk did not take the last records of the leader."""
        self.has_ended = False
        """Whether the topic is open here for a leadership that is over, even if this broker leads again."""
        self._back_off = BackOff(host.clock, host.rng)
        self._said = ""
        self._retreat_s = float("-inf")
        """The time of the last attempt to let another broker lead."""

    # --- logs --------------------------------------------------------------------------------------------------------

    async def load(self, ids: Sequence[PartitionId]) -> None:
        """Open logs. Raises LogCorrupt, StorageError: some are open."""
        for id in ids:
            await self._make(number_of(self.topic.name, id), id)
        await sync_names(self.logs.values())

    async def open(self, id: PartitionId) -> Partition:
        """See `TopicLogs.open`."""
        return await self._make(number_of(self.topic.name, id), id)

    def has(self, id: PartitionId) -> bool:
        """Whether a log is open."""
        return number_of(self.topic.name, id) in self.logs

    async def _make(self, number: int, id: PartitionId) -> Partition:
        """The open log; it is made, and takes the role of the others, if there is none."""
        found = self.logs.get(number)
        if found is not None:
            return found
        partition = await self.topic.make_log(id, is_replicated=True)
        partition.thinning.is_allowed = self._host.thins
        partition.on_closed, partition.on_damaged = partial(self._closed, number), self._damaged
        self.logs[number], self._plain[number] = partition, partition.log
        leader, follower = self.leader, self._rules.follower
        if leader is not None:
            leader.add_log(number, partition.log)
            self._lead(number, partition)
            self._end_seats()  # They follow again, and learn of the log.
            self.obey()
        elif follower is not None:
            partition.follow(follower.leader, follower.epoch, _nothing)
        return partition

    def _closed(self, number: int) -> None:
        del self.logs[number], self._plain[number]
        if self.leader is not None:
            self.leader.remove_log(number)
            self._end_seats()  # They follow again, and delete it as well.
            self.obey()

    async def keep_subscriptions(self, numbers: Collection[int]) -> None:
        """Delete the logs of all named subscriptions but these, by their numbers. Raises StorageError."""
        for number, partition in list(self.logs.items()):
            if subscription_of(number) and subscription_of(number) not in numbers:
                await partition.delete()

    async def forget(self, ids: Sequence[PartitionId]) -> None:
        """See `TopicLogs.forget`."""
        for id in ids:
            partition = self.logs.get(number_of(self.topic.name, id))
            if partition is not None:
                await partition.close()

    async def enforce_retention(self) -> None:
        """Let the logs of a follower do their housekeeping. Raises StorageError."""
        for partition in list(self.logs.values()):
            partition.thinning.is_allowed = self._host.thins
            if not self._serves:
                await partition.enforce_retention(self.clock.now_ms())
        if self._thinning.is_due:
            self._host.spawn(self._thinning.run)
        for seat in list(self._seats.values()):
            for number in self.logs:
                seat.tell(number)

    async def close(self) -> None:
        """Take no part any more; close all logs. Raises StorageError."""
        self._is_closed = True
        self._end_seats()
        self._following.cancel()
        self._changed.unpark_all()
        while self._is_changing:
            await self._changed.park()
        for partition in list(self.logs.values()):
            partition.go_offline(self._rules.epoch)
            await partition.close()

    def describe(self) -> ReplicasDescription | None:
        """See `TopicLogs.describe`."""
        part = self._part
        if part is None:
            return None
        in_sync = sorted(self.leader.part.isr if self.leader is not None else part.isr)
        return {
            "leader": part.leader,
            "epoch": part.epoch,
            "nodes": sorted(part.replicas),
            "in_sync": in_sync,
            "followers": [
                {"node": node, "is_linked": lag.is_linked, "lag_records": lag.records, "lag_s": round(lag.seconds, 3)}
                for node, lag in self.lags().items()
            ],
        }

    def lags(self) -> dict[int, Lag]:
        """Measure how far the other replicas are behind, by node; of none unless this broker leads."""
        return self.leader.lags(self.clock.monotonic()) if self.leader is not None else {}

    # --- the role ----------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader | None:
        """This broker as the leader; None: it is not."""
        return self._rules.leader

    def check_enough(self) -> None:
        """See `TopicLogs.check_enough`."""
        leader = self._rules.leader
        if leader is not None and not leader.has_enough:
            least = self.topic.settings.min_in_sync
            raise NotEnoughReplicas(f"fewer than {least} replicas of topic {self.topic.name} are in sync")

    @property
    def serves(self) -> bool:
        """Whether the topic is open here."""
        return self._serves

    @serves.setter
    def serves(self, serves: bool) -> None:
        self._serves, self.has_ended = serves, False
        self._changed.unpark_all()

    def not_leader(self) -> NotLeader:
        """The error of requests to a leader that this broker is not."""
        part = self._part
        if part is None:
            return NotLeader(f"topic {self.topic.name} has no leader yet")
        text = f"topic {self.topic.name} is led by node {part.leader} in epoch {part.epoch}"
        return NotLeader(text, leader=part.leader, epoch=part.epoch)

    def viewed(self, part: PartView, *, is_read: bool = False) -> None:
        """The store has, or had, this entry; `is_read`: as the answer to a read that was asked for."""
        if self._is_changing or self._is_closed:
            return  # It is looked at again afterwards.
        self._part = part
        self._rules.viewed(part, self.clock.monotonic(), is_read=is_read)
        self.obey()

    def session_changed(self, session: str, *, is_held: bool) -> None:
        """This node has this session; `is_held`: it can't have ended."""
        if self._is_changing:
            return  # It is told again afterwards: a follower follows anew in another session.
        rules = self._rules
        if session != rules.session:
            rules.session_began(session)
        if rules.leader is not None:
            if is_held:
                rules.leader.session_held(session)
            else:
                rules.session_ended()
        self.obey()

    def tick(self) -> None:
        """Time has passed, or settings have changed. Several times a second."""
        self._rules.set_minimum(self.topic.settings.min_in_sync or 1)
        if self._rules.leader is not None:
            self._rules.leader.tick(self.clock.monotonic())
            self.obey()
            if any(partition.failing_s() >= APPENDS_FAIL_S for partition in self.logs.values()):
                self._retreat(is_damaged=False)

    @property
    def is_stranded(self) -> bool:
        """Whether the store names this broker as the leader, in its session, and it has stepped down."""
        part = self._part
        if part is None or self._is_changing or self._rules.leader is not None:
            return False
        return part.epoch == self._rules.epoch and (part.leader, part.session) == (
            self._host.number,
            self._host.session,
        )

    async def begin_epoch(self) -> None:
        """See `TopicLogs.begin_epoch`."""
        self.check_enough()  # A change that waits for replicas would hold up all others of this broker.
        epoch = self._rules.epoch
        await self._host.begin_epoch(self.topic.id)
        if self.leader is None or self._rules.epoch <= epoch:
            raise self.not_leader()

    # --- leaving -----------------------------------------------------------------------------------------------------

    @property
    def is_failing(self) -> bool:
        """Whether the disk has not taken the last records here."""
        if self.leader is None:
            return self._is_full
        return any(partition.is_failing for partition in self.logs.values())

    @property
    def is_member(self) -> bool:
        """Whether this broker is in the in-sync set, as far as it knows."""
        return self._part is not None and self._host.number in self._part.isr

    @property
    def epoch(self) -> int:
        """The latest epoch that this broker has seen; 0: none."""
        return self._rules.epoch

    @property
    def has_successor(self) -> bool:
        """Whether this broker leads, and another one is in the in-sync set."""
        return self.leader is not None and len(self.leader.part.isr) > 1

    def _damaged(self) -> None:
        if self.leader is not None:
            self._retreat(is_damaged=True)

    def _retreat(self, *, is_damaged: bool) -> None:
        now_s = self.clock.monotonic()
        if now_s - self._retreat_s >= RETREAT_AGAIN_S:
            self._retreat_s = now_s
            self._host.retreat(self.topic.id, is_damaged=is_damaged)

    @property
    def _begins_anew(self) -> bool:
        """Whether the logs here are damaged, and this broker is in no in-sync set that they could harm."""
        part, node = self._part, self._host.number
        return part is not None and node in part.unfit and node not in part.isr

    def hold(self) -> None:
        """Take no publishes, because another broker is about to lead."""
        for partition in self._data_logs():
            partition.hold()

    def release(self) -> None:
        """Take publishes again, if this broker leads on."""
        if self.leader is not None:
            for number, partition in self.logs.items():
                self._lead(number, partition)

    def depart(self) -> None:
        """Follow no more, so that no leader adds this broker again; and take no publishes if another one may lead."""
        self._departs = True
        self._following.cancel()
        if self.has_successor:
            self.hold()

    async def committed(self) -> None:
        """Wait until all publishes that were taken are committed. Raises NotLeader."""
        for partition in self._data_logs():
            await partition.committed.wait(partition.log.bounds()[1])

    def _data_logs(self) -> list[Partition]:
        return [partition for number, partition in self.logs.items() if is_data(number)]

    def obey(self) -> None:
        """Carry out what the rules say."""
        while commands := self._rules.take_commands():
            for command in commands:
                self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Commit(number, offset):
                if number in self.logs:
                    self.logs[number].commit(offset)
                    self._tell_seats(number)
            case Lead(epoch):
                self.counts.elections += 1
                self._stop_following()
                self.topic.leader_epoch = epoch
                for number, partition in self.logs.items():
                    self._lead(number, partition)
            case Recovered():
                self.is_recovered = True
                self._host.settle(self.topic.id)
            case Follow(leader, epoch, _, _):
                self._stop_following()
                self.has_ended = self._serves
                for partition in self.logs.values():
                    partition.follow(leader, epoch, _nothing)
                self._wanted = command
                self._host.settle(self.topic.id)
            case GoOffline(epoch, reason):
                about = {"topic": self.topic.name, "epoch": epoch, "reason": reason}
                logger.info("topic %(topic)s is led here no more, since epoch %(epoch)d: %(reason)s", about)
                self._stop_following()
                self.has_ended = self._serves
                for partition in self.logs.values():
                    partition.go_offline(epoch)
                self._host.settle(self.topic.id)
            case ChangeIsr():
                asking = self._rules.leader
                assert asking is not None, "a leader asks for it"
                self._host.spawn(partial(self._change_isr, asking, command))
            case ReadPart():
                self._host.read(self.topic.id)

    def _lead(self, number: int, partition: Partition) -> None:
        partition.lead(self._rules.epoch, partial(self._durable, number), partial(self._tell_seats, number))
        assert self._rules.leader is not None
        self._rules.leader.durable(number, partition.durable.offset)

    def _durable(self, number: int) -> None:
        leader = self._rules.leader
        if leader is not None:
            leader.durable(number, self.logs[number].durable.offset)
            self._tell_seats(number)
            self.obey()

    def _stop_following(self) -> None:
        """End the role that this broker had: it takes another one, or the same anew."""
        self._wanted, self.is_recovered, self._is_full = None, False, False
        self._following.cancel()
        self._end_seats()
        self._changed.unpark_all()

    async def _change_isr(self, leader: Leader, change: ChangeIsr) -> None:
        try:
            revision = await self._host.change_isr(self.key, change)
        except MetadataUnknown:
            leader.lost_answer(change)
        except (RevisionConflict, MetadataError) as error:
            logger.debug("the in-sync set was not changed: %(error)s", log_fields(error))
            leader.refused(change)
        else:
            about = {"topic": self.topic.name, "nodes": ", ".join(map(str, sorted(change.isr)))}
            logger.info("topic %(topic)s is in sync at nodes %(nodes)s", about)
            self.counts.expansions += bool(change.added)
            self.counts.shrinkages += not change.added
            leader.changed(change, revision)
        self.obey()

    # --- followers ---------------------------------------------------------------------------------------------------

    def follow(
        self, node: int, session: str, epoch: int, tables: Mapping[int, LogTable], silent_s: Callable[[], float]
    ) -> TopicSeat:
        """See `FollowedLogs.follow`."""
        leader = self._rules.leader
        if leader is None or node == self._host.number:
            raise self.not_leader()
        matches = leader.followed(node, epoch, session, tables, silent_s, self.clock.monotonic())
        if node in self._seats:
            self._seats[node].end()
        seat = self._seats[node] = TopicSeat(self, leader, node, session, matches)
        self.obey()
        return seat

    def left(self, seat: TopicSeat, leader: Leader, node: int, session: str) -> None:
        """A follower is gone."""
        if self._seats.get(node) is seat:
            del self._seats[node]
            leader.unfollowed(node, session, self.clock.monotonic())
            self.obey()

    def _tell_seats(self, number: int) -> None:
        for seat in self._seats.values():
            seat.tell(number)

    def _end_seats(self) -> None:
        seats, self._seats = self._seats, {}
        for seat in seats.values():
            seat.end()

    # --- following ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow whenever another broker leads, until closed. Raises SyncFailed."""
        while not self._is_closed:
            wanted, follower = self._wanted, self._rules.follower
            if wanted is None or follower is None or self._departs:
                await self._changed.park()
                continue
            with trio.CancelScope() as self._following:
                await self._try_to_follow(wanted, follower)
            if self._wanted is wanted and not self._is_closed:
                self._rules.follow_again()
                self.obey()

    async def _try_to_follow(self, wanted: Follow, follower: Follower) -> None:
        """Follow until the link is lost, or the leader leads no more. Raises SyncFailed."""
        try:
            while self._serves:
                await self._changed.park()
            lane = await self._host.open_lane(wanted.leader)
            try:
                await self._follow(lane, follower)
            finally:
                lane.close()
        except SyncFailed:
            raise
        except LinnError as error:
            if error.text != self._said:
                about = {"topic": self.topic.name, "node": wanted.leader} | log_fields(error)
                logger.info("node %(node)d is not followed for topic %(topic)s: %(error)s", about)
            self._said = error.text
            await self._back_off.pause()

    async def _follow(self, lane: FollowLane, follower: Follower) -> None:
        """Raises LinnError: the reason for the end."""
        begins_anew, tables = self._begins_anew, follower.request().request
        ends = [f"{it.id} up to {it.log.bounds()[1]}, {it.high_watermark} confirmed" for it in self._data_logs()]
        had = ", ".join(ends)
        if begins_anew:
            tables = {number: LogTable(0, 0, ()) for number in tables}
        matches = await lane.follow(self.topic.id, follower.epoch, tables)
        follower.answered(matches)
        with self._changing():
            await self._match(matches, begins_anew=begins_anew)
        if begins_anew:
            text = "topic %(topic)s is copied anew, since it was damaged here. It had %(ends)s"
            logger.warning(text, {"topic": self.topic.name, "ends": had})
            await self._host.recovered(self.topic.id)
        while True:
            durable = {number: partition.durable.offset for number, partition in self.logs.items()}
            news = await lane.replicate(follower.acknowledge(durable), NEWS_BYTES_MAX)
            self.counts.received_bytes += sum([batch.size for each in news for batch in each.batches])
            try:
                for each in news:
                    await self._store(follower, each)
            except StorageError:
                self._is_full = True
                raise
            self._back_off.reset()
            self._said = ""
            for each in news:
                if each.batches:
                    partition = self.logs[each.number]
                    await partition.durable.wait(partition.log.bounds()[1])
                    self._note_append()
            if not self.is_member:
                await self._host.pace(sum(batch.size for each in news for batch in each.batches))

    def _note_append(self) -> None:
        """The disk takes records: this broker may be elected as any other."""
        self._is_full = False
        if self._part is not None and self._host.number in self._part.unfit and not self._recovers:
            self._recovers = True
            self._host.spawn(self._try_to_recover)

    async def _try_to_recover(self) -> None:
        try:
            with suppress(MetadataError):
                await self._host.recovered(self.topic.id)
        finally:
            self._recovers = False

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Take no other role while logs are cut."""
        self._is_changing = True
        try:
            with trio.CancelScope(shield=True):
                yield
        finally:
            self._is_changing = False
            self._changed.unpark_all()
            self._host.look_again(self.topic.id)

    async def _match(self, matches: Mapping[int, Match], *, begins_anew: bool) -> None:
        # The leader has all logs of the topic. By this broker's own catalog it could delete a log that was made anew.
        await self.keep_subscriptions({subscription_of(number) for number in matches})
        for number, match in matches.items():
            partition = await self._make(number, id_of(self.topic.name, number))
            bounds = partition.log.bounds()
            if begins_anew:
                await partition.restart_at(match.at)
            elif isinstance(match, Cut) and match.at < bounds[1]:
                text = "%(partition)s: its records %(first)d to %(last)d are cut off, as its leader lacks them"
                logger.warning(text, {"partition": str(partition.id), "first": match.at, "last": bounds[1] - 1})
                await partition.cut(match.at)
                if partition.log.bounds()[1] < match.at:
                    raise CopyMisplaced(f"{partition.id} was cut before {match.at}, and has to be compared again")
            elif not isinstance(match, Cut) and bounds != (match.at, match.at):
                await partition.restart_at(match.at)
            if match.producers:
                await partition.know_producers(match.producers)
            self._rules.cut(number)

    async def _store(self, follower: Follower, news: LogNews[RecordBatch]) -> None:
        partition = self.logs.get(news.number)
        if partition is None or not follower.follows(news.number):
            raise ProtocolError(f"the leader sends records of log {news.number}, which does not follow")
        start, end = partition.log.bounds()
        if news.start > end:
            with self._changing():
                await partition.restart_at(news.start)
        if news.batches:
            partition.append_copy(news.batches)
        if news.producers:
            with self._changing():
                await partition.know_producers(news.producers)
        self._thinning.tell(news.number, news.thinned)
        if news.start > start:
            with self._changing():
                await partition.follow_start(news.start)
        partition.commit(self._rules.told(news.number, news.watermark))


def _nothing() -> None:
    """A follower acknowledges when it asks."""
