"""Every public class and method of the clients has an example in its docstring, and the examples run."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sqlite3
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, is_typeddict

import anyio
import pytest
from public_names import public_classes, public_methods
from replying import replying

import linn
import linn.client
import linn.sync
from linn.client import Client
from linn.core.errors.tree import LinnError
from linn.participants import SqliteParticipant

DOCS_URL = "linn://127.0.0.1:5466"
TIMEOUT_S = 300
ASKING = ("Client.request", "Client.request_many")


def described(module: Any) -> dict[str, object]:
    """The objects that need an example, by name."""
    found: dict[str, object] = {"connect": module.connect}
    for public in public_classes(module):
        if is_typeddict(public):
            continue
        found[public.__name__] = public
        found |= {f"{public.__name__}.{name}": method for name, method in public_methods(public).items()}
    return found


def example_of(thing: object) -> str:
    """The example of a docstring, "" where it has none."""
    text = inspect.getdoc(thing) or ""
    found = re.search(r"^Example:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return textwrap.dedent(found[1]).strip() if found else ""


ASYNC = {name: example_of(thing) for name, thing in described(linn.client).items()}
BLOCKING = {name: example_of(thing) for name, thing in described(linn.sync).items()}


@pytest.mark.parametrize("examples", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_every_public_class_and_method_has_an_example(examples: dict[str, str]) -> None:
    assert len(examples) > 40
    assert [name for name, example in examples.items() if not example] == []


def test_an_example_is_told_from_what_is_around_it() -> None:
    def documented() -> None:
        """Do it.

        Example:
            a = 1

            b = 2
        """

    assert example_of(documented) == "a = 1\n\nb = 2"
    assert example_of(test_an_example_is_told_from_what_is_around_it) == ""


# --- the world of the examples ---------------------------------------------------------------------------------------


def names_wanted(example: str) -> set[str]:
    """Names that an example uses and does not bind itself."""
    names = [node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Name)]
    return {node.id for node in names} - {node.id for node in names if isinstance(node.ctx, ast.Store)}


def compiled(example: str, url: str, given: dict[str, Any], kind: str) -> Callable[[], Any]:
    """The example as a function that finds in its scope what it was given."""
    source = f"{kind} example():\n{textwrap.indent(example.replace(DOCS_URL, url), '    ')}"
    scope = {
        "linn": linn,
        "datetime": datetime,
        "timedelta": timedelta,
        "AnyEnv": linn.client.AnyEnv,
        "anyio": anyio,
        "threading": threading,
        **given,
    }
    scope["contextlib"] = contextlib
    scope["print"] = lambda *shown: None
    exec(compile(source, "<example>", "exec"), scope)
    function: Callable[[], Any] = scope["example"]
    return function


async def settle(url: str) -> None:
    async with linn.connect(url) as client:
        await settle_world(client)


async def settle_world(client: Client) -> None:
    """The topics, the exchange, the role and the user that examples speak of, as new, with something in them."""
    admin = client.admin
    for topic in [found["name"] for found in await admin.topics()]:
        await admin.delete_topic(topic)
    for exchange in [found["name"] for found in await admin.exchanges() if found["name"]]:
        await admin.delete_exchange(exchange)
    for user in await admin.users():
        await admin.delete_user(user["user"])
    for role in await admin.roles():
        if role["role"] != "administrator":
            await admin.delete_role(role["role"])
    await admin.create_role("shop", {"topic:orders": ["publish"]})
    await admin.create_user("ada", ["shop"])
    await admin.create_exchange("news", type="topic")
    await admin.create_topic("orders", status="1h")
    await admin.create_topic("prices", kind="stream", partitions=2)
    await admin.bind("news", "prices", "price.*")
    for topic in ("orders", "prices"):
        async with client.producer(topic) as producer:
            await producer.publish_many([b"%d" % number for number in range(20)], keys=[b"%d" % n for n in range(20)])
    async with client.consumer("prices", group="dashboard") as member:
        await (await anext(member)).ack()
    for topic in ("bills", "audit", "sums"):
        await admin.create_topic(topic)
    await admin.create_topic("payments", delivery="exactly-once")
    async with client.producer("payments") as producer:
        await producer.publish_many([b"the first", b"the last of today"])


def ledger_of(folder: Path) -> Callable[[str], SqliteParticipant]:
    """SqliteParticipant, for databases in a folder that have the table of the examples."""

    def make_table(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS payments (text TEXT)")

    return lambda path: SqliteParticipant(folder / path, prepare_connection=make_table)


def worker_of(name: str, url: str) -> contextlib.AbstractContextManager[None]:
    """A worker, for the examples that wait for a reply."""
    return replying(url, "sums") if name in ("Reply", *ASKING) else contextlib.nullcontext()


def is_exactly_once(name: str) -> bool:
    """Whether an example's consumer has a participant."""
    return name.startswith("ExactlyOnceConsumer.")


@contextlib.asynccontextmanager
async def async_names(name: str, wanted: set[str], client: Client, folder: Path) -> AsyncIterator[dict[str, Any]]:
    """The names that an example of the async client uses without defining them."""
    given: dict[str, Any] = {"client": client, "SqliteParticipant": ledger_of(folder), "Output": linn.client.Output}
    async with contextlib.AsyncExitStack() as stack:
        if is_exactly_once(name):
            participant = ledger_of(folder)("ledger.db")
            made = client.consumer("payments", name="ledger-2", exactly_once=participant)
            given["consumer"] = await stack.enter_async_context(made)
            wanted = wanted - {"consumer", "message"}
        if "producer" in wanted:
            given["producer"] = await stack.enter_async_context(client.producer("orders"))
        if wanted & {"consumer", "message", "batch"}:
            consumer = given["consumer"] = await stack.enter_async_context(client.consumer("orders"))
            if "message" in wanted:
                given["message"] = await anext(consumer)
            if "batch" in wanted:
                given["batch"] = await consumer.next_batch()
        yield given


@contextlib.contextmanager
def blocking_names(name: str, wanted: set[str], client: linn.sync.Client, folder: Path) -> Iterator[dict[str, Any]]:
    """The names that an example of the blocking client uses without defining them."""
    given: dict[str, Any] = {"client": client, "SqliteParticipant": ledger_of(folder), "Output": linn.client.Output}
    with contextlib.ExitStack() as stack:
        if is_exactly_once(name):
            participant = ledger_of(folder)("ledger.db")
            made = client.consumer("payments", name="ledger-2", exactly_once=participant)
            given["consumer"] = stack.enter_context(made)
            wanted = wanted - {"consumer", "message"}
        if "producer" in wanted:
            given["producer"] = stack.enter_context(client.producer("orders"))
        if wanted & {"consumer", "message", "batch", "settled"}:
            consumer = given["consumer"] = stack.enter_context(client.consumer("orders"))
            if wanted & {"message", "settled"}:
                given["message"] = consumer.get()
            if "batch" in wanted:
                given["batch"] = consumer.next_batch()
        yield given


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
@pytest.mark.parametrize("name", ASYNC)
def test_examples_of_the_async_client_run(own_broker: str, name: str, loop: str, tmp_path: Path) -> None:
    example = ASYNC[name]

    async def run() -> None:
        with anyio.fail_after(TIMEOUT_S):
            async with linn.connect(own_broker) as client:
                async with async_names(name, names_wanted(example), client, tmp_path) as given:
                    await compiled(example, own_broker, given, "async def")()

    anyio.run(settle, own_broker)
    with worker_of(name, own_broker):
        anyio.run(run, backend=loop)


@pytest.mark.parametrize("name", BLOCKING)
def test_examples_of_the_blocking_client_run(own_broker: str, name: str, tmp_path: Path) -> None:
    example = re.sub(r"\b(await|async) ", "", BLOCKING[name])  # Classes of both clients await.

    anyio.run(settle, own_broker)
    with linn.sync.connect(own_broker) as client:
        names = blocking_names(name, names_wanted(example), client, tmp_path)
        with worker_of(name, own_broker), names as given:
            compiled(example, own_broker, given, "def")()


def test_an_example_that_is_wrong_fails(own_broker: str) -> None:
    with linn.sync.connect(own_broker) as client:
        with pytest.raises(LinnError, match="nowhere"):
            compiled('client.admin.topic("nowhere")', own_broker, {"client": client}, "def")()
