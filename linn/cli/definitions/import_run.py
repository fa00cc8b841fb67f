"""The import of a file's topics, exchanges and bindings: `linn definitions import`, and its report."""

from __future__ import annotations

from typing import Any

import typer

from linn.cli.definitions.export import definitions
from linn.cli.definitions.file import DefinitionFile
from linn.cli.definitions.plan import Change, Plan
from linn.cli.exit_code import ExitCode, complain, on_interrupt
from linn.cli.render.console import print_json
from linn.cli.session import with_client
from linn.client.client import Client
from linn.core.config.config import read_toml
from linn.core.config.problem import Problem
from linn.core.errors.texts import counted, one_line
from linn.core.errors.tree import LinnError

_DONE = {"create": "created", "alter": "altered", "bind": "bound"}


class Import:
    """One run of `linn definitions import`."""

    def __init__(self, file: str, *, dry: bool) -> None:
        """`dry`: check everything, and change nothing. Raises ConfigUnreadable."""
        self._source = read_toml("/dev/stdin" if file == "-" else file)
        if file == "-":
            self._source.file = "stdin"
        self._dry = dry
        self._file: DefinitionFile | None = None
        self._plan: Plan | None = None
        self._as_json = False

    def run(self, url: str, *, as_json: bool) -> None:
        """Import, and print the changes. Raises LinnError, KeyboardInterrupt; typer.Exit if there are problems."""
        self._as_json = as_json
        try:
            with on_interrupt(self._tell_of_interruption):
                with_client(url, self._work)
        finally:
            if as_json and self._plan is not None:
                print_json(self._as_data())
        if self._problems():
            errors = counted(len(self._problems()), "error")
            complain(f"nothing was imported: {errors}")
            raise typer.Exit(ExitCode.CONFIGURATION)
        if not as_json:
            self._tell_of_the_rest()

    async def _work(self, client: Client) -> None:
        there = await definitions(client)
        self._file = DefinitionFile(self._source, there)
        for table in self._file.passed_over:
            complain(f"{self._source.file}: [{table}] is ignored: it belongs to the configuration of a broker")
        plan = Plan(self._file, there)
        await plan.make(client)
        self._plan = plan
        for problem in self._problems():
            complain(f"{self._file.problems.describe(problem)} [{problem.error.code}]")
        if self._problems():
            return
        for warning in plan.warnings:
            complain(f"warning: {warning}")
        for change in plan.changes:
            await self._make(client, change)

    async def _make(self, client: Client, change: Change) -> None:
        if not self._dry:
            try:
                await client.admin.perform(change.verb, **change.arguments)
            except LinnError as error:
                error.text = f"{change.action} {change.words()}: {error.text}; {self._how_far()}"
                raise
            change.done = True
        if not self._as_json:
            did = f"would {change.action}" if self._dry else _DONE[change.action]
            print(one_line(f"{did} {change.words()}"), flush=True)

    def _problems(self) -> list[Problem]:
        return self._file.problems.in_order() if self._file is not None else []

    def _tell_of_interruption(self) -> None:
        if self._plan is not None and not self._dry:
            complain(f"interrupted: {self._how_far()}, and perhaps one more")

    def _how_far(self) -> str:
        assert self._plan is not None
        done = sum(change.done for change in self._plan.changes)
        return f"{done} of {counted(len(self._plan.changes), 'change')} made; importing again goes on from there"

    def _tell_of_the_rest(self) -> None:
        assert self._plan is not None
        unchanged = ", ".join(counted(number, noun) for noun, number in self._plan.unchanged.items() if number)
        if not self._plan.changes:
            print("nothing to do" + (f": {unchanged} as the file says" if unchanged else ""))
        elif unchanged:
            print(f"unchanged: {unchanged}")

    def _as_data(self) -> dict[str, Any]:
        assert self._plan is not None
        return {
            "file": self._source.file,
            "dry_run": self._dry,
            "changes": [
                {
                    "action": change.action,
                    "noun": change.noun,
                    "name": change.name,
                    "settings": change.keys,
                    "binding": change.binding,
                    "done": change.done,
                }
                for change in self._plan.changes
            ],
            "unchanged": self._plan.unchanged,
            "problems": [
                {"line": problem.line, "key": problem.key, "text": problem.text, "code": problem.error.code}
                for problem in self._problems()
            ],
        }
