"""The grammar that all nouns share: `linn topics` lists, and `linn topics show` is `linn topics describe`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

DEFAULT = "list"
"""The verb of a noun that is given none."""
ALIASES = {"show": "describe"}
"""Verbs that other tools have for what is called otherwise here."""


class Noun(TyperGroup):
    """A group of verbs: without one it lists, with the options of `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the verb in front of options that come without one. Raises UsageError where one follows them."""
        if (args and args[0].startswith("-") and args[0] not in ctx.help_option_names) or self._lists(ctx, args):
            verb = next((arg for arg in args if arg in self.commands or arg in ALIASES), None)
            if verb is not None:
                ctx.fail(f"options go behind the command: {ctx.command_path} {verb} ...")
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    @staticmethod
    def _lists(ctx: Any, args: list[str]) -> bool:
        """Whether nothing follows the noun. A shell that asks what could follow is offered all verbs instead."""
        return not args and not ctx.resilient_parsing

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that a verb or an alias names."""
        return super().resolve_command(ctx, [ALIASES.get(args[0], args[0]), *args[1:]])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Verbs, and the options of `list`."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            found += self.commands[DEFAULT].shell_complete(ctx, incomplete)
        return found


def noun(text: str) -> typer.Typer:
    """The commands of a noun, to be filled; one of them is called "list"."""
    return typer.Typer(cls=Noun, help=f"{text} Without a command: list.", subcommand_metavar="[COMMAND]")
