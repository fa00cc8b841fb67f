"""A reader who has linn's wheel and one page: its files are written and its commands typed, in order, in a new folder.

What a page says with its blocks:

- A block whose title is a file's name is that file; `title="NAME (more)"` goes to the end of the file.
- `sh` and `console` blocks without a title are typed. A `console` block has commands behind `$ `, and under each one
  lines of what it prints; `...` stands for anything. A command that ends with `&` goes on beside the next one, which is
  typed when these lines are there.
- Any other title says where a block belongs: `in the clone`, `/etc/systemd/system/linn.service`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

from code_block import CodeBlock, code_blocks
from fresh_environment import WheelEnvironment
from ports import free_ports

_FILE = re.compile(r"([\w-]+\.\w+)(?: \(more\))?")
_INSTALLED = re.compile(r"^(?:\$ )?(?:python3 -m venv|pip install (?!-e)).*\n", re.MULTILINE)
"""Commands that a page's environment was made by before it is read."""
_LINN = re.compile(r"\.\./linn(?:\[(?P<extras>[\w,]+)\])?")
PORTS = ("5466", "9466", "5467")
"""The ports that pages name. A reader has free ones in their place: tests run beside one another."""
COMMAND_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 200.0


def installed_by(page: Path) -> tuple[set[str], set[str]]:
    """(extras of linn, other distributions) that a page's `pip install` commands name."""
    extras: set[str] = set()
    others: set[str] = set()
    for command in (line for block in typed(page) for line in _INSTALLED.findall(block.text) if "pip install" in line):
        for word in shlex.split(command.partition("pip install")[2], comments=True):
            if linn := _LINN.fullmatch(word):
                extras.update((linn["extras"] or "").split(","))
            else:
                others.add(word)
    return extras - {""}, others


def file_of(block: CodeBlock) -> str:
    """The name of the file that a block is, or is the end of; empty where it is none."""
    named = _FILE.fullmatch(block.title)
    return named[1] if named else ""


def typed(page: Path) -> Iterator[CodeBlock]:
    """The blocks of a page that are for a terminal."""
    return (block for block in code_blocks(page) if block.language in ("sh", "console") and not block.title)


def commands(block: CodeBlock) -> Iterator[tuple[str, list[str]]]:
    """(command, lines that it prints); an `sh` block is one command."""
    text = _INSTALLED.sub("", block.text)
    if block.language == "sh":
        yield text, []
        return
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        lines = [line.strip().removeprefix("... ") for line in output.splitlines()]
        yield command, [line for line in lines if line.strip(".")]


def missing(expected: Iterable[str], printed: str) -> list[str]:
    """The lines of `expected` that were not printed."""
    return [line for line in expected if line not in printed]


class PageReader:
    """A terminal in `folder`, in which linn comes from its wheel. Leaving it ends all that was started in it."""

    def __init__(self, folder: Path, environment: WheelEnvironment) -> None:
        self.folder = folder
        self._ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self._typed = environment.python.parents[1] / "typed"
        self._count = 0
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON", "LINN"))}
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={
                **kept,
                "PATH": f"{environment.python.parent}:{os.environ['PATH']}",
                "COLUMNS": "120",
                "PYTHONUNBUFFERED": "1",  # As on a terminal.
                "LINN_URL": f"linn://127.0.0.1:{self._ports['5466']}",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self.type("set -eu -o pipefail")

    def read(self, page: Path) -> int:
        """Carry out a page's instructions. Returns how many files were written and commands typed."""
        done = 0
        for block in code_blocks(page):
            if name := file_of(block):
                with (self.folder / name).open("a" if block.title != name else "w") as file:
                    file.write(self._moved(block.text))
                done += 1
            elif block.language in ("sh", "console") and not block.title:
                for command, printed in commands(block):
                    self.type(command, printed)
                    done += 1
        return done

    def type(self, command: str, expected: Iterable[str] = ()) -> str:
        """Run a command and return its output. Raises AssertionError if it fails, or does not print the
        expected lines.
        """
        self._count += 1
        end = f"--- {self._count} ---"
        self._typed.write_text(self._moved(self._adapted(command)))
        assert self._bash.stdin is not None
        self._bash.stdin.write(f". {self._typed} < /dev/null\necho; echo '{end}'\n")
        said = self._read_to(lambda text: text.endswith(f"\n{end}\n"), command)
        said = said.removesuffix(f"\n{end}\n")
        lines = [self._moved(line) for line in expected]
        if command.endswith("&"):
            said += self._read_to(lambda text: not missing(lines, said + text), command)
        assert not missing(lines, said), f"$ {command}\n{said}\nlacks {missing(lines, said)}"
        self._move_files()
        return said

    def _read_to(self, ends: Callable[[str], bool], command: str) -> str:
        """Read output until `ends` accepts all of it. Raises AssertionError if the shell ends before.

        The shell is killed after COMMAND_TIMEOUT_S.
        """
        assert self._bash.stdout is not None
        said = ""
        deadline = threading.Timer(COMMAND_TIMEOUT_S, self._signal, [signal.SIGKILL])
        deadline.start()
        try:
            while not ends(said):
                line = self._bash.stdout.readline()
                assert line, f"$ {command}\n{said}\nfailed with {self._bash.wait()}"
                said += line
        finally:
            deadline.cancel()
        return said

    def _signal(self, number: signal.Signals) -> None:
        # The shell leads a session: what it started is in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, number)

    def _moved(self, text: str) -> str:
        """The text with this reader's ports."""
        return re.sub("|".join(PORTS), lambda port: self._ports[port[0]], text)

    def _move_files(self) -> None:
        """Put this reader's ports into the files that commands wrote."""
        for path in self.folder.glob("*.toml"):
            if (text := path.read_text()) != self._moved(text):
                path.write_text(self._moved(text))

    def _adapted(self, command: str) -> str:
        """The command, with the reader's port for a broker whose file names none, and without editable installations.

        Those need a package that only pip's own environments for building have.
        """
        command = command.replace("pip install -e", "pip install --quiet")
        serve = re.search(r"linn serve(?: ([\w-]+\.toml))?", command)
        if serve is None or (serve[1] and "[listeners." in (self.folder / serve[1]).read_text()):
            return command
        return command.replace(serve[0], f"{serve[0]} --listen 127.0.0.1:{PORTS[0]}")

    def __enter__(self) -> PageReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The end of the output is the end of all that writes it.
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._bash.communicate(timeout=STOP_TIMEOUT_S)
                break
