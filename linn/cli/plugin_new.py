"""`linn plugins new`: a plugin to begin with."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import Json

KINDS = ("engine", "exchange", "interceptor", "observer", "protocol", "semantics")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="What TOML is to call it: small letters, digits and single hyphens.")
]
Kind = Annotated[str, typer.Option("--kind", metavar="KIND", help=f"What it brings: {', '.join(KINDS)}.")]
Into = Annotated[str, typer.Option("--into", metavar="FOLDER", help="Where its own folder, linn-NAME, is made.")]


def new(name: Name, kind: Kind, into: Into = ".", as_json: Json = False) -> None:
    """Write a package with a plugin that works: code, a conformance suite that passes, README and entry point.

    Never overwrites anything.
    """
    from linn.core.errors.nearest import did_you_mean

    if kind not in KINDS:
        text = f"must be one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        raise typer.BadParameter(text, param_hint="--kind")
    from linn.cli.console import tell
    from linn.cli.plugin_skeleton import PluginSkeleton, name_mistake

    mistake = name_mistake(name)
    if mistake is not None:
        raise typer.BadParameter(mistake, param_hint="NAME")
    skeleton = PluginSkeleton(name, kind)
    folder = skeleton.write(into)
    steps = f"`pip install -e '{folder}[dev]'` lets linn find it; then `cd {folder} && pytest` runs its tests"
    tell(
        {"folder": folder, "files": list(skeleton.files())},
        f"wrote {folder}, with the {kind} {name}; {steps}",
        as_json=as_json,
    )
