"""All that the author of a plugin imports: ports, kinds, the batch, errors. The rest of linn may change at any time.

By kind of plugin: `hookimpl`, and for

- a storage engine `EngineKind`, `StorageEngine`, `PartitionLog`;
- delivery semantics `SemanticsKind`, `DeliverySemantics`, `SharedSubscription`;
- an exchange `ExchangeKind`, `Exchange`, `Binding`, `Subject`;
- a partitioner `PartitionerKind`, `Partitioner`;
- an assignor of consumer groups `AssignorKind`, `Assignor`;
- a format of bodies `FormatKind`, `BodyFormat`, `BodyColumns`;
- an interceptor `InterceptorKind`, `Interceptor`;
- an observer `Observer`;
- a service `ServiceKind`, `Service`, `ServiceHost`, `ServiceTopic`, `ServiceMetric`, `Program`;
- a wire protocol `ProtocolKind`, `ProtocolServer`, `Gateway`, `Session`, and the `Consumer`s that it hands out.

`linn.testing` has a conformance suite for each, except for observers. A plugin that derives from a built-in one imports
that from its own module, such as `linn.plugins.exchanges`, `linn.semantics` and `linn.storage_engines.dram`.
"""

from __future__ import annotations

from linn.core.admin.verb import ARGUMENTS_BYTES_MAX
from linn.core.batch.batch import TRANSACTIONAL, RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch, build_from_records, edit_batch, wrap_body
from linn.core.batch.flat_message import Buffer
from linn.core.batch.format import BodyColumns, BodyFormat, FormatKind
from linn.core.batch.key_hash import key_hash, partition_of
from linn.core.batch.record import Headers, Record
from linn.core.batch.routes import Pair
from linn.core.batch.steps import TURN_S, Steps, run_steps
from linn.core.config.topic_settings import TopicSettings
from linn.core.connections.connections import CLIENT_CHARACTERS_MAX
from linn.core.connections.listener_traffic import SubscriptionOf, Traffic
from linn.core.delivery.consumer import AnyConsumer, CompetingConsumer, Consumer, Member, Reader
from linn.core.delivery.delivery import NOTHING, Delivery
from linn.core.delivery.settlement import Settlement, SettleOutcome
from linn.core.delivery.vocabulary import ConsumerKind, Phase, Place, Verdict
from linn.core.env.env import AcceptedStream, Clock, Env, Program, Rng, Stream
from linn.core.env.file_region import Sendable, behind
from linn.core.env.log_fields import log_fields
from linn.core.env.real.env import RealEnv
from linn.core.errors.group import raise_once
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import (
    BatchCorrupt,
    BatchMalformed,
    BindingInvalid,
    ConnectionLost,
    DiskFull,
    DiskReadOnly,
    InternalError,
    LimitExceeded,
    LinnError,
    LogClosed,
    LogCorrupt,
    OffsetOutOfRange,
    PluginError,
    ProgramEnded,
    ProgramNotStarted,
    ProtocolError,
    RequestTimeout,
    RequestUnknown,
    StorageError,
    SubscriptionUnknown,
    SubscriptionWrongKind,
    Unroutable,
)
from linn.core.gateway.fetch import FETCH_BYTES_MAX, Fetch
from linn.core.gateway.gateway import Gateway
from linn.core.gateway.principal import Principal
from linn.core.gateway.protocol import ProtocolKind, ProtocolServer
from linn.core.gateway.requests import (
    START_EARLIEST,
    START_LATEST,
    Fetched,
    FetchRequest,
    Subscribed,
    SubscribeRequest,
    TopicBounds,
)
from linn.core.gateway.session import Session
from linn.core.groups.assignor import Assignor, AssignorKind
from linn.core.log.facts import LogFacts
from linn.core.log.mark import Mark
from linn.core.log.storage import (
    READ_BATCHES_MAX,
    Capabilities,
    DamagedTail,
    EngineKind,
    LogStatistics,
    PartitionId,
    PartitionLog,
    StorageEngine,
    StoredBatch,
)
from linn.core.loop.fair_turns import TurnSlot
from linn.core.loop.histogram import Histogram
from linn.core.loop.memory_budget import RESERVE_BYTES, MemoryShare, ReceiveReservation
from linn.core.loop.waiting import WaitDeadline
from linn.core.metrics.registry import Family
from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.interceptor import Interceptor, InterceptorKind
from linn.core.ports.observer import Observer, Observers
from linn.core.ports.service import Service, ServiceHost, ServiceKind, ServiceListener, ServiceMetric, ServiceTopic
from linn.core.publish.publisher import PublishLane
from linn.core.publish.request import PublishAnswers, PublishRequest, PublishResult
from linn.core.queue.lease import Lease, LeaseSettings
from linn.core.queue.semantics import CONFIRM_WHEN, Acks, ConfirmWhen, DeliverySemantics, SemanticsKind
from linn.core.queue.subscription import SharedSubscription
from linn.core.routing.binding_table import BindingTable
from linn.core.routing.exchange import Binding, Exchange, ExchangeKind, Subject, Target
from linn.core.routing.explanation import Explanation
from linn.core.routing.partitioner import Partitioner, PartitionerKind
from linn.core.transactions.event import IDENTITY_CHARACTERS_MAX

__all__ = [
    "ARGUMENTS_BYTES_MAX",
    "CLIENT_CHARACTERS_MAX",
    "CONFIRM_WHEN",
    "FETCH_BYTES_MAX",
    "IDENTITY_CHARACTERS_MAX",
    "NOTHING",
    "READ_BATCHES_MAX",
    "RESERVE_BYTES",
    "START_EARLIEST",
    "START_LATEST",
    "TRANSACTIONAL",
    "TURN_S",
    "AcceptedStream",
    "Acks",
    "AnyConsumer",
    "Assignor",
    "AssignorKind",
    "BatchColumns",
    "BatchCorrupt",
    "BatchMalformed",
    "Binding",
    "BindingInvalid",
    "BindingTable",
    "BodyColumns",
    "BodyFormat",
    "Buffer",
    "Capabilities",
    "Clock",
    "CompetingConsumer",
    "ConfirmWhen",
    "ConnectionLost",
    "Consumer",
    "ConsumerKind",
    "DamagedTail",
    "Delivery",
    "DeliverySemantics",
    "DiskFull",
    "DiskReadOnly",
    "EngineKind",
    "Env",
    "Exchange",
    "ExchangeKind",
    "Explanation",
    "Family",
    "Fetch",
    "FetchRequest",
    "Fetched",
    "FormatKind",
    "Gateway",
    "Headers",
    "Histogram",
    "Interceptor",
    "InterceptorKind",
    "InternalError",
    "Lease",
    "LeaseSettings",
    "LimitExceeded",
    "LinnError",
    "LogClosed",
    "LogCorrupt",
    "LogFacts",
    "LogStatistics",
    "Mark",
    "Member",
    "MemoryShare",
    "Observer",
    "Observers",
    "OffsetOutOfRange",
    "Pair",
    "PartitionId",
    "PartitionLog",
    "Partitioner",
    "PartitionerKind",
    "Phase",
    "Place",
    "PluginError",
    "Principal",
    "Program",
    "ProgramEnded",
    "ProgramNotStarted",
    "ProtocolError",
    "ProtocolKind",
    "ProtocolServer",
    "PublishAnswers",
    "PublishLane",
    "PublishRequest",
    "PublishResult",
    "Reader",
    "RealEnv",
    "ReceiveReservation",
    "Record",
    "RecordBatch",
    "RequestTimeout",
    "RequestUnknown",
    "Rng",
    "SemanticsKind",
    "Sendable",
    "Service",
    "ServiceHost",
    "ServiceKind",
    "ServiceListener",
    "ServiceMetric",
    "ServiceTopic",
    "Session",
    "SettleOutcome",
    "Settlement",
    "SharedSubscription",
    "Steps",
    "StorageEngine",
    "StorageError",
    "StoredBatch",
    "Stream",
    "Subject",
    "SubscribeRequest",
    "Subscribed",
    "SubscriptionOf",
    "SubscriptionUnknown",
    "SubscriptionWrongKind",
    "Target",
    "TopicBounds",
    "TopicSettings",
    "Traffic",
    "TurnSlot",
    "Unroutable",
    "Verdict",
    "WaitDeadline",
    "behind",
    "build_batch",
    "build_from_records",
    "did_you_mean",
    "edit_batch",
    "hookimpl",
    "key_hash",
    "log_fields",
    "partition_of",
    "raise_once",
    "run_steps",
    "wrap_body",
]
