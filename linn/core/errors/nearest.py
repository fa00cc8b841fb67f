"""What somebody probably meant: the known word nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_WORD_CHARACTERS_MAX = 100
"""difflib is quadratic; no known word is as long as this."""
_WORDS_MAX = 1_000
"""Among more than these nothing is looked for: it takes 10 us a word, and any client can name what is not there."""
_LISTED_MAX = 30


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that looks most like `word`, or None where none does, or there are too many."""
    options = sorted(known)
    if len(options) > _WORDS_MAX:
        return None
    near = difflib.get_close_matches(word[:_WORD_CHARACTERS_MAX], options, n=1)
    return near[0] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error's line: "; did you mean 'retention'?", or the known words where none is near."""
    options = sorted(known)
    near = nearest(word, options)
    if near is not None:
        return f'; did you mean "{near}"?'
    if not options:
        return "; there are none"
    more = ", ..." if len(options) > _LISTED_MAX else ""
    return f"; known: {', '.join(options[:_LISTED_MAX])}{more}"
