"""Subscribing: check a request against its topic, and make the consumer."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from linn.core.admin.place import check_offset
from linn.core.delivery.consumer import AnyConsumer, OnAssigned
from linn.core.errors.tree import DeliveryError, SubscriptionWrongKind, TopicReplaced
from linn.core.gateway.requests import START_EARLIEST, START_LATEST, SubscribeRequest
from linn.core.gateway.rooms import Rooms
from linn.core.groups.group import check_name
from linn.core.groups.member import GroupMember, JoinRequest
from linn.core.groups.reader import StreamReader
from linn.core.log.selection import Selection
from linn.core.queue.consumer import QueueConsumer
from linn.core.queue.queue import Queue
from linn.core.routing.record_filter import RecordFilter
from linn.core.topics.topic import Topic
from linn.rights import CONSUME, GROUP, TOPIC, USE, Need


def is_missing(rooms: Rooms, request: SubscribeRequest) -> bool:
    """Whether a topic, a shared subscription or the log of groups must be made before a client can subscribe, or the
    topic needs a leader.

    The broker that leads a topic makes its shared subscriptions, and its log of groups.
    """
    topic = rooms.catalog.topics.get(request.topic)
    if topic is None:
        return rooms.settings.auto_create_topics
    if topic.led_by is not None and not topic.led_by().leader:
        return True
    if topic.led_by is not None:
        return False
    if request.shared:
        return request.shared not in topic.subscriptions
    return bool(request.group) and topic.stream is not None and topic.lacks_positions


async def make_missing(rooms: Rooms, request: SubscribeRequest) -> None:
    """Make a topic with default settings, a named shared subscription, and the log of the positions of groups, unless
    they exist; wait for the topic's leader.

    A topic has none for a moment when it is new, and when its leader was lost. The wait ends after some seconds.

    Raises ConfigError, LimitExceeded, SubscriptionWrongKind, TopicUnknown, StorageError.
    """
    if rooms.settings.auto_create_topics and request.topic not in rooms.catalog.topics:
        await rooms.administration.create_default_topic(request.topic)
    topic = rooms.catalog.topic(request.topic)
    if topic.led_by is not None:
        await rooms.administration.wait_topic_led(topic.name)
    if topic.led_by is not None:
        return
    if request.group and not request.shared and topic.stream is not None:
        await rooms.administration.open_positions(topic.name)
    if request.shared:
        _check_shared(topic, request)
        _check_start(topic, request)
        place = _start_of(topic, request)
        starts = [place(index) for index in sorted(topic.partitions)]
        await rooms.administration.make_subscription(topic.name, request.shared, starts)


def needs_of(request: SubscribeRequest) -> Sequence[Need]:
    """The rights that a consumer needs."""
    needs = [Need(CONSUME, TOPIC, request.topic)]
    return [*needs, Need(USE, GROUP, request.group)] if request.group else needs


def partitions_read(rooms: Rooms, topic: Topic, request: SubscribeRequest) -> int:
    """The number of partitions that a new consumer reads; 0 for a queue. A group's member is counted with its share."""
    if request.group and topic.stream is not None:
        return -(-len(topic.partitions) // (rooms.groups.members(request.group, topic.name) + 1))
    if topic.queue is None and not request.shared:
        return len(request.partitions) or len(topic.partitions)
    return 0


def selection_of(rooms: Rooms, where: str, accepts: Sequence[int]) -> Selection | None:
    """The selection for a predicate; None: all records. Raises PredicateInvalid."""
    return Selection(RecordFilter.parse(where), rooms.long_work, accepts) if where else None


def consumer_of(
    rooms: Rooms, topic: Topic, request: SubscribeRequest, accepts: Sequence[int], on_assigned: OnAssigned
) -> AnyConsumer:
    """Make the consumer for a request. Raises the errors of `Session.subscribe_nowait`."""
    selection = selection_of(rooms, request.where, accepts)
    if request.shared:
        _check_shared(topic, request)
        return _competing(topic, topic.shared(request.shared), request)
    if request.priority and (request.group or topic.queue is None):
        raise SubscriptionWrongKind(
            f"topic {topic.name} is read as a stream: only consumers that compete for records have a priority"
        )
    if request.group:
        return _member(rooms, topic, request, selection, on_assigned)
    if topic.queue is not None:
        if selection is not None:
            raise SubscriptionWrongKind(
                f"topic {topic.name} is a queue: records that a consumer's filter leaves out would never be delivered"
            )
        if request.start != START_EARLIEST or request.starts or request.partitions:
            raise SubscriptionWrongKind(
                f"topic {topic.name} is a queue: its consumers get what is not settled, "
                "and choose no start or partition"
            )
        return _competing(topic, topic.queue, request)
    return _reader(topic, request, selection)


def _member(
    rooms: Rooms, topic: Topic, request: SubscribeRequest, selection: Selection | None, on_assigned: OnAssigned
) -> GroupMember:
    if topic.stream is None:
        raise SubscriptionWrongKind(f"topic {topic.name} is a queue: consumers compete without naming a group")
    if topic.lacks_positions:
        raise TopicReplaced(f"topic {topic.name} was deleted and made again, just before this consumer came")
    group = rooms.groups.groups.get(request.group)
    committed = group.offsets() if group is not None else {}
    if not all((topic.name, index) in committed for index in topic.partitions):
        _check_start(topic, request)
    who = request.member, request.session_s, request.is_static
    how = selection, request.is_uncommitted
    return rooms.groups.join(JoinRequest(request.group, topic.name, _start_of(topic, request), on_assigned, *who, *how))


def _reader(topic: Topic, request: SubscribeRequest, selection: Selection | None) -> StreamReader:
    for index in request.partitions:
        topic.partition(index)
    for index in request.partitions or topic.partitions if request.leader_epoch else ():
        at = request.starts[index] if index < len(request.starts) else request.start
        topic.partition(index).check_position(at, request.leader_epoch)
    if not request.leader_epoch:
        _check_start(topic, request)
    reader, place = topic.read(is_uncommitted=request.is_uncommitted), _start_of(topic, request)
    reader.selection = selection
    reader.read_all_from({index: place(index) for index in request.partitions or topic.partitions})
    return reader


def _competing(topic: Topic, queue: Queue, request: SubscribeRequest) -> QueueConsumer:
    if request.member:
        check_name(request.member, "consumer")
        if "\0" in request.member:  # Such names are holders of transactions.
            raise DeliveryError("a consumer's name must not contain NUL")
    if queue.is_two_phase != request.is_two_phase or (queue.is_two_phase and not request.member):
        raise _wrong_phases(topic, queue)
    lease_ms = 0 if topic.semantics.settles_on_delivery else topic.settings.lease_ms or 0
    return queue.join(lease_ms, request.member, request.priority)


def _wrong_phases(topic: Topic, queue: Queue) -> SubscriptionWrongKind:
    how = f'topic {topic.name} has delivery = "{topic.settings.delivery}"'
    if queue.is_two_phase:
        return SubscriptionWrongKind(f"{how}: its consumers have a name and a participant, which stores their effects")
    return SubscriptionWrongKind(f"{how}: only a topic that delivers in two phases has consumers with a participant")


def _check_shared(topic: Topic, request: SubscribeRequest) -> None:
    """Check a request for a named subscription. Raises SubscriptionWrongKind."""
    if request.group:
        raise SubscriptionWrongKind("a consumer belongs to a group or to a shared subscription, not to both")
    if request.where or request.partitions:
        text = f"consumers of the shared subscription {request.shared[:80]} of topic {topic.name} choose no records: "
        raise SubscriptionWrongKind(text + "records that one leaves out would never be delivered")


def _check_start(topic: Topic, request: SubscribeRequest) -> None:
    """Check that a consumer does not start beyond the end of a log. Raises OffsetOutOfRange."""
    if not request.starts:
        check_offset(request.start, [topic.partition(index) for index in request.partitions or topic.partitions])
    for index, at in enumerate(request.starts):
        if index in topic.partitions:
            check_offset(at, [topic.partitions[index]])


def _start_of(topic: Topic, request: SubscribeRequest) -> Callable[[int], int]:
    # Read now, not when a partition is assigned: records confirmed from now on must be delivered.
    start, starts = request.start, request.starts
    ends = [] if start == START_EARLIEST and not starts else [log.stable_offset for log in topic.partitions.values()]
    wanted = zip(starts or [start] * len(ends), ends, strict=False)
    places = array("q", [end if at == START_LATEST or at > end else at if at > 0 else 0 for at, end in wanted])
    # A partition added later is read from its start; readers skip records dropped by retention.
    return lambda index: places[index] if index < len(places) else 0
