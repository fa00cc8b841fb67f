"""Admin of the blocking client: each method of `linn.client.Admin` as a blocking call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from linn.client import admin as asynchronous
from linn.client.blocking.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[asynchronous.Admin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], T]:
    @functools.wraps(method)
    def call(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method, self._made, *args, **kwargs)

    return call


class Admin:
    """The admin interface of a client, `client.admin`. Methods raise refusals, ConnectionLost, RequestTimeout.

    Example:
        client.admin.create_topic("invoices", kind="both", retention="14d")
        client.admin.delete_topic("invoices")
    """

    def __init__(self, thread: LoopThread, made: asynchronous.Admin) -> None:
        self._thread = thread
        self._made = made

    perform = _blocking(asynchronous.Admin.perform)

    create_topic = _blocking(asynchronous.Admin.create_topic)
    alter_topic = _blocking(asynchronous.Admin.alter_topic)
    delete_topic = _blocking(asynchronous.Admin.delete_topic)
    purge_topic = _blocking(asynchronous.Admin.purge_topic)
    topics = _blocking(asynchronous.Admin.topics)
    topic = _blocking(asynchronous.Admin.topic)

    create_exchange = _blocking(asynchronous.Admin.create_exchange)
    delete_exchange = _blocking(asynchronous.Admin.delete_exchange)
    exchange = _blocking(asynchronous.Admin.exchange)
    exchanges = _blocking(asynchronous.Admin.exchanges)
    bind = _blocking(asynchronous.Admin.bind)
    unbind = _blocking(asynchronous.Admin.unbind)
    bind_exchange = _blocking(asynchronous.Admin.bind_exchange)
    unbind_exchange = _blocking(asynchronous.Admin.unbind_exchange)

    groups = _blocking(asynchronous.Admin.groups)
    group = _blocking(asynchronous.Admin.group)
    reset_group = _blocking(asynchronous.Admin.reset_group)
    delete_group = _blocking(asynchronous.Admin.delete_group)
    create_subscription = _blocking(asynchronous.Admin.create_subscription)
    delete_subscription = _blocking(asynchronous.Admin.delete_subscription)
    subscriptions = _blocking(asynchronous.Admin.subscriptions)
    subscription = _blocking(asynchronous.Admin.subscription)
    decided_deliveries = _blocking(asynchronous.Admin.decided_deliveries)
    resolve_delivery = _blocking(asynchronous.Admin.resolve_delivery)
    transactions = _blocking(asynchronous.Admin.transactions)
    transaction = _blocking(asynchronous.Admin.transaction)
    abort_transaction = _blocking(asynchronous.Admin.abort_transaction)
    metrics = _blocking(asynchronous.Admin.metrics)
    connections = _blocking(asynchronous.Admin.connections)
    close_connection = _blocking(asynchronous.Admin.close_connection)
    broker = _blocking(asynchronous.Admin.broker)
