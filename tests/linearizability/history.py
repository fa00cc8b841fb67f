"""History: when each client called what, and was told what; and the checker that says whether that is linearizable."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).parent
CHECK_TIMEOUT_S = 600
UNDECIDED_MAX = 0.01
"""Share of histories for which the search may take too long: it is exponential in what nobody was told."""


class Operation:
    """One call of a client about one partition."""

    def __init__(self, history: History, partition: str, client: int, kind: str, tag: int) -> None:
        self._history = history
        self.partition = partition
        self.client = client
        self.kind = kind
        self.tag = tag
        self.read: list[int] = []
        self.called_at = history.tick()
        self.returned_at: int | None = None
        self.is_sure = False

    def end(self) -> None:
        """Note that the client was told. Without it the operation may take effect at any time, or never."""
        self.returned_at = self._history.tick()
        self.is_sure = True

    def end_unsure(self) -> None:
        """Note that it took effect before now, or never, if the client has not been told."""
        if self.returned_at is None:
            self.returned_at = self._history.tick()

    def line(self, name: str) -> str:
        """The operation as the checker reads it, in the history of this name."""
        shown = {"kind": self.kind, "tag": self.tag, "client": self.client, "read": self.read, "sure": self.is_sure}
        return json.dumps({**shown, "history": name, "call": self.called_at, "return": self.returned_at})


class History:
    """The operations of a run, in the order of their calls."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._now = 0

    def tick(self) -> int:
        """The next moment. No two calls or returns have the same."""
        self._now += 1
        return self._now

    def call(self, partition: str, client: int, kind: str, tag: int = 0) -> Operation:
        """Note that an operation was called."""
        operation = Operation(self, partition, client, kind, tag)
        self.operations.append(operation)
        return operation

    def forget(self, operations: Iterable[Operation]) -> None:
        """Take out operations that had no effect for certain."""
        gone = set(map(id, operations))
        self.operations = [each for each in self.operations if id(each) not in gone]

    def lines(self, name: str) -> list[str]:
        """All operations, each partition as a history of its own."""
        return [each.line(f"{name}/{each.partition}") for each in self.operations]


class Checker:
    """The program of this folder, which asks porcupine, in a process for each call."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def results(self, lines: Iterable[str]) -> dict[str, str]:
        """The verdict on each history: "Ok", "Illegal", or "Unknown" where the search takes too long."""
        done = subprocess.run(
            [self._program], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=CHECK_TIMEOUT_S
        )
        answers = map(json.loads, done.stdout.splitlines())
        return {answer["history"]: answer["result"] for answer in answers}


def unexplained(checker: Checker, seeds: Iterable[int], run: Callable[[int], History]) -> dict[str, str]:
    """The seeds that failed, and the histories that no order explains."""
    failed: dict[str, str] = {}
    lines: list[str] = []
    for seed in seeds:
        try:
            lines += run(seed).lines(str(seed))
        except Exception as error:
            failed[str(seed)] = f"{str(error).splitlines()[0][:300]} ({'; '.join(error.__notes__)})"
    results = checker.results(lines)
    undecided = [name for name, result in results.items() if result == "Unknown"]
    if len(undecided) > max(1, UNDECIDED_MAX * len(results)):
        failed["undecided"] = " ".join(undecided)
    return {**failed, **{name: result for name, result in results.items() if result == "Illegal"}}
