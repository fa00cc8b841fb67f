"""Code blocks of a page: fences as Markdown has them, with the title that mkdocs shows above a block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"\n]+)\")?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class CodeBlock(NamedTuple):
    """The text between two fences: ```` ```LANGUAGE title="TITLE" ````."""

    page: Path
    line: int
    language: str
    title: str
    """The name of the file that it is, or where it belongs; empty where the block has none."""
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def code_blocks(page: Path) -> Iterator[CodeBlock]:
    """The blocks of a page, in order."""
    content = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(content):
        lines = [line.removeprefix(found["indent"]) for line in found["text"].splitlines(keepends=True)]
        line = content.count("\n", 0, found.start()) + 1
        yield CodeBlock(page, line, found["language"], found["title"] or "", "".join(lines))
