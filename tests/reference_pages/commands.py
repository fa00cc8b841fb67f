"""Generator of docs/reference/cli.md from the commands: `python tests/reference_pages cli`."""

from __future__ import annotations

import inspect
import pprint
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from linn.cli.app import app
from linn.cli.exit_code import MEANINGS
from linn.cli.noun import Verbs
from reference_pages.json_shapes import EACH_LINE, SHAPES

_SHAPE_CHARACTERS = 110
_INTRO = """\
# The command line

This page is generated from the commands: `python tests/reference_pages cli`.

`linn COMMAND --help` prints the same on a terminal; `python -m linn` is the same command. Commands that connect to a
broker take its URL from `--url`, else from the environment variable `LINN_URL`, else `linn://127.0.0.1:5466`. URLs are
`linn://HOST[:PORT]`, `linn://[V6][:PORT]` and `linn+unix:///PATH`, and `linn://HOST,HOST` names several brokers of a
cluster.

Results go to stdout, everything else to stderr. An expected failure is one line, `linn: TEXT [CODE]`, and never a
traceback; [errors](errors.md) lists the remedy for each code. Only errors of the command line itself, which end with 2,
are a box of a few lines without a code. Commands that delete something or move a group ask first, unless `--yes` is
given; without an answer nothing is done. What the broker would refuse is refused before the question.

A noun without a verb lists: `linn topics --json` means `linn topics list --json`. `show` is an alias of `describe`.
Options follow the verb.

Names in tables fold and are never cropped: joining the lines of a cell gives the whole name. On a terminal of less than
100 columns the least important columns are left out. In a pipe each row is one line, with all columns; the environment
variable `COLUMNS` sets a width there as well. `--json` has everything.

With `--json` a command prints the shape shown on this page: `"text"`, `"number"`, `"boolean"` or `"any"` stand for
values, a `?` for one that may be null, a key in capitals for any key; a list holds any number of its one item. Keys
that do not apply are left out: `queue` of a stream, `topic` or `exchange` of a binding, `messages` unless a topic is
given. Later versions may add keys.

[Operate from the command line](../how-to/operate-from-the-command-line.md) shows the commands at work.

## Exit codes

| code | meaning |
|---|---|
"""


def page() -> str:
    """Render the page."""
    codes = "".join(f"| {int(code)} | {meaning} |\n" for code, meaning in MEANINGS.items())
    sections = [_section(path, command) for path, command in commands()]
    return _INTRO + codes + "\n" + "\n".join(sections)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command and group with its path, such as "linn topics create", in the order of `--help`."""
    yield from _walk("linn", get_command(app))


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(f"{path} {name}", inner)


def _section(path: str, command: Any) -> str:
    parameters = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    shown = [path, *(names(argument) for argument in arguments)]
    if hasattr(command, "commands"):
        shown.append("[COMMAND]" if isinstance(command, Verbs) else "COMMAND")
    text = f"## {path}\n\n    {' '.join(shown)}\n\n{inspect.cleandoc(command.help or '')}\n"
    if parameters:
        rows = "".join(f"| `{names(parameter)}` | {_help(parameter)} |\n" for parameter in parameters)
        text += f"\n| argument or option | |\n|---|---|\n{rows}"
    return text + _shape(path)


def _shape(path: str) -> str:
    """Render the shapes of the JSON that a command prints, if any."""
    shown = ""
    for known, shape in SHAPES.items():
        if known == path or known.startswith(f"{path} --"):
            option = known.removeprefix(path).strip()
            with_option = f" and `{option}`" if option else ""
            each = EACH_LINE.get(known)
            intro = f"Each line of `{each}`{with_option}:" if each else f"With `--json`{with_option}:"
            lines = pprint.pformat(shape, width=_SHAPE_CHARACTERS, sort_dicts=False).replace("'", '"')
            shown += f"\n{intro}\n\n```json\n{lines}\n```\n"
    return shown


def names(parameter: Any) -> str:
    """Return a parameter as it is written: "TOPIC", "--url URL" or "--follow / --no-follow"."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    written = " / ".join([*parameter.opts, *parameter.secondary_opts])
    return written if parameter.is_flag else f"{written} {parameter.metavar}"


def _help(parameter: Any) -> str:
    text = parameter.help or ""
    if parameter.param_type_name == "option" and parameter.default not in (None, "", False, []):
        default = parameter.opts[0] if parameter.default is True else parameter.default
        text += f" Default: `{default}`."
    return text.strip()
