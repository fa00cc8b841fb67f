"""Grammar of command groups: `linn topics` means `linn topics list`, and `show` means `describe`."""

from __future__ import annotations

from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

ALIASES = {"show": "describe"}
"""Verbs that other tools use, and their names here."""


class Verbs(TyperGroup):
    """Group of verbs; without a verb it runs the default one, with its options."""

    default: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default verb in front of options. Raises UsageError where a verb follows them."""
        if (args and args[0].startswith("-") and args[0] not in ctx.help_option_names) or self._lists(ctx, args):
            verb = next((arg for arg in args if arg in self.commands or arg in ALIASES), None)
            if verb is not None:
                ctx.fail(f"options go behind the command: {ctx.command_path} {verb} ...")
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    @staticmethod
    def _lists(ctx: Any, args: list[str]) -> bool:
        """Tell whether nothing follows the noun. Shell completion is offered all verbs instead."""
        return not args and not ctx.resilient_parsing

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a verb or an alias."""
        return super().resolve_command(ctx, [ALIASES.get(args[0], args[0]), *args[1:]])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete verbs, and the options of the default one."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            found += self.commands[self.default].shell_complete(ctx, incomplete)
        return found


class Noun(Verbs):
    """Group of verbs whose default is `list`."""

    default = "list"


class StatusNoun(Verbs):
    """Group of verbs whose default is `status`."""

    default = "status"


def noun(text: str, kind: type[Verbs] = Noun) -> typer.Typer:
    """Make the empty group of a noun. One of its commands must have the name of the default of `kind`."""
    return typer.Typer(cls=kind, help=f"{text} Without a command: {kind.default}.", subcommand_metavar="[COMMAND]")
