"""The Python client: async on anyio, under trio and asyncio. Start at `connect`; `linn.client.client` is the map."""

from linn.client.admin import Admin
from linn.client.admin_types import (
    BindingDescription,
    BrokerDescription,
    CommittedOffset,
    ConnectionDescription,
    ConnectionSubscription,
    DecidedDeliveries,
    DecidedDelivery,
    ExchangeDescription,
    GroupDescription,
    GroupMember,
    GroupOffset,
    GroupSummary,
    HeldRecords,
    MetricDescription,
    PartitionBounds,
    QueueConsumer,
    QueueCounts,
    QueueDescription,
    QueueDetails,
    QueuePartition,
    RecordStates,
    TopicDescription,
    TopicSettings,
    TransactionDescription,
    TransactionSummaries,
    TransactionSummary,
    WrittenPartition,
)
from linn.client.client import Client, connect
from linn.client.connection.any_env import AnyEnv, ClientEnv
from linn.client.consume.consumer import Consumer
from linn.client.consume.exactly_once import ExactlyOnceConsumer
from linn.client.consume.message import Batch, FetchedBatches, Message
from linn.client.options import ClientOptions
from linn.client.produce.producer import Producer
from linn.client.produce.receipt import BulkReceipt, Offsets, Receipt
from linn.client.transactions.process import Output
from linn.client.transactions.shared import SharedTransactions, TransactionTicket
from linn.client.transactions.transaction import Transaction

__all__ = [
    "Admin",
    "AnyEnv",
    "Batch",
    "BindingDescription",
    "BrokerDescription",
    "BulkReceipt",
    "Client",
    "ClientEnv",
    "ClientOptions",
    "CommittedOffset",
    "ConnectionDescription",
    "ConnectionSubscription",
    "Consumer",
    "DecidedDeliveries",
    "DecidedDelivery",
    "ExactlyOnceConsumer",
    "ExchangeDescription",
    "FetchedBatches",
    "GroupDescription",
    "GroupMember",
    "GroupOffset",
    "GroupSummary",
    "HeldRecords",
    "Message",
    "MetricDescription",
    "Offsets",
    "Output",
    "PartitionBounds",
    "Producer",
    "QueueConsumer",
    "QueueCounts",
    "QueueDescription",
    "QueueDetails",
    "QueuePartition",
    "Receipt",
    "RecordStates",
    "SharedTransactions",
    "TopicDescription",
    "TopicSettings",
    "Transaction",
    "TransactionDescription",
    "TransactionSummaries",
    "TransactionSummary",
    "TransactionTicket",
    "WrittenPartition",
    "connect",
]


def __dir__() -> list[str]:
    return __all__
