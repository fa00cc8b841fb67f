"""The messages of the native protocol as plain values, one class per member of `Frame` in schema/protocol.capnp.

The fields are the schema's, in snake case. `codec` turns them into bytes and back.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from linn.core.delivery.vocabulary import CONNECTION_LEASE_MS as CONNECTION_LEASE_MS
from linn.core.delivery.vocabulary import ConsumerKind as ConsumerKind
from linn.core.delivery.vocabulary import Phase as Phase
from linn.core.delivery.vocabulary import Place as Place
from linn.core.delivery.vocabulary import Verdict as Verdict


class Acks(IntEnum):
    """The confirmation that a publish waits for."""

    NONE = 0
    LEADER = 1
    ALL = 2


LIMIT_MAX = 2**32 - 1
"""The largest limit that can be sent to a peer; a larger one means no limit."""
MANDATORY_RECORDS_MAX = 32_768
"""Limit of the records in one publish. If every other record is unroutable, the answer is a list of as many numbers."""
SETTLE_ENTRIES_MAX = 4_096
"""Limit of the entries in one settle. Most clients send far fewer."""
FOLLOW_ROWS_MAX = 65_536
"""Limit of the logs in one `follow`, and of the epochs of all of them. A log has a few, and at most 1,000."""
WHOLE_LEASE = -1
"""`first` and `end` of a settlement of all remaining records of a lease."""
START_EARLIEST = -2
START_LATEST = -1
LANE_SUBSCRIPTION = 1
"""The number of the only subscription in a lane between brokers."""
WHERE_IT_IS = -1
"""The offset of a seek that only pauses or resumes."""


class Message(msgspec.Struct, gc=False):
    """A message or a part of one in a Frame."""


class Unknown(Message):
    """A member of Frame that this version does not know: a request of a newer client."""


class Hello(Message):
    version_min: int
    version_max: int
    features: list[str]
    client: str
    producer_id: int = 0
    producer_key: int = 0
    logs_in: bool = False


class Welcome(Message):
    version: int
    features: list[str]
    broker: str
    frame_bytes_max: int
    batch_bytes_max: int
    message_bytes_max: int
    keepalive_ms: int
    inflight_max: int
    subscriptions_max: int
    producer_id: int = 0
    producer_key: int = 0
    user: str = ""
    login: str = ""
    cluster: str = ""
    node: int = 0


class Challenge(Message):
    mechanisms: list[str]
    data: str = ""


class Authenticate(Message):
    mechanism: str
    data: str


class Failed(Message):
    code: str
    text: str
    retriable: bool = False
    partition: int = 0
    offset: int = 0
    leader: int = 0
    leader_epoch: int = 0


class Ping(Message):
    pass


class Pong(Message):
    pass


class Goodbye(Message):
    reason: str = ""


class Done(Message):
    pass


class Publish(Message):
    target: str
    to_exchange: bool = False
    acks: int = Acks.LEADER
    partition: int = -1
    mandatory: bool = False
    topics: list[str] = []


class RefusedRecords(Message):
    code: str
    text: str
    records: list[int] = []


class Placement(Message):
    partition: int
    base_offset: int
    copies: int
    returned: list[int] = []
    leader_epoch: int = 0
    topic_id_high: int = 0
    topic_id_low: int = 0
    refused: list[RefusedRecords] = []


class Published(Message):
    placements: list[Placement]


class Fetch(Message):
    topic: str
    partition: int
    offset: int
    bytes_min: int = 1
    bytes_max: int = 1 << 20
    wait_max_ms: int = 0
    where: str = ""
    unsettled: bool = False
    leader_epoch: int = 0
    topic_id_high: int = 0
    topic_id_low: int = 0
    formats: list[int] = []
    uncommitted: bool = False


class Fetched(Message):
    start_offset: int
    high_watermark: int
    next_offset: int
    leader_epoch: int = 0


class FindOffset(Message):
    topic: str
    partition: int
    timestamp_ms: int = 0
    place: int = Place.TIME


class FoundOffset(Message):
    offset: int


class Subscribe(Message):
    topic: str
    group: str = ""
    credit: int = 0
    start: int = START_EARLIEST
    partitions: list[int] = []
    starts: list[int] = []
    where: str = ""
    member: str = ""
    session_ms: int = 0
    is_static: bool = False
    leader_epoch: int = 0
    topic_id_high: int = 0
    topic_id_low: int = 0
    shared: str = ""
    formats: list[int] = []
    two_phase: bool = False
    uncommitted: bool = False
    priority: int = 0


class Subscribed(Message):
    subscription: int
    kind: int
    lease_ms: int
    leader_epoch: int = 0
    topic_id_high: int = 0
    topic_id_low: int = 0
    stands_by: bool = False


class Unsubscribe(Message):
    subscription: int


class Credit(Message):
    subscription: int
    records: int


class Deliver(Message):
    subscription: int
    partition: int
    delivery_id: int
    attempt: int
    passed_to: int = 0
    phase: int = 0
    settled_before: int = 0


class Pull(Message):
    subscription: int
    records_max: int
    wait_max_ms: int = 0
    placed: bool = False
    partition: int = 0
    start: int = 0


class Settlement(Message):
    partition: int
    delivery_id: int
    first: int
    end: int
    verdict: int = Verdict.ACK
    ms: int = 0
    reason: int = 0
    """Index of its reason in `Settle.reasons`, from 1; 0: none."""


class Settle(Message):
    subscription: int
    entries: list[Settlement]
    reasons: list[str] = []


class Refusal(Message):
    entry: int
    code: str
    text: str


class Resolve(Message):
    subscription: int
    partition: int
    delivery_id: int
    first: int
    end: int


class Resolved(Message):
    is_decided: bool


class OpenTransactions(Message):
    name: str
    timeout_ms: int
    producer_id: int = 0
    epoch: int = 0
    opening: int = 0
    """A random number, the same when the request is repeated; 0: none."""
    producer_key: int = 0


class OpenedTransactions(Message):
    producer_id: int
    epoch: int
    number: int
    producer_key: int = 0


class AddBranch(Message):
    producer_id: int
    epoch: int
    branch: int
    producer_key: int = 0


class SettleInTransaction(Message):
    producer_id: int
    epoch: int
    number: int
    subscription: int
    entries: list[Settlement]
    producer_key: int = 0


class EndTransaction(Message):
    producer_id: int
    epoch: int
    number: int
    is_commit: bool
    branches: list[int] = []
    sequence: int = 0
    identity: str = ""
    producer_key: int = 0


class Settled(Message):
    refused: list[Refusal]


class Assigned(Message):
    subscription: int
    epoch: int
    partitions: list[int]
    revoked: list[int] = []


class Heartbeat(Message):
    subscription: int
    epoch: int


class Seek(Message):
    subscription: int
    partition: int
    offset: int = WHERE_IT_IS
    is_paused: bool = False


class Commit(Message):
    subscription: int
    partition: int
    epoch: int
    offset: int
    text: str = ""


class Ended(Message):
    subscription: int
    code: str
    text: str


class LeaseEnded(Message):
    subscription: int
    partition: int
    delivery_id: int


class Describe(Message):
    topics: list[str] = []


class Node(Message):
    id: int
    address: str


class PartitionInfo(Message):
    leader: int
    start_offset: int
    high_watermark: int
    leader_epoch: int = 0


class TopicInfo(Message):
    name: str
    kind: str
    partitions: list[PartitionInfo]
    delivery: str
    message_bytes_max: int
    partitioner: str = ""
    id_high: int = 0
    id_low: int = 0


class Description(Message):
    broker: str
    nodes: list[Node]
    topics: list[TopicInfo]


class Administer(Message):
    verb: str
    arguments: str = "{}"


class Administered(Message):
    result: str


class PeerChallenge(Message):
    nonce: str


class PeerProof(Message):
    cluster: str
    node: int
    session: str
    to_node: int
    to_session: str
    nonce: str
    proof: str


class PeerWelcome(Message):
    proof: str
    frame_bytes_max: int
    lanes_max: int
    lane_requests_max: int
    lane_bytes_max: int
    requests_max: int
    bytes_max: int


class PeerPong(Message):
    clock_ms: int


class ProducerKey(Message):
    producer_id: int
    producer_key: int


class OpenLane(Message):
    connection: str
    client: str
    user: str
    login: str
    roles: list[str] = []
    producers: list[ProducerKey] = []


class CloseLane(Message):
    pass


class EpochStart(Message):
    leader_epoch: int
    offset: int


class LogTable(Message):
    log: int
    start: int
    end: int
    epochs: list[EpochStart] = []


class Follow(Message):
    topic_id_high: int
    topic_id_low: int
    leader_epoch: int
    logs: list[LogTable]


class LogCut(Message):
    log: int
    at: int
    is_restart: bool = False
    producers: bytes = b""


class Followed(Message):
    cuts: list[LogCut]


class LogEnd(Message):
    log: int
    end: int


class Replicate(Message):
    ends: list[LogEnd]
    bytes_max: int


class LogNews(Message):
    log: int
    start: int
    watermark: int
    batches: int = 0
    producers: bytes = b""
    thinned: int = 0


class Replicated(Message):
    logs: list[LogNews]


class JoinTransaction(Message):
    branch: int
    number: int
    topic: str
    topic_id_high: int
    topic_id_low: int
    user: str = ""
    owner_epoch: int = -1


class MarkTransaction(Message):
    topic: str
    topic_id_high: int
    topic_id_low: int
    producer_id: int
    number: int
    commits: list[int] = []
    aborts: list[int] = []


class OpenInbox(Message):
    pass


class Inbox(Message):
    address: str


class Reply(Message):
    to: str
