"""`linn audit`: read and verify the audit trail."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.moment import moment_text
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_result
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.client.client import Client

app = typer.Typer(
    help="Read and verify the audit trail: logins, refusals and changes, and by whom.", no_args_is_help=True
)

TOPIC = "__audit"
CountShown = Annotated[
    int, typer.Option("--count", "-n", min=1, metavar="NUMBER", help="Number of the newest records to print.")
]
Expected = Annotated[
    str | None,
    typer.Option("--last", metavar="HASH", help="The hash that an earlier verify printed: it must be on the trail."),
]


@app.command("tail")
def tail(count: CountShown = 20, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Print the newest records, oldest first."""
    newest: deque[bytes] = deque(maxlen=count)
    _read(url, newest.append)
    for text in newest:
        record = json.loads(text)
        print(json.dumps(record) if as_json else _line(record))


@app.command("export")
def export(url: Url = DEFAULT_URL) -> None:
    """Print all records as they are stored, one JSON object a line."""
    _read(url, lambda text: sys.stdout.buffer.write(text + b"\n"))


@app.command("verify")
def verify(last: Expected = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Check that no record was changed, added or removed, except from the start by retention.

    Prints the hash of the last record. Keep it elsewhere, and name it with --last the next time: then records that
    were removed from the end are found too.
    """
    from linn.core.security.audit_chain import ChainVerifier

    verifier = ChainVerifier()
    records, is_found, problems = 0, last is None, list[str]()

    def check(text: bytes) -> None:
        nonlocal records, is_found
        records += 1
        problem = verifier.check(text)
        is_found = is_found or verifier.last == last
        if problem is not None and not problems:
            problems.append(f"record {records}: {problem}")

    _read(url, check)
    if not is_found:
        problems.append(f"the record with the hash {last} is not on the trail")
    result = {"records": records, "last": verifier.last, "problems": problems}
    text = f"{records:,} records; last: {verifier.last}\n" + ("\n".join(problems) or "none was changed or removed")
    print_result(result, text, as_json=as_json)
    if problems:
        raise typer.Exit(1)


def _read(url: str, take: Callable[[bytes], object]) -> None:
    """Pass the text of each record to `take`, oldest first."""
    from linn.cli.topic_snapshot import TopicSnapshot

    async def read(client: Client) -> None:
        async with aclosing(TopicSnapshot(client, TOPIC).messages()) as snapshot:
            async for messages in snapshot:
                for message in messages:
                    take(message.value or b"")

    with_client(url, read)


def _line(record: dict[str, Any]) -> str:
    """One record for a person."""
    arguments = record.get("arguments", {}).values()
    on = record.get("on") or " ".join(", ".join(it) if isinstance(it, list | dict) else str(it) for it in arguments)
    changed = f" ({', '.join(record['changed'])})" if record.get("changed") else ""
    times = f", {record['times']} times" if record.get("times", 1) > 1 else ""
    by = f"{record['user']} at {record['address']}" if record["user"] else "others"
    return f"{moment_text(record['at_ms'])}  {by}: {record['action']} {on}{changed}: {record['outcome']}{times}"
