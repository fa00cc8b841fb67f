"""A hook of mkdocs: code as a reader copies and reads it.

The copy button of a console session copies the commands, not the prompts and the output. Code within text breaks
at its spaces only: browsers break `--json` behind a hyphen as well, and no style can forbid only that.
"""

from __future__ import annotations

import html
import re
from typing import Any

_BLOCK = re.compile(r'<div class="(?P<classes>[^"]*highlight[^"]*)">(?P<code>.*?</code></pre></div>)', re.DOTALL)
_INLINE = re.compile(r"(?<!<span></span>)<code>([^<]*)</code>")
_TAG = re.compile(r"<[^>]*>")
_WORD = re.compile(r"\S+")
_WHOLE = r'<span class="word">\g<0></span>'
_PROMPT = '<span class="gp">'
_OUTPUT = '<span class="go">'


def on_page_content(content: str, **_: Any) -> str:
    """Have the copy button of a console session copy its commands, and words of code stay whole."""

    def with_commands(block: re.Match[str]) -> str:
        if _PROMPT not in block["code"]:
            return block[0]
        copied = html.escape(commands(block["code"]), quote=True)
        return f'<div class="{block["classes"]}" data-copy="{copied}">{block["code"]}'

    def with_words(code: re.Match[str]) -> str:
        return f"<code>{_WORD.sub(_WHOLE, code[1])}</code>"

    return _INLINE.sub(with_words, _BLOCK.sub(with_commands, content))


def commands(code: str) -> str:
    """The commands of a highlighted console session, one a line, without prompts and output."""
    found = []
    for line in code.splitlines():
        text = html.unescape(_TAG.sub("", line))
        if text.strip() and _OUTPUT not in line:
            found.append(text.removeprefix("$ ") if _PROMPT in line else text)
    return "\n".join(found)
