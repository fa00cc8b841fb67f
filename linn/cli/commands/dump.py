"""`linn dump`: print the batches in segment files."""

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
        help="A segment (.log), the part cut off a damaged segment (.cut), or the folder of a partition.",
    ),
]
Records = Annotated[
    bool, typer.Option("--records", help="Print each record as well: offset, key, routing key and value.")
]


def dump(paths: Paths, records: Records = False, as_json: Json = False) -> None:
    """Print each batch in segment files: position, offset, number of records, time, and the state of its CRCs.

    Needs no broker and changes nothing; a broker may be running and writing the last batch. Continues behind damage
    with the next batch that it finds. Ends with 1 if anything is damaged: see `linn recover`.
    """
    from linn.cli.segment_dump import dump_segments

    if not dump_segments(paths, with_records=records, as_json=as_json):
        raise typer.Exit(1)
