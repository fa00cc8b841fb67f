"""A hook of mkdocs: the copy button of a console session copies the commands, not the prompts and the output."""

from __future__ import annotations

import html
import re
from typing import Any

_BLOCK = re.compile(r'<div class="(?P<classes>[^"]*highlight[^"]*)">(?P<code>.*?</code></pre></div>)', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_PROMPT = '<span class="gp">'
_OUTPUT = '<span class="go">'


def on_page_content(content: str, **_: Any) -> str:
    """Have the copy button of a console session copy its commands."""

    def with_commands(block: re.Match[str]) -> str:
        if _PROMPT not in block["code"]:
            return block[0]
        copied = html.escape(commands(block["code"]), quote=True)
        return f'<div class="{block["classes"]}" data-copy="{copied}">{block["code"]}'

    return _BLOCK.sub(with_commands, content)


def commands(code: str) -> str:
    """The commands of a highlighted console session, one a line, without prompts and output."""
    found = []
    for line in code.splitlines():
        text = html.unescape(_TAG.sub("", line))
        if text.strip() and _OUTPUT not in line:
            found.append(text.removeprefix("$ ") if _PROMPT in line else text)
    return "\n".join(found)
