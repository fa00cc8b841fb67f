"""`linn recover`: a log that is too damaged to be opened."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import Json

Partition = Annotated[
    str,
    typer.Argument(metavar="[PARTITION]", help="As the error names it, such as orders/0. Default: look at all logs."),
]
File = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration. Default: linn.toml here, or else all defaults."),
]
DataDir = Annotated[str | None, typer.Option("--data-dir", metavar="FOLDER", help="Instead of the file's data_dir.")]
Cut = Annotated[bool, typer.Option("--cut", help="Cut the log where it is damaged, and set the rest aside.")]


def recover(
    partition: Partition = "",
    config: File = None,
    data_dir: DataDir = None,
    cut: Cut = False,
    as_json: Json = False,
) -> None:
    """Say where logs are damaged and what would be lost by cutting there; cut one with --cut. No broker may be running.

    A broker refuses to start over a log that is damaged with whole batches behind the damage. What is cut off is kept
    in the log's folder, in files whose names end with .cut; offsets from there on are given out again. Ends with 1
    where a log is damaged and was not cut.
    """
    if cut and not partition:
        raise typer.BadParameter("--cut needs the partition that is to be cut", param_hint="PARTITION")
    from linn.cli.recovering import recover_logs

    if not recover_logs(partition, config, data_dir, cut=cut, as_json=as_json):
        raise typer.Exit(1)
