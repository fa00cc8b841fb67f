"""Every error that linn raises on purpose: one tree, one stable code per class.

The `code` is API and crosses the wire; the text is for people and may change. `retriable` says whether the same request
may succeed later without being changed. Codes are never reused; `docs/reference/errors.md` lists each with a solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self


class LinnError(Exception):
    """Root of the tree. `str(error)` is one line for a person; `error.code` is for a program."""

    code: ClassVar[str] = "linn.error"
    retriable: ClassVar[bool] = False
    indexes: Sequence[int] = ()
    """Ascending positions of the affected messages in one batch or one `publish_many`; empty: all messages."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __init_subclass__(cls) -> None:
        _show_as_public(cls)

    def of_messages(self, indexes: Sequence[int]) -> Self:
        """Limit the error to these messages, and return it."""
        self.indexes = indexes
        return self

    def __str__(self) -> str:
        return f"{self.text} [{self.code}]"


def _show_as_public(error: type[LinnError]) -> None:
    """Make tracebacks and help show the module from which users import the class; a plugin's class keeps its own."""
    if error.__module__.rpartition(".")[0] == __name__.rpartition(".")[0]:
        error.__module__ = "linn.errors"


_show_as_public(LinnError)


class InternalError(LinnError):
    """An error that linn did not foresee; the broker's log has the traceback."""

    code = "linn.internal"


# --- configuration ---------------------------------------------------------------------------------------------------


class ConfigError(LinnError):
    """A TOML file, or a topic request over the wire, asks for something that linn can't do."""

    code = "config.invalid"


class ConfigUnreadable(ConfigError):
    """The file is missing, may not be read, or is not TOML."""

    code = "config.unreadable"


class ConfigUnknownKey(ConfigError):
    """No component knows the key."""

    code = "config.unknown_key"


class ConfigExists(ConfigError):
    """A new configuration can't be written, because the file exists already."""

    code = "config.exists"


class SecretUnusable(ConfigError):
    """A secret can't be read where the configuration says that it is, or others may read it as well."""

    code = "config.secret"


class ConfigNotLive(ConfigError):
    """The setting exists but can't change while the topic exists."""

    code = "config.not_live"


class PluginError(LinnError):
    """A plugin could not be loaded, or did not return what its hook promises."""

    code = "plugin.failed"


class PluginUnknown(PluginError):
    """The configuration names an engine, semantics, exchange or protocol that no plugin provides."""

    code = "plugin.unknown"


class ProgramNotStarted(LinnError):
    """A program that runs beside the broker can't be started."""

    code = "program.not_started"


class ProgramEnded(LinnError):
    """A program that runs beside the broker has ended, or reads no more."""

    code = "program.ended"


class ServiceUnknown(LinnError):
    """There is no such service, or nothing configures it."""

    code = "service.unknown"


class ServiceFailed(LinnError):
    """A service has failed, and does nothing until the broker's next start."""

    code = "service.failed"


# --- batches and messages --------------------------------------------------------------------------------------------


class BatchError(LinnError):
    """The record batch is not accepted."""

    code = "batch.invalid"


class BatchMalformed(BatchError):
    """The bytes are not a RecordBatch in the documented layout."""

    code = "batch.malformed"


class BatchCorrupt(BatchError):
    """A CRC-32C does not match: the bytes were damaged on the way or at rest."""

    code = "batch.corrupt"
    retriable = True


class BatchTooLarge(BatchError):
    """The batch, or its decompressed body, is over the limit."""

    code = "batch.too_large"


class MessageTooLarge(BatchError):
    """One message is over `message_bytes_max`."""

    code = "message.too_large"


class MessageInvalid(BatchError):
    """A field of a message has a type or a value that can't be carried."""

    code = "message.invalid"


class FormatUnknown(BatchError):
    """No plugin of the broker reads bodies of this format."""

    code = "batch.format_unknown"


class FeatureUnsupported(BatchError):
    """The batch uses a feature that this broker or topic does not support (yet)."""

    code = "message.unsupported"


# --- producers -------------------------------------------------------------------------------------------------------


class ProducerError(LinnError):
    """The numbers of an idempotent producer's batch do not fit those stored before."""

    code = "producer.invalid"


class ProducerDuplicate(ProducerError):
    """The batch is older than its producer's batches that the partition remembers."""

    code = "producer.duplicate"


class ProducerOutOfOrder(ProducerError):
    """A batch before this one is missing; nothing was stored. It can be sent again after the missing one."""

    code = "producer.out_of_order"
    retriable = True


class ProducerFenced(ProducerError):
    """A later epoch of the producer has taken over."""

    code = "producer.fenced"


class ProducerForeign(ProducerError):
    """The producer's id was given to another client, and no key of it was shown; nothing was done."""

    code = "producer.foreign"


class ProducersExceeded(ProducerError):
    """The broker remembers as many producers as it may, and none of them has been idle for long."""

    code = "producer.limit"


class TransactionError(LinnError):
    """A request about a transaction that can't be carried out."""

    code = "transaction.invalid"


class TransactionUnknown(TransactionError):
    """The broker knows no such transaction: it has ended, or its name was not used for long."""

    code = "transaction.unknown"


class TransactionFenced(TransactionError):
    """Another client has taken over the name of the transactions; what this one had open was aborted."""

    code = "transaction.fenced"


class TransactionAborted(TransactionError):
    """The transaction was aborted: by its timeout, by an operator, or by a power loss of the broker."""

    code = "transaction.aborted"


class SequenceTaken(TransactionError):
    """The name has committed something else under this sequence, or a later one; this transaction is aborted."""

    code = "transaction.sequence_taken"


class TransactionBusy(TransactionError):
    """The end of the transaction before, or of this one, is under way."""

    code = "transaction.busy"
    retriable = True


# --- storage ---------------------------------------------------------------------------------------------------------


class StorageError(LinnError):
    """The storage under a partition failed."""

    code = "storage.failed"


class DiskFull(StorageError):
    """The disk is full. The batch was not stored; batches confirmed before are intact."""

    code = "storage.disk_full"
    retriable = True


class DiskReadOnly(StorageError):
    """The data folder can't be written."""

    code = "storage.read_only"


class DescriptorsExhausted(StorageError):
    """The process has reached its limit of open files and connections. Nothing was stored."""

    code = "storage.descriptors_exhausted"
    retriable = True


class DataDirLocked(StorageError):
    """Another broker is using the data folder."""

    code = "storage.locked"


class SyncFailed(StorageError):
    """A sync to disk failed. The records that it covered may not be durable; the broker stops and never retries it."""

    code = "storage.sync_failed"


class LogCorrupt(StorageError):
    """A log is damaged before its tail, or the metadata is damaged or lost. Nothing was deleted."""

    code = "log.corrupt"


class OffsetOutOfRange(StorageError):
    """The offset lies before the start or after the end of the log."""

    code = "log.offset_out_of_range"


class LogTruncated(StorageError):
    """The log lost records that the reader had read, and goes on with others there: see `partition` and `offset`."""

    code = "log.truncated"

    def __init__(self, text: str, *, partition: int = -1, offset: int = -1) -> None:
        super().__init__(text)
        self.partition = partition
        self.offset = offset
        """The offset where the log and the reader's records diverge: records below it are still there."""


class LogClosed(StorageError):
    """The log was closed, or failed earlier, and takes no more work."""

    code = "log.closed"
    retriable = True


# --- topics, exchanges, subscriptions --------------------------------------------------------------------------------


class TopicError(LinnError):
    """A request about a topic, exchange or partition can't be done."""

    code = "topic.invalid"


class TopicUnknown(TopicError):
    """There is no topic of that name."""

    code = "topic.unknown"


class TopicReplaced(TopicError):
    """The topic was deleted, and another one of its name was made: offsets of the old one mean nothing in it."""

    code = "topic.replaced"


class TopicExists(TopicError):
    """The topic exists already, with other settings."""

    code = "topic.exists"


class TopicFull(TopicError):
    """The topic is at its limit and its `overflow` is `reject`."""

    code = "topic.full"
    retriable = True


class PartitionUnknown(TopicError):
    """The topic has no partition of that number."""

    code = "topic.partition_unknown"


class ExchangeUnknown(TopicError):
    """There is no exchange of that name."""

    code = "exchange.unknown"


class ExchangeInternal(TopicError):
    """The exchange is internal: it takes messages from other exchanges, and not from clients."""

    code = "exchange.internal"


class Unroutable(TopicError):
    """A message was published as mandatory, but no binding routes it to a topic. It is not stored."""

    code = "exchange.unroutable"


class BindingInvalid(TopicError):
    """A binding's pattern or target does not fit its exchange."""

    code = "exchange.binding_invalid"

    def __init__(self, text: str, key: str = "") -> None:
        """`key`: the wrong key of the binding's table, if it is a single one."""
        super().__init__(text)
        self.key = key


class PredicateInvalid(BindingInvalid):
    """The text is not a valid predicate over messages; the error shows the position of the mistake."""

    code = "predicate.invalid"


class InterceptorFailed(TopicError):
    """An interceptor of the topic failed; nothing of the publish was stored."""

    code = "interceptor.failed"


class DeliveryError(LinnError):
    """A request about a subscription or a delivery can't be done."""

    code = "delivery.invalid"


class DeliveryNotCurrent(DeliveryError):
    """The delivery id is not current: its lease ended, it was settled, or it was never yours."""

    code = "delivery.not_current"


class DeliveryFenced(DeliveryError):
    """Another consumer of the same name has taken over; the leases of this one were returned."""

    code = "delivery.fenced"


class ParticipantConflict(DeliveryError):
    """Another process has applied these records to the same store meanwhile; nothing was stored twice."""

    code = "delivery.conflict"


class TransactionEnded(DeliveryError):
    """A participant's transaction was ended by the application, or would have been: it belongs to the participant."""

    code = "delivery.transaction_ended"


class SubscriptionUnknown(DeliveryError):
    """There is no subscription of that number on this connection."""

    code = "delivery.subscription_unknown"


class SubscriptionWrongKind(DeliveryError):
    """The topic's kind does not offer this kind of subscription."""

    code = "delivery.wrong_kind"


class SharedUnknown(DeliveryError):
    """The topic has no shared subscription of that name, or no longer."""

    code = "shared.unknown"


class SharedBusy(DeliveryError):
    """The shared subscription has consumers: stop them first, or force its deletion."""

    code = "shared.busy"


class GroupFenced(DeliveryError):
    """The member does not own this partition, or did not at the epoch that it names; or another took its name."""

    code = "group.fenced"


class GroupSessionExpired(DeliveryError):
    """The member sent no heartbeat for the time of its session: its partitions went to others. Subscribe again."""

    code = "group.session_expired"
    retriable = True


class GroupUnknown(DeliveryError):
    """There is no group of that name."""

    code = "group.unknown"


class GroupBusy(DeliveryError):
    """The group has members in this topic, which would continue at their own positions: stop them first."""

    code = "group.busy"


# --- protocol and connection -----------------------------------------------------------------------------------------


class ProtocolError(LinnError):
    """The peer sent something that is not the protocol. The connection is closed."""

    code = "protocol.malformed"


class FrameTooLarge(ProtocolError):
    """A frame is over the limit agreed in the hello."""

    code = "protocol.frame_too_large"


class VersionUnsupported(ProtocolError):
    """The client and the broker share no protocol version."""

    code = "protocol.version_unsupported"


class RequestUnknown(ProtocolError):
    """The broker does not know the request; a newer client sent it."""

    code = "protocol.request_unknown"


class ConnectionLost(LinnError):
    """The connection ended. A publish in progress may or may not have been stored."""

    code = "connection.lost"
    retriable = True


class ClientClosed(ConnectionLost):
    """The client, producer or consumer was closed, or was not entered yet. Once closed, it can't be reopened."""

    code = "client.closed"
    retriable = False


class ConnectionClosed(ConnectionLost):
    """An operator closed the connection; the text gives the reason. A client may connect again."""

    code = "connection.closed"


class ConnectionUnknown(LinnError):
    """The broker has no connection with this number."""

    code = "connection.unknown"


class ConnectFailed(ConnectionLost):
    """No broker answered at the address."""

    code = "connection.failed"


class AddressInUse(LinnError):
    """A listener's address is taken by another process."""

    code = "listener.address_in_use"


class AddressInvalid(LinnError):
    """A listener's or broker's address can't be parsed or bound."""

    code = "listener.address_invalid"


class BrokerFull(LinnError):
    """The broker has reached its limit of connections."""

    code = "broker.full"
    retriable = True


class BrokerStopping(LinnError):
    """The broker is shutting down and takes no new work."""

    code = "broker.stopping"
    retriable = True


class RequestTimeout(LinnError):
    """The answer did not arrive in time. A publish may or may not have been stored."""

    code = "request.timeout"
    retriable = True


class ClientUnreachable(LinnError):
    """A client was used where it can't work: in another event loop or thread, in a forked process, or in its own
    thread.
    """

    code = "client.unreachable"


class LimitExceeded(LinnError):
    """A connection asked for more than one of its limits allows."""

    code = "limit.exceeded"
