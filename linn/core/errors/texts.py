"""Parts of texts for people: the known word nearest to an unknown one, counts, and lines that are safe to print."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_WORD_CHARACTERS_MAX = 100
"""Longest word that is looked up: difflib is quadratic, and no known word is longer."""
_WORDS_MAX = 1_000
"""Limit of the known words compared: each takes 10 us, and any client can send an unknown name."""
_LISTED_MAX = 30


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most similar to `word`; None if none is similar, or there are too many."""
    options = sorted(known)
    if len(options) > _WORDS_MAX:
        return None
    near = difflib.get_close_matches(word[:_WORD_CHARACTERS_MAX], options, n=1)
    return near[0] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: "; did you mean 'retention'?", or the known words if none is similar."""
    options = sorted(known)
    near = nearest(word, options)
    if near is not None:
        return f'; did you mean "{near}"?'
    if not options:
        return "; there are none"
    more = ", ..." if len(options) > _LISTED_MAX else ""
    return f"; known: {', '.join(options[:_LISTED_MAX])}{more}"


def one_line(text: str) -> str:
    """Escape every character that would break or garble a line."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def printable(text: str) -> str:
    """Escape every character that a terminal would interpret, except line feeds and tabs."""
    return "".join(part if part.isprintable() or part in "\n\t" else repr(part)[1:-1] for part in text)


REASON_BYTES_MAX = 255
"""Limit of the reason for which a record is returned or rejected: it fits an exception's type and first line, and
thousands of reasons waiting with dead letters fit into a MiB."""


def reason_text(reason: str) -> str:
    """A reason in its stored form: one line of UTF-8 without control characters, cut to `REASON_BYTES_MAX` bytes."""
    text = reason[:REASON_BYTES_MAX]
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text.strip().encode()[:REASON_BYTES_MAX].decode(errors="ignore")


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, for a sentence: "1 copy", "0 batches", "2,000 messages"."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{number:,} {noun}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}s"
