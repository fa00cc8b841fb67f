from __future__ import annotations

import re
from pathlib import Path

import pytest

from linn.client import Admin, Batch, BulkReceipt, Client, ClientOptions, Consumer, Message, Producer, Receipt

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "client.md").read_text(encoding="utf-8")
INTERNAL = {
    "Client": ["backoff_of", "close", "goodbye", "link", "ready_link", "request", "start", "time_limit", "want_link"],
    "Producer": ["give_up", "link_up"],
    "Consumer": [
        "arrived",
        "assigned",
        "ended",
        "give_up",
        "later",
        "link_down",
        "link_up",
        "refused",
        "set_back",
        "subscribed",
    ],
    "Batch": ["handed_over", "is_wanted", "load", "settle"],
}


@pytest.mark.parametrize(
    "public", [Client, Producer, Consumer, Message, Batch, Admin, ClientOptions, Receipt, BulkReceipt]
)
def test_every_public_member_is_on_the_client_page(public: type) -> None:
    fields = [name for name in getattr(public, "__annotations__", {}) if not name.startswith("_")]
    methods = [name for name, member in vars(public).items() if not name.startswith("_") and callable(member)]
    properties = [name for name, member in vars(public).items() if isinstance(member, property)]
    internal = {*INTERNAL.get(public.__name__, ()), "count", "index"}
    if public is ClientOptions:
        methods = []
    missing = [name for name in {*fields, *methods, *properties} - internal if not re.search(rf"\b{name}\b", PAGE)]
    assert missing == []
