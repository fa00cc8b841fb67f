"""`linn dump`: what segment files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linn.cli.options import Json

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        exists=True,
        readable=True,
        help="A segment (.log), what was cut off one (.cut), or a partition's folder.",
    ),
]
Records = Annotated[bool, typer.Option("--records", help="Also each record: offset, key, routing key and value.")]


def dump(paths: Paths, records: Records = False, as_json: Json = False) -> None:
    """Print the batches in segment files: where each is, its offset, records and time, and whether its CRCs are right.

    Needs no broker and changes nothing; one may be running, and may be writing the last batch. Behind damage it goes on
    with the next batch that it finds. Ends with 1 where something is damaged; `linn recover` says what to do then.
    """
    from linn.cli.segment_dump import dump_segments

    if not dump_segments(paths, with_records=records, as_json=as_json):
        raise typer.Exit(1)
