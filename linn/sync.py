"""The blocking client, for programs without an event loop: `with linn.sync.connect(url) as client`.

It has the names of `linn.client`, without `await`, and any number of threads may use one client. "Interruption" in a
docstring is the end of a wait by an exception such as KeyboardInterrupt, or by a `timeout_s`. The code begins in
`linn.client.blocking.client`.
"""

from linn.client.blocking.generated.admin import Admin
from linn.client.blocking.generated.client import Client, connect
from linn.client.blocking.generated.consumer import Consumer
from linn.client.blocking.generated.exactly_once import ExactlyOnceConsumer
from linn.client.blocking.generated.message import Batch, FetchedBatches, Message
from linn.client.blocking.generated.producer import Producer
from linn.client.blocking.generated.shared_transactions import SharedTransactions
from linn.client.blocking.generated.transaction import Transaction
from linn.client.blocking.settling import Settled
from linn.client.connection.replying import Reply
from linn.client.login import Password, Token
from linn.client.options import Tls
from linn.client.produce.receipt import BulkReceipt, Offsets, Receipt
from linn.client.transactions.process import Output
from linn.client.transactions.shared import TransactionTicket

__all__ = [
    "Admin",
    "Batch",
    "BulkReceipt",
    "Client",
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
    "Settled",
    "SharedTransactions",
    "Tls",
    "Token",
    "Transaction",
    "TransactionTicket",
    "connect",
]


def __dir__() -> list[str]:
    return __all__
