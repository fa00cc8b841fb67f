"""`linn spark`: show, start, stop and restart Spark pipelines, print their drivers' logs, and list their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import pipeline_names
from linn.cli.noun import StatusNoun, noun
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json, print_result, print_text
from linn.cli.render.table import Cell, Column, number, numbers, print_table, wide
from linn.cli.session import with_client
from linn.core.errors.texts import did_you_mean, one_line
from linn.core.errors.tree import ServiceFailed
from linn.spark_plugin.errors import SparkPipelineUnknown

if TYPE_CHECKING:
    from linn.client.client import Client

app = noun(
    "Show, start, stop and restart Spark pipelines, print their drivers' logs, and list their files.", StatusNoun
)

SERVICE = "spark"
FOLLOW_S = 1.0
"""Interval at which `linn spark logs --follow` polls."""
LINES = 100
_COLOURS = {"running": "green", "failed": "red", "backing off": "yellow"}

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Only this pipeline.", autocompletion=pipeline_names)
]
Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Names of pipelines.", autocompletion=pipeline_names)
]
OneName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.", autocompletion=pipeline_names)]
Follow = Annotated[bool, typer.Option("--follow", help="Go on with new lines, until Ctrl-C.")]
Lines = Annotated[
    int, typer.Option("--lines", min=0, max=1_000, metavar="COUNT", help="Number of existing lines to print first.")
]


@app.command("status")
def status(name: Name = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the states and the progress of pipelines, and why a pipeline does not run.

    States are stopped, starting, running, draining (a stop waits for the micro-batch in progress), backing off (the
    driver failed, and starts again after a delay), failed (it stays down; the line says what to do) and elsewhere
    (another broker of the cluster runs it; the line says which).
    """
    found = with_client(url, _status)
    if name is not None:
        known = {pipeline["name"]: pipeline for pipeline in found["pipelines"]}
        if name not in known:
            raise SparkPipelineUnknown(f'there is no Spark pipeline "{name[:80]}"{did_you_mean(name, known)}')
        drivers = [driver for driver in found["drivers"] if driver["name"] == known[name]["driver"]]
        found = {"pipelines": [known[name]], "drivers": drivers}
    if as_json:
        print_json(found)
    elif not found["pipelines"]:
        print("no topic has a spark_sink, and the configuration has no pipeline")
    else:
        _print_pipelines(found)


async def _status(client: Client) -> Mapping[str, Any]:
    for service in await client.admin.perform("service.list"):
        if service["name"] == SERVICE:
            if service["status"] is None or service["state"] == "failed":
                raise ServiceFailed(f'the service "{SERVICE}" has failed: {service["error"]}')
            found: Mapping[str, Any] = service["status"]
            return found
    return {"pipelines": [], "drivers": []}


def _print_pipelines(found: Mapping[str, Any]) -> None:
    from rich.text import Text

    heads: list[str | Column] = ["pipeline", "state", *numbers("rows", "rows/s", "lag")]
    heads += [wide(number("batch s")), wide(number("restarts")), wide("driver"), wide("topics"), wide("sink")]
    rows: list[list[Cell]] = []
    for pipeline in found["pipelines"]:
        progress = pipeline["progress"]
        seconds = "" if progress["duration_ms"] is None else f"{progress['duration_ms'] / 1000:,.2f}"
        lag = "" if progress["lag"] is None else f"{progress['lag']:,}"
        counts = f"{progress['rows']:,}", f"{progress['rows_per_s']:,.0f}", lag, seconds, f"{pipeline['restarts']:,}"
        state = Text(pipeline["state"], _COLOURS.get(pipeline["state"], ""))
        sink = pipeline["format"] if pipeline["path"] is None else f"{pipeline['format']} {pipeline['path']}"
        rows.append([pipeline["name"], state, *counts, pipeline["driver"], ", ".join(pipeline["topics"]), sink])
    print_table(heads, rows)
    for pipeline in found["pipelines"]:
        if pipeline["reason"] is not None:
            print_text(one_line(f"{pipeline['name']}: {pipeline['reason']}"))
            if pipeline["remedy"]:
                print_text(f"  what to do: {pipeline['remedy']}")
    for driver in found["drivers"]:
        if driver["next_start_s"] is not None:
            print_text(f"driver {driver['name']} starts again in {driver['next_start_s']:.0f} s")


@app.command("start")
def start(names: Names, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Start pipelines that are stopped, back off or have failed. The others of their drivers restart with them.

    The broker remembers it while it runs; at its next start the configuration decides.
    """
    _change("start", names, url, as_json=as_json)


@app.command("stop")
def stop(names: Names, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop pipelines, once their micro-batch in progress is done. Others of the same driver go on.

    The broker remembers it while it runs; at its next start the configuration decides. The command does not wait:
    `linn spark status` shows "draining" until they have stopped, or were killed after `drain_timeout`.
    """
    _change("stop", names, url, as_json=as_json)


@app.command("restart")
def restart(names: Names, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop pipelines as `stop` does, and start them again, with all others of their drivers."""
    _change("restart", names, url, as_json=as_json)


def _change(action: str, names: Sequence[str], url: str, *, as_json: bool) -> None:
    changed = with_client(url, lambda client: _perform(client, action, pipelines=list(names)))
    said = "\n".join(f"{one_line(pipeline['name'])} is {pipeline['state']}" for pipeline in changed["pipelines"])
    print_result(changed, said, as_json=as_json)


@app.command("logs")
def logs(
    name: Name = None, follow: Follow = False, lines: Lines = LINES, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Print what drivers have written to standard output and error: the last lines, which the broker keeps in memory.

    Pipelines that share a driver share its log. With --json it prints one object per line.
    """
    with_client(url, lambda client: _print_log(client, name, lines, follow=follow, as_json=as_json))


async def _print_log(client: Client, name: str | None, lines: int, *, follow: bool, as_json: bool) -> None:
    import anyio

    chosen = {} if name is None else {"pipeline": name}
    found = await _perform(client, "logs", lines=lines, **chosen)
    _print_lines(found["lines"], as_json=as_json)
    while follow:
        await anyio.sleep(FOLLOW_S)
        found = await _perform(client, "logs", after=found["next"], **chosen)
        _print_lines(found["lines"], as_json=as_json)


def _print_lines(lines: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    import json
    from datetime import UTC, datetime

    for line in lines:
        if as_json:
            print(json.dumps(line), flush=True)
        else:
            time = datetime.fromtimestamp(line["time_ms"] / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
            print(one_line(f"{time} {line['driver']} {line['text']}"), flush=True)


@app.command("files")
def files(name: OneName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the files that a pipeline has committed, without the files of failed attempts. Any tool can read them.

    They are the whole output of the formats parquet, json, delta and iceberg at this moment: paths on the broker's
    machine, or URLs.
    """
    found = with_client(url, lambda client: _perform(client, "files", pipeline=name))
    if as_json:
        print_json(found)
    else:
        for file in found["files"]:
            print_text(one_line(file))


async def _perform(client: Client, action: str, **arguments: Any) -> Any:
    return await client.admin.perform("service.perform", service=SERVICE, action=action, arguments=arguments)
