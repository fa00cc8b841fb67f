"""Shell completion of settings, and of names on a broker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from linn import rights
from linn.cli.options import DEFAULT_URL

if TYPE_CHECKING:
    from linn.client.client import Client

VARIABLE = "_LINN_COMPLETE"
"""Environment variable by which completion scripts ask `linn` for completions."""
ANSWER_S = 0.5
"""Time limit for the answer of a broker; a shell waits no longer after the tab key."""


def prepare() -> None:
    """Enable Typer's answers to completion scripts."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()


# --- names on a broker -----------------------------------------------------------------------------------------------


def topic_names(ctx: typer.Context) -> list[str]:
    """Return all topics."""
    return _topics(ctx, "queue", "stream", "both")


def queue_names(ctx: typer.Context) -> list[str]:
    """Return the topics that are queues."""
    return _topics(ctx, "queue", "both")


def stream_names(ctx: typer.Context) -> list[str]:
    """Return the topics that are streams."""
    return _topics(ctx, "stream", "both")


def exchange_names(ctx: typer.Context) -> list[str]:
    """Return all exchanges."""

    async def ask(client: Client) -> list[str]:
        return [exchange["name"] for exchange in await client.admin.exchanges()]

    return _answer(ctx, ask)


def group_names(ctx: typer.Context) -> list[str]:
    """Return all consumer groups."""

    async def ask(client: Client) -> list[str]:
        return [group["group"] for group in await client.admin.groups()]

    return _answer(ctx, ask)


def shared_names(ctx: typer.Context) -> list[str]:
    """Return the named subscriptions of the topic on the command line."""

    async def ask(client: Client) -> list[str]:
        found = await client.admin.subscriptions(ctx.params["topic"])
        return [subscription["subscription"] for subscription in found if subscription["subscription"]]

    return _answer(ctx, ask)


def node_numbers(ctx: typer.Context) -> list[str]:
    """Return the numbers of the cluster's nodes that are not on the command line yet."""
    given = ctx.params.get("nodes") or ()

    async def ask(client: Client) -> list[str]:
        nodes = (await client.admin.cluster())["nodes"]
        return [str(node["node"]) for node in nodes if node["node"] not in given]

    return _answer(ctx, ask)


def decided_partitions(ctx: typer.Context) -> list[str]:
    """Return the partitions of the topic on the command line that have decided deliveries."""

    async def ask(client: Client) -> list[str]:
        decided = (await client.admin.decided_deliveries(ctx.params["topic"]))["deliveries"]
        return list(dict.fromkeys(str(delivery["partition"]) for delivery in decided))

    return _answer(ctx, ask)


def decided_ids(ctx: typer.Context) -> list[str]:
    """Return the ids of decided deliveries of the topic and the partition on the command line."""

    async def ask(client: Client) -> list[str]:
        topic, partition = ctx.params["topic"], int(ctx.params["partition"])
        decided = (await client.admin.decided_deliveries(topic, partition=partition))["deliveries"]
        return list(dict.fromkeys(str(delivery["delivery_id"]) for delivery in decided))

    return _answer(ctx, ask)


def transaction_names(ctx: typer.Context) -> list[str]:
    """Return the names of transactions; names with an open transaction come first."""

    async def ask(client: Client) -> list[str]:
        return [transaction["name"] for transaction in (await client.admin.transactions())["transactions"]]

    return _answer(ctx, ask)


def open_transaction_names(ctx: typer.Context) -> list[str]:
    """Return the names of open transactions, oldest first."""

    async def ask(client: Client) -> list[str]:
        return [transaction["name"] for transaction in (await client.admin.transactions("open"))["transactions"]]

    return _answer(ctx, ask)


def pipeline_names(ctx: typer.Context) -> list[str]:
    """Return the Spark pipelines that are not on the command line yet."""
    given = ctx.params.get("names") or ()

    async def ask(client: Client) -> list[str]:
        services = {service["name"]: service["status"] for service in await client.admin.perform("service.list")}
        return [pipeline["name"] for pipeline in services["spark"]["pipelines"] if pipeline["name"] not in given]

    return _answer(ctx, ask)


def user_names(ctx: typer.Context) -> list[str]:
    """Return all users."""

    async def ask(client: Client) -> list[str]:
        return [user["user"] for user in await client.admin.users()]

    return _answer(ctx, ask)


def role_names(ctx: typer.Context) -> list[str]:
    """Return all roles."""

    async def ask(client: Client) -> list[str]:
        return [role["role"] for role in await client.admin.roles()]

    return _answer(ctx, ask)


def operations() -> list[str]:
    """Return the operations of all kinds of resources."""
    return sorted({operation for known in rights.OPERATIONS.values() for operation in known})


def target_names(ctx: typer.Context) -> list[str]:
    """Return the possible targets of a binding: topics or, with --to-exchange, exchanges."""
    return exchange_names(ctx) if ctx.params.get("to_exchange") else topic_names(ctx)


def published_to(ctx: typer.Context) -> list[str]:
    """Return all topics for the first argument of `linn publish`, unless --exchange is given."""
    return [] if ctx.params.get("arguments") or ctx.params.get("exchange") else topic_names(ctx)


def setting_keys(ctx: typer.Context) -> list[str]:
    """Return the settings of the command that are not given yet."""
    from linn.cli.setting_options import SettingsCommand

    given = ctx.params.get("settings") or []
    if not isinstance(ctx.command, SettingsCommand) or (given and given[-1].endswith("=")):
        return []  # After "KEY=" the value is completed, not a key.
    keys = {pair.partition("=")[0] for pair in given}
    return [f"{key}=" for key in ctx.command.setting_keys() if key not in keys]


def _topics(ctx: typer.Context, *kinds: str) -> list[str]:
    async def ask(client: Client) -> list[str]:
        return [topic["name"] for topic in await client.admin.topics() if topic["settings"]["kind"] in kinds]

    return _answer(ctx, ask)


def _answer(ctx: typer.Context, ask: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
    """Return the broker's answer, or an empty one if it fails or is late: a shell can't show an error within a line."""
    import anyio

    import linn
    from linn.cli.session import login_of, mute_client, tls_of

    url = ctx.params.get("url") or os.environ.get("LINN_URL", DEFAULT_URL)

    async def main() -> list[str]:
        with anyio.move_on_after(ANSWER_S):
            tls, login = tls_of(url), login_of(asks=False)
            async with linn.connect(url, name="linn-completion", retries_max=0, tls=tls, login=login) as client:
                # A shell would act on control characters, which some names may have.
                return [name for name in await ask(client) if name.isprintable()]
        return []

    mute_client()
    with contextlib.suppress(Exception):
        return anyio.run(main, backend="trio")
    return []
