"""Grammar of command groups: `linn topics` means `linn topics list`, and `show` means `describe`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

DEFAULT = "list"
"""Verb of a noun without one."""
ALIASES = {"show": "describe"}
"""Verbs that other tools use, and their names here."""


class Noun(TyperGroup):
    """Group of verbs; without a verb it runs `list`, with its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default verb in front of options. Raises UsageError where a verb follows them."""
        if (args and args[0].startswith("-") and args[0] not in ctx.help_option_names) or self._lists(ctx, args):
            verb = next((arg for arg in args if arg in self.commands or arg in ALIASES), None)
            if verb is not None:
                ctx.fail(f"options go behind the command: {ctx.command_path} {verb} ...")
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    @staticmethod
    def _lists(ctx: Any, args: list[str]) -> bool:
        """Tell whether nothing follows the noun. Shell completion is offered all verbs instead."""
        return not args and not ctx.resilient_parsing

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a verb or an alias."""
        return super().resolve_command(ctx, [ALIASES.get(args[0], args[0]), *args[1:]])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete verbs, and the options of `list`."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            found += self.commands[DEFAULT].shell_complete(ctx, incomplete)
        return found


def noun(text: str) -> typer.Typer:
    """Make the group of a noun, to be filled with commands; one of them must be called "list"."""
    return typer.Typer(cls=Noun, help=f"{text} Without a command: list.", subcommand_metavar="[COMMAND]")
