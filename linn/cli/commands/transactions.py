"""`linn transactions`: list and describe transactions, and abort the transaction of a lost or blocking client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import open_transaction_names, transaction_names
from linn.cli.confirm import confirm
from linn.cli.exit_code import complain
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import Column, number, numbers, print_table, wide
from linn.cli.session import with_client
from linn.core.errors.texts import counted, one_line

if TYPE_CHECKING:
    from linn.descriptions import TransactionDescription, TransactionSummaries, TransactionSummary

app = noun("List and describe transactions, and abort the transaction of a lost or blocking client.")

_SHOWN_MAX = 1_000


class State(StrEnum):
    """State of a transactional name."""

    OPEN = "open"
    ENDING = "ending"
    IDLE = "idle"


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the transactions.", autocompletion=transaction_names)
]
Opened = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the open transaction.", autocompletion=open_transaction_names),
]
InState = Annotated[State | None, typer.Option("--state", help="Only names whose transaction is in this state.")]
Shown = Annotated[
    int, typer.Option("--count", min=1, max=_SHOWN_MAX, metavar="COUNT", help="Maximum number of names shown.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be aborted.")]


@app.command("list")
def list_transactions(
    state: InState = None, count: Shown = _SHOWN_MAX, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """List the names of transactions: names with an open transaction first, the oldest in front."""
    asked: Any = None if state is None else state.value
    found = with_client(url, lambda client: client.admin.transactions(asked, limit=count))
    if as_json:
        print_json(found)
    elif not found["transactions"]:
        print("no client has used a transaction yet" if state is None else f"no transaction is {state.value}")
    else:
        _print_names(found, state)


def _print_names(found: TransactionSummaries, state: State | None) -> None:
    _print_summaries(found["transactions"], "")
    if found["more"]:
        complain(f"and {found['more']:,} more{': --state shows fewer' if state is None else ''}")


def _print_summaries(shown: Sequence[TransactionSummary], title: str) -> None:
    heads: list[str | Column] = ["name", "state", *numbers("open s", "timeout s", "partitions", "epoch")]
    heads += [wide(number("offsets")), wide(number("queue partitions")), wide("name taken at (UTC)")]
    print_table(heads, map(_row, shown), title)


def _row(transaction: TransactionSummary) -> list[str]:
    from datetime import UTC, datetime

    taken = datetime.fromtimestamp(transaction["since_ms"] / 1000, UTC).isoformat(" ", "seconds")
    numbered = transaction["partitions"], transaction["epoch"], transaction["offsets"], transaction["queue_partitions"]
    return [
        transaction["name"],
        transaction["state"],
        "" if transaction["open_s"] is None else f"{transaction['open_s']:,.1f}",
        "" if transaction["timeout_s"] is None else f"{transaction['timeout_s']:,g}",
        *(f"{touched:,}" for touched in numbered),
        taken.removesuffix("+00:00"),
    ]


@app.command("describe")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show what a name's open transaction has touched so far, and the offsets at which readers wait for it."""
    shown = with_client(url, lambda client: client.admin.transaction(name))
    if as_json:
        print_json(shown)
    else:
        _print_transaction(shown)


def _print_transaction(shown: TransactionDescription) -> None:
    title = "no transaction is open" if shown["state"] == "idle" else f"transaction {shown['number']}"
    _print_summaries([shown], f"{shown['name']}: {title}")
    if shown["wrote"]:
        rows = [[row["topic"], str(row["partition"]), _held_from(row["held_from"])] for row in shown["wrote"]]
        print_table(["topic", number("partition"), number("held from")], rows, "published")
    if shown["elsewhere"]:
        print_table(["topic"], [[topic] for topic in shown["elsewhere"]], "topics that other brokers lead")
    if shown["holds"]:
        held = [
            [row["topic"], row["subscription"], str(row["partition"]), f"{row['records']:,}"] for row in shown["holds"]
        ]
        columns: list[str | Column] = ["topic", wide("subscription"), *numbers("partition", "records")]
        print_table(columns, held, "acked when it is committed")
    if shown["commits"]:
        offsets = [
            [row["group"], row["topic"], str(row["partition"]), f"{row['offset']:,}"] for row in shown["commits"]
        ]
        print_table(["group", "topic", *numbers("partition", "offset")], offsets, "offsets that it commits")


def _held_from(offset: int | None) -> str:
    return "nowhere" if offset is None else f"{offset:,}"


@app.command("abort")
def abort(
    name: Opened, dry_run: DryRun = False, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Abort the open transaction of a name: nothing of it takes effect. The broker logs it.

    Messages that it published are never read, and messages that it acked are delivered again. The client, if it still
    runs, gets transaction.aborted, and may begin another transaction under this name.
    """
    verb = "transaction.abort"
    asked: dict[str, Any] = {"name": name}
    if dry_run:
        checked = with_client(url, lambda client: client.admin.perform(verb, validate_only=True, **asked))
        for warning in checked["warnings"]:
            complain(f"warning: {warning['text']}")
        _print_aborted(name, checked, dry_run=True, as_json=as_json)
        return
    if not yes:
        question = f"Nothing of the open transaction of {one_line(name)} takes effect then. Abort it?"
        checked = confirm(url, verb, question, "not aborted", **asked)
        asked["number"] = checked["number"]  # Only this transaction: its client may have begun the next one meanwhile.
    aborted = with_client(url, lambda client: client.admin.perform(verb, **asked))
    _print_aborted(name, aborted, dry_run=False, as_json=as_json)


def _print_aborted(name: str, aborted: Mapping[str, Any], *, dry_run: bool, as_json: bool) -> None:
    data = {key: value for key, value in aborted.items() if key != "warnings"} | {"dry_run": dry_run}
    touched = [
        counted(aborted["partitions"], "partition"),
        counted(aborted["offsets"], "offset"),
        f"{counted(aborted['queue_partitions'], 'partition')} of queues",
    ]
    verb = "would abort" if dry_run else "aborted"
    open_for = f"which was open for {aborted['open_s']:,.1f} s"
    said = f"{verb} transaction {aborted['number']} of {one_line(name)}, {open_for}: {', '.join(touched)}"
    print_result(data, said, as_json=as_json)
