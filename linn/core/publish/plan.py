"""The plan of one publish: its destinations are found step by step, and all of it is stored in one go at the end.

Law: between two steps anything may happen to the broker's topics; a plan is valid if `is_current` says so at the moment
of its use, without a step between.

A step of a transfer (`linn.core.queue.transfer`) may have labels of the broker's, and goes whole into one partition of
each topic, so that one table of producers tells whether the topic has it. A topic has the step as it was stored first,
also if bindings or interceptors would give it other records now.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from itertools import compress
from operator import not_
from typing import NamedTuple

from linn.core.batch.batch import (
    DELAYS_MS,
    DUES_MS,
    PRIORITIES,
    SCATTERED,
    TRANSACTIONAL,
    TTLS_MS,
    BatchLimits,
    RecordBatch,
)
from linn.core.batch.builder import take_batch, take_steps
from linn.core.batch.format import Formats
from linn.core.batch.record import RESERVED_LABELS
from linn.core.batch.steps import STEP_RECORDS, Steps
from linn.core.errors.auth import Forbidden
from linn.core.errors.messages import MessageInDoubt
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import (
    BatchMalformed,
    ExchangeInternal,
    FeatureUnsupported,
    LinnError,
    MessageInvalid,
    ProducerDuplicate,
    TopicFull,
    TopicUnknown,
)
from linn.core.log.partition import Partition
from linn.core.log.producers import OFFSET_UNKNOWN, Numbered, is_internal, numbers_of
from linn.core.publish.forwarding import PublishLinks
from linn.core.publish.request import PublishRequest, RefusedRecords
from linn.core.routing.budget import PublishBudget
from linn.core.routing.default_exchange import DEFAULT_EXCHANGE
from linn.core.routing.routed_batch import ranges_of
from linn.core.security.access import Access
from linn.core.topics.catalog import Catalog
from linn.core.topics.message_limit import check_steps
from linn.core.topics.served_columns import check_served
from linn.core.topics.timing_logs import is_delayed
from linn.core.topics.topic import Topic
from linn.rights import PUBLISH, SEE, TOPIC, Need

_RESERVED = RESERVED_LABELS.encode()
REFUSED_NUMBERS_MAX = 32_768
"""Limit of the numbers that say which records of one publish are refused: a longer list is not worth an answer, and all
of the publish is refused.
"""


class Destination(NamedTuple):
    """A partition that receives a batch, or a part of it."""

    topic: Topic
    partition: int
    batch: RecordBatch
    known: int | None = None
    """The offset at which it is stored already, because its producer sends it again; None if it is to be stored."""
    dropped: bool = False
    """Whether an interceptor dropped it, so that the partition only has to know that it came."""
    is_twin: bool = False
    """Whether it is stored already by the ids of its messages: the partition has to know that these numbers came."""
    is_delayed: bool = False
    """Whether it goes to the partition's timing log, with a time for each record."""

    @property
    def log(self) -> Partition:
        """The log that receives it. Raises TimingLogMissing."""
        topic, index = self.topic, self.partition
        return topic.timing.at(index).partition if self.is_delayed else topic.partitions[index]


_IDS_TELL = -2
"""Stands for the offset of a producer's batch that is too old for its numbers to tell whether it is stored."""
Indexes = Callable[[], Sequence[int]]
"""Returns the ascending indexes of some records of a batch."""


class Elsewhere(NamedTuple):
    """The topics of another broker that receive a batch, or the same part of it."""

    leader: int
    topics: tuple[str, ...]
    batch: RecordBatch
    indexes: Indexes
    """The indexes in the whole batch."""


class Planned(NamedTuple):
    """The fate of one batch."""

    destinations: list[Destination]
    returned: list[int]
    """Ranges of the records that no topic takes: first, end, first, end and so on."""
    refused: Sequence[RefusedRecords] = ()
    elsewhere: Sequence[Elsewhere] = ()


class Plan:
    """One attempt to find the destinations of a publish. It stores nothing."""

    __slots__ = (
        "_access",
        "_catalog",
        "_formats",
        "_limits",
        "_links",
        "_passes_on",
        "_refused_numbers",
        "_request",
        "_seen",
        "_version",
        "budget",
        "is_split",
    )

    def __init__(
        self,
        catalog: Catalog,
        limits: BatchLimits,
        formats: Formats,
        request: PublishRequest,
        access: Access,
        *,
        passes_on: bool = False,
        links: PublishLinks | None = None,
    ) -> None:
        """
        Args:
            access: the caller's, which may publish to the target.
            passes_on: whether other brokers are asked to store shares of it; if not, it is refused where they would.
            links: to the other brokers of a cluster, which say whether all of them know delays.
        """
        self._access = access
        self._catalog = catalog
        self._limits = limits
        self._formats = formats
        self._request = request
        self._version = catalog.exchanges.version
        self._refused_numbers = 0
        self._seen: list[tuple[Topic, tuple[object, ...]]] = []
        """Topics with the state that decides whether they take a batch, and into which partition."""
        self._passes_on = passes_on
        self._links = links
        self.is_split = False
        """Whether other brokers store some or all of it."""
        self.budget = PublishBudget()

    def made(self) -> Steps[list[Planned]]:
        """Find the destinations of each batch; run the steps to their end.

        Raises:
            BatchError, TopicUnknown, ExchangeUnknown, PartitionUnknown, TopicError, InterceptorFailed, ...
            LimitExceeded: it is over the budget of one publish.
        """
        request, found = self._request, list[Planned]()
        for batch in request.batches:
            batch.verify(self._limits)
            if batch.format:
                self._formats.admit(batch)
            if self._links is not None and is_delayed(batch) and not self._links.delays:
                raise FeatureUnsupported("delays need a cluster of a higher level: linn cluster upgrade raises it")
            if batch.producer_id:
                _check_numbered(batch, request)
            elif batch.transaction or batch.attributes & TRANSACTIONAL:
                raise BatchMalformed("a batch of a transaction has a producer id")
            try:
                refusals: list[LinnError] = []
                if batch.pair_count and _RESERVED in bytes(batch.routes or b"") and not is_internal(batch.producer_id):
                    refusals = yield from _label_refusals(batch)
                planned = Planned([], []) if refusals else (yield from self._attempt(batch, refusals))
                if refusals:
                    planned = yield from self._without(batch, refusals)
                found.append(planned)
                if planned.elsewhere:
                    self.is_split = True
            finally:
                batch.forget_body()
        return found

    def _attempt(self, batch: RecordBatch, refusals: list[LinnError]) -> Steps[Planned]:
        """The destinations of a batch. An error that is about some of its records is added to `refusals`: then the
        result is not to be used.
        """
        request = self._request
        if request.to_exchange:
            return (yield from self._routed(batch, refusals))
        try:
            topic = self._catalog.topic(request.target)
            if topic.led_by is not None and (leader := self._leader_of(topic)):
                self._seen.append((topic, _state_of(topic)))
                return Planned([], [], elsewhere=[Elsewhere(leader, (), batch, partial(range, batch.count))])
            pieces = yield from self._pieces(topic, batch, request.partition)
        except LinnError as error:
            if not _is_noted(error, range(batch.count), refusals):
                raise
            return Planned([], [])
        return Planned(pieces, [])

    def _routed(self, batch: RecordBatch, refusals: list[LinnError]) -> Steps[Planned]:
        """The destinations that an exchange gives a batch."""
        request, budget = self._request, self.budget
        if request.topics:
            if request.target == DEFAULT_EXCHANGE:
                self._access.check_all([Need(PUBLISH, TOPIC, name) for name in request.topics])
            chosen = [(name, batch) for name in request.topics]
            return (yield from self._among(chosen, lambda name: range(batch.count), refusals))
        if request.target == DEFAULT_EXCHANGE and not self._access.is_full:
            yield from self._check_topics(batch)
        router = self._catalog.router(request.target)
        if router.is_internal and not is_internal(batch.producer_id):
            raise ExchangeInternal(f"exchange {router.name} is internal: it takes messages from other exchanges alone")
        try:
            routed = yield from router.route_steps(batch, budget)
            if routed.errors:
                refusals += routed.refusals()
            parts = (yield from routed.part_steps(budget)) if not refusals else []
        except LinnError as error:
            if not _is_noted(error, range(batch.count), refusals):
                raise
            return Planned([], [])
        planned = yield from self._among(parts, routed.indexes_of, refusals)
        return planned._replace(returned=routed.unroutable()) if request.wants_returned else planned

    def _among(
        self,
        parts: Sequence[tuple[str, RecordBatch]],
        indexes_of: Callable[[str], Sequence[int]],
        refusals: list[LinnError],
    ) -> Steps[Planned]:
        """The destinations of the parts of a batch. `indexes_of`: the records of the part of a topic."""
        found: list[Destination] = []
        away: dict[tuple[int, int], Elsewhere] = {}
        for name, part in parts:
            try:
                topic = self._catalog.topic(name)
                if topic.led_by is not None and (leader := self._leader_of(topic)):
                    self._seen.append((topic, _state_of(topic)))
                    yield from self._check_fit(topic, part)
                    alike = away.get((leader, id(part)))
                    topics = (*alike.topics, name) if alike is not None else (name,)
                    away[leader, id(part)] = Elsewhere(leader, topics, part, partial(indexes_of, name))
                    self.budget.store([part])
                    continue
                pieces = yield from self._pieces(topic, part, -1)
            except LinnError as problem:
                if isinstance(problem, TopicUnknown) and self._request.topics:
                    problem = NotLeader(f"topic {name} is not known here yet, or no more")
                shown = shown_to(self._access, problem, name)
                # The other topics are asked about what is left: most refuse the same records.
                if not _is_noted(shown, indexes_of(name), refusals):
                    raise shown from None
                return Planned([], [])
            self.budget.store([piece.batch for piece in pieces])
            found += pieces
            if len(parts) > 1:
                yield
        return Planned(found, [], elsewhere=list(away.values()))

    def _leader_of(self, topic: Topic) -> int:
        """The broker that leads a topic; 0: this one.

        Raises NotLeader: there is none, or it is not asked.
        """
        if topic.led_by is None:
            return 0
        error = topic.led_by()
        if not self._passes_on or not error.leader:
            raise error
        return error.leader

    def _check_topics(self, batch: RecordBatch) -> Steps[None]:
        """Check that the caller may publish to the topics that a batch names for the default exchange. Raises
        Forbidden, whether or not they exist."""
        keys = list({pair.routing_key for pair in batch.pairs()})
        for first in range(0, len(keys), STEP_RECORDS):
            if first:
                yield
            self._access.check_all([Need(PUBLISH, TOPIC, key) for key in keys[first : first + STEP_RECORDS]])

    def _without(self, batch: RecordBatch, errors: list[LinnError]) -> Steps[Planned]:
        """The fate of a batch without the records that are refused, by these errors or in further attempts."""
        left, refused = array("I", range(batch.count)), list[RefusedRecords]()
        while errors:
            gone = bytearray(len(left))
            for error in errors:
                ranges = yield from self._ranges_of(error, left, gone)
                if ranges:
                    refused.append(RefusedRecords(error, ranges))
            left, errors = array("I", compress(left, map(not_, gone))), []
            if not left:
                return Planned(self._dropped(batch), [], refused)
            self.budget.look_into(batch)
            part = yield from take_steps(batch, left)
            self.budget.hold(part)
            planned = yield from self._attempt(part, errors)
        ends = zip(planned.returned[::2], planned.returned[1::2], strict=True)
        returned = [left[index] for first, end in ends for index in range(first, end)]
        away = [each._replace(indexes=partial(_indexes_in, left, each.indexes)) for each in planned.elsewhere]
        return Planned(planned.destinations, ranges_of(returned), refused, away)

    def _ranges_of(self, error: LinnError, left: Sequence[int], gone: bytearray) -> Steps[list[int]]:
        """The records that an error is about, as ranges of indexes in the batch, and mark them as `gone` from `left`.

        Raises the error, as one of the whole publish, if there are more ranges than an answer may have.
        """
        ranges: list[int] = []
        for first in range(0, len(error.indexes), STEP_RECORDS):
            for index in error.indexes[first : first + STEP_RECORDS]:
                if gone[index]:
                    continue
                gone[index], record = 1, left[index]
                if ranges and ranges[-1] == record:
                    ranges[-1] += 1
                else:
                    ranges += (record, record + 1)
            yield
        self._refused_numbers += len(ranges)
        if self._refused_numbers > REFUSED_NUMBERS_MAX:
            raise error.of_messages(())
        return ranges

    def _dropped(self, batch: RecordBatch) -> list[Destination]:
        """The destinations of a batch of which nothing is to be stored: a partition that counts its numbers."""
        partition = self._request.partition
        if self._request.to_exchange or partition < 0 or batch.producer_id <= 0:
            return []
        topic = self._catalog.topic(self._request.target)
        topic.partition(partition)
        return [Destination(topic, partition, batch, dropped=True)]

    def _pieces(self, topic: Topic, batch: RecordBatch, partition: int) -> Steps[list[Destination]]:
        """Split a batch for a topic by partition; -1: its partitioner chooses."""
        if topic.led_by is not None:
            topic.check_led()
        if batch.producer_id < 0:  # `is_internal`, spelled here to save a call per batch.
            partition = max(self._request.partition, 0) % len(topic.partitions)
        elif partition >= 0:
            topic.partition(partition)
        self._seen.append((topic, (topic.settings, topic.interceptors, len(topic.partitions))))  # As `_state_of`.
        limit = topic.settings.message_bytes_max
        if topic.is_own or (limit is not None and (batch.body_bytes > limit or batch.format)):
            yield from self._check_fit(topic, batch)
        admitted = topic.admit(batch, self.budget)
        if admitted is None:
            return self._dropped(batch)
        partitions = len(topic.partitions)
        if not admitted.is_plain and admitted.producer_id >= 0:  # Columns without effect are no reason to lose a step.
            fields = admitted.raw_fields
            if fields[PRIORITIES] is not None or fields[TTLS_MS] is not None:
                is_queue = topic.queue is not None
                check_served(admitted, topic.name, is_queue=is_queue, has_order=topic.order is not None)
            if fields[DELAYS_MS] is not None or fields[DUES_MS] is not None:
                return (yield from self._delayed_pieces(topic, admitted, partition))
        if partition >= 0 or partitions == 1:
            return [Destination(topic, max(partition, 0), admitted)]
        pieces = yield from topic.choice.split_steps(admitted, partitions, self.budget)
        if len(pieces) > 1 and not self._request.to_exchange:
            self.budget.store([piece for _, piece in pieces])
        return [Destination(topic, *piece) for piece in pieces]

    def _delayed_pieces(self, topic: Topic, batch: RecordBatch, partition: int) -> Steps[list[Destination]]:
        """Split a batch with delays by time and by partition."""
        found, partitions = list[Destination](), len(topic.partitions)
        for part, is_later in zip(topic.timing.split(batch), (False, True), strict=True):
            if part is None:
                continue
            pieces = [(max(partition, 0), part)]
            if partition < 0 and partitions > 1:
                pieces = yield from topic.choice.split_steps(part, partitions, self.budget)
            for index, piece in pieces:
                if is_later:
                    topic.timing.at(index).check_room(piece.count)
                found.append(Destination(topic, index, piece, is_delayed=is_later))
        if not self._request.to_exchange:
            self.budget.store([piece.batch for piece in found])
        return found

    def _check_fit(self, topic: Topic, batch: RecordBatch) -> Steps[None]:
        """Check that clients may write to a topic, and that no message is too large for it."""
        if topic.is_own:
            raise Forbidden(f"only the broker writes to {topic.name}")
        limit = topic.settings.message_bytes_max
        may_be_over = limit is not None and (batch.body_bytes > limit or batch.format)
        if is_internal(batch.producer_id):
            return
        if may_be_over and not topic.interceptors:  # Or each may become another.
            yield from check_steps(batch, limit, self.budget)

    def is_current(self) -> bool:
        """Whether all its topics still exist, and are as they were when they admitted their parts."""
        topics = self._catalog.topics
        return all(topics.get(topic.name) is topic and _state_of(topic) == seen for topic, seen in self._seen)

    def may_have_lost_a_topic(self) -> bool:
        """Whether an unknown topic may have been deleted after an exchange had named it."""
        return self._request.to_exchange and self._catalog.exchanges.version != self._version


def _state_of(topic: Topic) -> tuple[object, ...]:
    """The state of a topic that decides whether it takes a batch here, and into which partition."""
    return topic.settings, topic.interceptors, len(topic.partitions)


def _label_refusals(batch: RecordBatch) -> Steps[list[LinnError]]:
    """The error about the records of a verified batch that have labels of the broker's, if there are any.

    A dead letter's labels say where a replay sends it, and which record has its copy, so that a forged one would count
    as the copy of a record that has none (CVE-2026-33246 of NATS is alike). Each distinct pair is examined, and only if
    the encoded pairs hold such a name: other batches cost one search in their bytes.

    Raises BatchMalformed.
    """
    names = [next((name for name, _ in pair.labels if name.startswith(RESERVED_LABELS)), "") for pair in batch.pairs()]
    yield
    if not (wrong := next(filter(None, names), "")):
        return []
    which, found = batch.route_index, list[int]()
    for first in range(0, batch.count, STEP_RECORDS):
        records = range(first, min(first + STEP_RECORDS, batch.count))
        found += records if which is None else [index for index in records if names[which[index]]]
        yield
    text = f'label "{wrong[:80]}": names that begin with "{RESERVED_LABELS}" are reserved for the broker'
    return [MessageInvalid(text).of_messages(found)] if found else []


def _indexes_in(outer: Sequence[int], inner: Indexes) -> Sequence[int]:
    """The indexes, in a batch, of some records of a part of it that has these records."""
    return [outer[index] for index in inner()]


def _is_noted(error: LinnError, records: Sequence[int], refusals: list[LinnError]) -> bool:
    """Note an error of a part of a batch with the indexes of its records in the batch; False if it names none."""
    if error.indexes:
        named = error if isinstance(records, range) else error.of_messages([records[i] for i in error.indexes])
        refusals.append(named.with_traceback(None))  # Its frames refer to `refusals`, and so to it.
    return bool(error.indexes)


def _check_numbered(batch: RecordBatch, request: PublishRequest) -> None:
    """Check that an idempotent producer's batch comes as it must. Raises BatchMalformed."""
    if len(request.batches) > 1:
        raise BatchMalformed("a batch with a producer id is published alone, so that it is stored or refused alone")
    if bool(batch.attributes & TRANSACTIONAL) != bool(batch.transaction):
        raise BatchMalformed("a batch of a transaction says so (TRANSACTIONAL), and has its number")
    if request.partition < 0 and not batch.attributes & SCATTERED:
        raise BatchMalformed("a batch with a producer id whose partition the broker chooses has to say so (SCATTERED)")


def recognize(request: PublishRequest, planned: list[Planned], access: Access) -> list[Planned]:
    """Mark batches that are stored already, in a plan, by the numbers of their producer or the ids of their messages.

    Raises ProducerError, MessageInDoubt.
    """
    if len(planned) == 1 and request.batches[0].producer_id:
        numbers = numbers_of(request.batches[0])
        is_part = bool(planned[0].elsewhere or request.topics)
        destinations = [_recognized(destination, numbers, is_part) for destination in planned[0].destinations]
        planned = [planned[0]._replace(destinations=destinations)]
    for plan in planned:
        for destination in plan.destinations:
            if destination.topic.ids.dedup is not None:
                return _without_duplicates(planned, access)
    return planned


def _recognized(destination: Destination, numbers: Numbered, is_part: bool) -> Destination:
    """`is_part`: whether other brokers store a share of the publish, and it may be sent again for them alone."""
    if is_internal(numbers.producer_id):
        return _recognized_step(destination, numbers)
    topic, _, batch, _, dropped, _, is_later = destination
    knows_ids = topic.ids.dedup is not None and not is_later  # Then fewer of its records may have been stored.
    if is_later:
        numbers = numbers._replace(scattered=True)
    try:
        known = destination.log.find(numbers, None if knows_ids else batch.offset_span)
    except ProducerDuplicate:
        if not dropped and not is_part and not knows_ids:
            raise
        known = OFFSET_UNKNOWN if dropped or is_part else _IDS_TELL
    return destination if known is None else destination._replace(known=known)


def _recognized_step(destination: Destination, numbers: Numbered) -> Destination:
    """Recognize a step of a transfer, also in another partition: the topic may have grown since it was stored."""
    for index, partition in destination.topic.partitions.items():
        try:
            known = partition.find(numbers, destination.batch.offset_span)
        except ProducerDuplicate:
            known = OFFSET_UNKNOWN
        if known is not None:
            return destination._replace(partition=index, known=known)
    return destination


def _without_duplicates(planned: Sequence[Planned], access: Access) -> list[Planned]:
    """Leave out the records whose ids their topics know. Raises MessageInDoubt."""
    before: dict[tuple[Topic, int], set[bytes]] = {}
    return [
        plan._replace(destinations=[_deduplicated(each, before, access) for each in plan.destinations])
        for plan in planned
    ]


def _deduplicated(destination: Destination, before: dict[tuple[Topic, int], set[bytes]], access: Access) -> Destination:
    topic, index, batch, known, dropped, _, is_later = destination
    if (
        topic.ids.dedup is None
        or dropped
        or known not in (None, _IDS_TELL)
        or is_internal(batch.producer_id)
        or is_later
    ):
        return destination  # Copies of the broker have the ids of the records that they are made of.
    try:
        seen = before.setdefault((topic, index), set())
        fresh, place = topic.ids.dedup.find(topic.partitions[index], batch, seen)
    except MessageInDoubt as error:
        raise shown_to(access, error, topic.name) from None
    if not fresh:
        return destination._replace(known=place, is_twin=known is None)
    if known == _IDS_TELL:
        topic.partitions[index].find(numbers_of(batch), None)  # Raises what was found before.
    return destination._replace(batch=take_batch(batch, fresh)) if len(fresh) < batch.count else destination


def shown_to(access: Access, error: LinnError, topic: str) -> LinnError:
    """The error of a topic behind an exchange; without its text if the publisher may not see the topic."""
    if access.is_full or access.may(SEE, TOPIC, topic):
        return error
    hidden = copy(error)
    hidden.text = "a topic behind the exchange refuses it"
    hidden.args = (hidden.text,)
    return hidden


class WantedRoom(NamedTuple):
    """The room that a publish wants in one topic."""

    topic: Topic
    bytes: int
    records: int


def without_room(planned: Sequence[Planned], access: Access) -> WantedRoom | None:
    """The room that a publish wants in a topic that does not have it, or None. A topic is asked once, for all parts.

    Raises TopicFull.
    """
    wanted: dict[Topic, tuple[int, int]] = {}
    for plan in planned:
        for topic, _, batch, known, dropped, _, is_later in plan.destinations:
            settings = topic.settings
            is_limited = settings.bytes_max is not None or settings.records_max is not None
            if is_limited and known is None and not dropped and not is_later:
                size, count = wanted.get(topic, (0, 0))
                wanted[topic] = size + batch.size, count + batch.count
    for topic, (size, count) in wanted.items():
        try:
            if not topic.room.takes(size, count):
                return WantedRoom(topic, size, count)
        except TopicFull as error:
            raise shown_to(access, error, topic.name) from None
    return None
