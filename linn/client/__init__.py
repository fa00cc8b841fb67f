"""The Python client: async on anyio, under trio and asyncio. Begin with `connect`; `client` is the map."""

from linn.client.admin import Admin
from linn.client.any_env import AnyEnv, ClientEnv
from linn.client.client import Client, connect
from linn.client.consumer import Consumer
from linn.client.fetched import FetchedBatches
from linn.client.message import Batch, Message
from linn.client.options import ClientOptions
from linn.client.producer import Producer
from linn.client.receipt import BulkReceipt, Offsets, Receipt

__all__ = [
    "Admin",
    "AnyEnv",
    "Batch",
    "BulkReceipt",
    "Client",
    "ClientEnv",
    "ClientOptions",
    "Consumer",
    "FetchedBatches",
    "Message",
    "Offsets",
    "Producer",
    "Receipt",
    "connect",
]


def __dir__() -> list[str]:
    return __all__
