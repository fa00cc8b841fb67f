"""The Python client: async on anyio, under trio and asyncio. Start at `connect`; `linn.client.client` is the map."""

from linn.client.admin import Admin
from linn.client.client import Client, connect
from linn.client.connection.any_env import AnyEnv, ClientEnv
from linn.client.connection.replying import Reply
from linn.client.consume.consumer import Consumer
from linn.client.consume.exactly_once import ExactlyOnceConsumer
from linn.client.consume.message import Batch, FetchedBatches, Message
from linn.client.login import Password, Token
from linn.client.options import ClientOptions, Tls
from linn.client.produce.producer import Producer
from linn.client.produce.receipt import BulkReceipt, Offsets, Receipt
from linn.client.transactions.process import Output
from linn.client.transactions.shared import SharedTransactions, TransactionTicket
from linn.client.transactions.transaction import Transaction

__all__ = [
    "Admin",
    "AnyEnv",
    "Batch",
    "BulkReceipt",
    "Client",
    "ClientEnv",
    "ClientOptions",
    "Consumer",
    "ExactlyOnceConsumer",
    "FetchedBatches",
    "Message",
    "Offsets",
    "Output",
    "Password",
    "Producer",
    "Receipt",
    "Reply",
    "SharedTransactions",
    "Tls",
    "Token",
    "Transaction",
    "TransactionTicket",
    "connect",
]


def __dir__() -> list[str]:
    return __all__
