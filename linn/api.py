"""All that the author of a plugin imports: ports, kinds, the batch, errors. The rest of linn may change at any time.

By kind of plugin: `hookimpl`, and for

- a storage engine `EngineKind`, `StorageEngine`, `PartitionLog`;
- delivery semantics `SemanticsKind`, `DeliverySemantics`, `LeaseSettings`;
- a dispatch order `OrderKind`, `DispatchOrder`, `OrderOptions`, `Taken`;
- an exchange `ExchangeKind`, `Exchange`, `Binding`, `Subject`;
- a partitioner `PartitionerKind`, `Partitioner`;
- an assignor of consumer groups `AssignorKind`, `Assignor`;
- a format of bodies `FormatKind`, `BodyFormat`, `BodyColumns`;
- an interceptor `InterceptorKind`, `Interceptor`;
- an authenticator `AuthenticatorKind`, `Authenticator`, `Credentials`, `Authenticated`;
- an authorizer `AuthorizerKind`, `Authorizer`, `Decision`;
- a metadata store `MetadataStoreKind`, `MetadataStore`, `Watch`, `Snapshot`, `Changes`, `Stored`;
- an observer `Observer`;
- a service `ServiceKind`, `Service`, `ServiceHost`, `ServiceTopic`, `ServiceMetric`, `Program`;
- a wire protocol `ProtocolKind`, `ProtocolServer`, `Gateway`, `Session`, and the `Consumer`s that it hands out.

`linn.testing` has a conformance suite for each, except for observers. A plugin that derives from a built-in one imports
that from its own module, such as `linn.plugins.exchanges`, `linn.semantics` and `linn.storage_engines.dram`.
"""

from __future__ import annotations

from linn.core.admin.verb import ARGUMENTS_BYTES_MAX
from linn.core.batch.batch import BATCH_BYTES_MIN, NUMBER_BYTES, TRANSACTIONAL, RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch, build_from_records, edit_batch, wrap_body
from linn.core.batch.flat_message import DATA_AT, WORD, Buffer
from linn.core.batch.format import BodyColumns, BodyFormat, FormatKind
from linn.core.batch.key_hash import key_hash, partition_of
from linn.core.batch.record import Headers, Record
from linn.core.batch.routes import Pair
from linn.core.batch.steps import TURN_S, Steps, run_steps
from linn.core.batch.thinning import can_be_thinned, thin_steps
from linn.core.config.topic_settings import TopicSettings
from linn.core.connections.connections import CLIENT_CHARACTERS_MAX
from linn.core.connections.listener_traffic import SubscriptionOf, Traffic
from linn.core.delivery.consumer import AnyConsumer, CompetingConsumer, Consumer, Member, Reader
from linn.core.delivery.delivery import NOTHING, Delivery
from linn.core.delivery.settlement import Settlement, SettleOutcome
from linn.core.delivery.vocabulary import CONNECTION_LEASE_MS, ConsumerKind, Phase, Place, Verdict
from linn.core.env.address import parse_address
from linn.core.env.env import AcceptedStream, Clock, Disk, Env, File, Program, Rng, Stream
from linn.core.env.file_region import Sendable, behind
from linn.core.env.log_fields import log_fields
from linn.core.env.real.env import RealEnv
from linn.core.env.secret import HOW_TO_WRITE_SECRETS, MASK, Secret, without
from linn.core.env.tls import client_context, trust, use_pair
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.auth import AuthFailed, Forbidden
from linn.core.errors.group import raise_once
from linn.core.errors.metadata import (
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    MetadataUnknown,
    RevisionConflict,
)
from linn.core.errors.peers import PeerError
from linn.core.errors.replication import CopyMisplaced, NotLeader
from linn.core.errors.texts import counted, did_you_mean
from linn.core.errors.tls import TlsFailed, TlsInvalid
from linn.core.errors.tree import (
    AddressInvalid,
    BatchCorrupt,
    BatchError,
    BatchMalformed,
    BindingInvalid,
    ConnectFailed,
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
    PredicateInvalid,
    ProgramEnded,
    ProgramNotStarted,
    ProtocolError,
    RequestTimeout,
    RequestUnknown,
    SecretUnusable,
    StorageError,
    SubscriptionUnknown,
    SubscriptionWrongKind,
    SyncFailed,
    Unroutable,
)
from linn.core.gateway.fetch import FETCH_BYTES_MAX, Fetch
from linn.core.gateway.gateway import Gateway
from linn.core.gateway.legs import Leg
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
from linn.core.groups.assignor import Assignor, AssignorKind, Owners, Sizes, TopicPartition, Topics, subscribers_of
from linn.core.log.facts import LogFacts
from linn.core.log.mark import Mark
from linn.core.log.producers import Producers
from linn.core.log.storage import (
    READ_BATCHES_MAX,
    Capabilities,
    DamagedTail,
    EngineKind,
    LogStatistics,
    Needed,
    PartitionId,
    PartitionLog,
    StorageEngine,
    StoredBatch,
    check_copies,
)
from linn.core.loop.fair_turns import TurnSlot
from linn.core.loop.histogram import Histogram
from linn.core.loop.memory_budget import RESERVE_BYTES, MemoryShare, ReceiveReservation
from linn.core.loop.waiting import WaitDeadline
from linn.core.metadata.store import (
    ABSENT,
    NO_LEASE,
    REMOVED,
    Changes,
    MetadataStore,
    MetadataStoreKind,
    Snapshot,
    Stored,
    Watch,
)
from linn.core.metrics.registry import Family
from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.authenticator import Authenticated, Authenticator, AuthenticatorKind, Credentials
from linn.core.ports.authorizer import Authorizer, AuthorizerKind, Decision
from linn.core.ports.interceptor import Interceptor, InterceptorKind
from linn.core.ports.observer import Observer, Observers
from linn.core.ports.principal import Principal
from linn.core.ports.service import (
    Service,
    ServiceHost,
    ServiceKind,
    ServiceListener,
    ServiceLogin,
    ServiceMetric,
    ServiceTopic,
)
from linn.core.publish.publish_lane import PublishLane
from linn.core.publish.request import PublishAnswers, PublishRequest, PublishResult
from linn.core.queue.dispatch_order import DispatchOrder, OrderKind, OrderOptions, Taken
from linn.core.queue.lease import LEASE_MS_MAX, LEASE_RECORDS_MAX, LeaseSettings
from linn.core.queue.semantics import CONFIRM_WHEN, Acks, ConfirmWhen, DeliverySemantics, SemanticsKind
from linn.core.routing.binding_table import BindingTable
from linn.core.routing.exchange import Binding, Exchange, ExchangeKind, Subject, Target
from linn.core.routing.explanation import Explanation
from linn.core.routing.partitioner import Partitioner, PartitionerKind
from linn.core.routing.predicate.explanation import explain_tree, shown_value
from linn.core.routing.predicate.parser import NODES_MAX, parse_field
from linn.core.routing.predicate.predicate import Predicate
from linn.core.routing.predicate.tokens import is_unicode
from linn.core.routing.predicate.tree import And, Comparison, Constant, LiteralValue, Node, Or, Presence
from linn.core.routing.subject_field import FieldValue, SubjectField
from linn.core.security.logins import LOGIN_METHODS, Identity, Login
from linn.core.security.quota import Quota
from linn.core.transactions.event import IDENTITY_CHARACTERS_MAX
from linn.core.transactions.producer import RequestedEnd

__all__ = [
    "ABSENT",
    "ARGUMENTS_BYTES_MAX",
    "BATCH_BYTES_MIN",
    "CLIENT_CHARACTERS_MAX",
    "CONFIRM_WHEN",
    "CONNECTION_LEASE_MS",
    "DATA_AT",
    "FETCH_BYTES_MAX",
    "HOW_TO_WRITE_SECRETS",
    "IDENTITY_CHARACTERS_MAX",
    "LEASE_MS_MAX",
    "LEASE_RECORDS_MAX",
    "LOGIN_METHODS",
    "MASK",
    "NODES_MAX",
    "NOTHING",
    "NO_LEASE",
    "NUMBER_BYTES",
    "READ_BATCHES_MAX",
    "REMOVED",
    "RESERVE_BYTES",
    "START_EARLIEST",
    "START_LATEST",
    "TRANSACTIONAL",
    "TURN_S",
    "WORD",
    "AcceptedStream",
    "Acks",
    "AddressInvalid",
    "And",
    "AnyConsumer",
    "Assignor",
    "AssignorKind",
    "AuthFailed",
    "Authenticated",
    "Authenticator",
    "AuthenticatorKind",
    "Authorizer",
    "AuthorizerKind",
    "BatchColumns",
    "BatchCorrupt",
    "BatchError",
    "BatchMalformed",
    "Binding",
    "BindingInvalid",
    "BindingTable",
    "BodyColumns",
    "BodyFormat",
    "Buffer",
    "Capabilities",
    "Changes",
    "Clock",
    "Comparison",
    "CompetingConsumer",
    "ConfirmWhen",
    "ConnectFailed",
    "ConnectionLost",
    "Constant",
    "Consumer",
    "ConsumerKind",
    "CopyMisplaced",
    "Credentials",
    "DamagedTail",
    "Decision",
    "Delivery",
    "DeliverySemantics",
    "Disk",
    "DiskFull",
    "DiskReadOnly",
    "DispatchOrder",
    "EngineKind",
    "Env",
    "Exchange",
    "ExchangeKind",
    "Explanation",
    "Family",
    "Fetch",
    "FetchRequest",
    "Fetched",
    "FieldValue",
    "File",
    "Forbidden",
    "FormatKind",
    "Gateway",
    "Headers",
    "Histogram",
    "Identity",
    "Interceptor",
    "InterceptorKind",
    "InternalError",
    "LeaseLost",
    "LeaseSettings",
    "Leg",
    "LimitExceeded",
    "LinnError",
    "LiteralValue",
    "LogClosed",
    "LogCorrupt",
    "LogFacts",
    "LogStatistics",
    "Login",
    "Mark",
    "Member",
    "MemoryShare",
    "MetadataError",
    "MetadataStore",
    "MetadataStoreKind",
    "MetadataUnavailable",
    "MetadataUnknown",
    "Needed",
    "Node",
    "NotLeader",
    "Observer",
    "Observers",
    "OffsetOutOfRange",
    "Or",
    "OrderKind",
    "OrderOptions",
    "Owners",
    "Pair",
    "PartitionId",
    "PartitionLog",
    "Partitioner",
    "PartitionerKind",
    "PeerError",
    "Phase",
    "Place",
    "PluginError",
    "Predicate",
    "PredicateInvalid",
    "Presence",
    "Principal",
    "Producers",
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
    "Quota",
    "Reader",
    "RealEnv",
    "ReceiveReservation",
    "Record",
    "RecordBatch",
    "RequestTimeout",
    "RequestUnknown",
    "RequestedEnd",
    "RevisionConflict",
    "Rng",
    "Secret",
    "SecretUnusable",
    "SemanticsKind",
    "Sendable",
    "Service",
    "ServiceHost",
    "ServiceKind",
    "ServiceListener",
    "ServiceLogin",
    "ServiceMetric",
    "ServiceTopic",
    "Session",
    "SettleOutcome",
    "Settlement",
    "Sizes",
    "Snapshot",
    "Steps",
    "StorageEngine",
    "StorageError",
    "Stored",
    "StoredBatch",
    "Stream",
    "Subject",
    "SubjectField",
    "SubscribeRequest",
    "Subscribed",
    "SubscriptionOf",
    "SubscriptionUnknown",
    "SubscriptionWrongKind",
    "SyncFailed",
    "Taken",
    "Target",
    "TlsFailed",
    "TlsInvalid",
    "TlsStream",
    "TopicBounds",
    "TopicPartition",
    "TopicSettings",
    "Topics",
    "Traffic",
    "TurnSlot",
    "Unroutable",
    "Verdict",
    "WaitDeadline",
    "Watch",
    "behind",
    "build_batch",
    "build_from_records",
    "can_be_thinned",
    "check_copies",
    "client_context",
    "counted",
    "did_you_mean",
    "edit_batch",
    "explain_tree",
    "hookimpl",
    "is_unicode",
    "key_hash",
    "log_fields",
    "parse_address",
    "parse_field",
    "partition_of",
    "raise_once",
    "run_steps",
    "shown_value",
    "subscribers_of",
    "thin_steps",
    "trust",
    "use_pair",
    "without",
    "wrap_body",
]
