"""`linn plugins new`: a plugin to begin with."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import Json

KINDS = {
    "engine": "stores logs: `storage =` of a topic",
    "exchange": "chooses topics for a message: `type =` of an exchange",
    "interceptor": "changes or drops messages: `interceptors =` of a topic",
    "observer": "is told when topics and connections come and go",
    "partitioner": "chooses partitions for messages: `partitioner =` of a topic",
    "protocol": "speaks with clients: `protocol =` of a listener",
    "semantics": "says how a queue delivers: `delivery =` of a topic",
}
"""What a plugin of each kind does, and where TOML names it."""
_KIND_LINES = "\n".join(f"- {kind}: {does}" for kind, does in KINDS.items())

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="What TOML is to call it: small letters, digits and single hyphens.")
]
Kind = Annotated[str, typer.Option("--kind", metavar="KIND", help="What it brings, of the kinds above.")]
Into = Annotated[str, typer.Option("--into", metavar="FOLDER", help="Where its own folder, linn-NAME, is made.")]


HELP = f"""Write a package with a plugin that works: code, tests that pass, README and entry point.

Never overwrites anything. KIND is one of

{_KIND_LINES}
"""


def new(name: Name, kind: Kind, into: Into = ".", as_json: Json = False) -> None:
    """Write the package, as `HELP` says."""
    if kind not in KINDS:
        from linn.core.errors.texts import nearest

        near = nearest(kind, KINDS)
        hint = f' (did you mean "{near}"?)' if near else ""
        text = f"there is no kind {kind[:40]!r}{hint}; the kinds are\n{_KIND_LINES}"
        raise typer.BadParameter(text, param_hint="--kind")
    from linn.cli.plugin_skeleton import PluginSkeleton, name_mistake
    from linn.cli.render.console import tell

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
