"""A predicate's text as tokens. One pass, each character examined a bounded number of times.

Laws: every text gives tokens or a `PredicateInvalid` that names a place in it; the last token is an empty one of kind
"end".
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

from linn.core.errors.texts import one_line
from linn.core.errors.tree import PredicateInvalid
from linn.core.routing.predicate.tree import LiteralValue

TokenKind = Literal["word", "symbol", "literal", "end"]

_EXCERPT_CHARACTERS = 30
"""Characters shown on either side of an error, so that it stays one line."""
_BLANKS = " \t\r\n"
_INT64 = range(-(1 << 63), 1 << 63)

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_WORD = r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*"
_SYMBOL = r"!=|<=|>=|==|<>|&&|\|\||[=<>()\[\],!]"
_PIECE = re.compile(f"({_WORD})|({_SYMBOL})|({_NUMBER})|[\"']")
_SYMBOL_GROUP, _NUMBER_GROUP = 2, 3
_PLAIN = re.compile(r"[^\"'\\\x00-\x08\x0a-\x1f\x7f]+")
_HEX = re.compile(r"[0-9a-fA-F]+")
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_HEX_DIGITS = {"u": 4, "U": 8}


class Token(NamedTuple):
    """A piece of the text."""

    kind: TokenKind
    text: str
    """The token's text in the predicate."""
    at: int
    """Index of its first character."""
    keyword: str = ""
    """A word in lower case, for comparison with keywords, or a symbol; empty for a literal and the end."""
    value: LiteralValue | None = None
    """The value of a literal; `true` and `false` are words, for they may also stand alone."""


def invalid(text: str, at: int, problem: str) -> PredicateInvalid:
    """The error for a problem at index `at` of a predicate: position, problem, and `^` at that place."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line, column = text.count("\n", 0, at) + 1, at - start + 1
    before = text[start:at]
    behind = text[at:] if end < 0 else text[at:end]
    if len(before) > _EXCERPT_CHARACTERS:
        before = "..." + before[-_EXCERPT_CHARACTERS:]
    if len(behind) > _EXCERPT_CHARACTERS:
        behind = behind[:_EXCERPT_CHARACTERS] + "..."
    place = f"line {line}, column {column}" if "\n" in text.strip("\n") else f"column {column}"
    return PredicateInvalid(one_line(f"{place}: {problem}, at the ^ in: {before}^{behind}"))


def tokens_of(text: str) -> list[Token]:
    """All tokens of a predicate. Raises PredicateInvalid."""
    found: list[Token] = []
    at = _end(_BLANK, text, 0)
    while at < len(text):
        token, end = _token(text, at)
        found.append(token)
        at = _end(_BLANK, text, end) if text[end : end + 1] in _BLANKS else end
    found.append(Token("end", "", len(text)))
    return found


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match is not None else at


def _token(text: str, at: int) -> tuple[Token, int]:
    """The token that begins at `at`, and the index of its end."""
    match = _PIECE.match(text, at)
    if match is None:
        raise invalid(text, at, f"the character {text[at]!a} has no meaning here")
    piece, end, group = match[0], match.end(), match.lastindex
    if group == _SYMBOL_GROUP:
        return Token("symbol", piece, at, piece), end
    if group is None:
        return _text_literal(text, at)
    if _goes_on(text, end):
        problem = "a name with other characters stands in brackets: label[...]"
        raise invalid(text, at, "not a number" if group == _NUMBER_GROUP else problem)
    if group == _NUMBER_GROUP:
        return Token("literal", piece, at, "", _number(text, at, piece)), end
    return Token("word", piece, at, piece.lower()), end


def _goes_on(text: str, end: int) -> bool:
    """Whether a word or number is continued after `end` by characters that belong to neither."""
    following = text[end : end + 1]
    return following.isalnum() or following in ("_", ".")


def _number(text: str, at: int, digits: str) -> int | float:
    if digits.isdecimal() or digits[1:].isdecimal():
        whole = int(digits)
        if whole not in _INT64:
            raise invalid(text, at, "the number does not fit into 64 bits")
        return whole
    number = float(digits)
    if not math.isfinite(number):
        raise invalid(text, at, "the number is too large")
    return number


def _text_literal(text: str, at: int) -> tuple[Token, int]:
    quote = text[at]
    end = _end(_PLAIN, text, at + 1)
    if text[end : end + 1] == quote and text.isascii():
        return Token("literal", text[at : end + 1], at, "", text[at + 1 : end]), end + 1
    parts, place = [], at + 1
    while place < len(text) and text[place] != quote:
        character = text[place]
        if character == "\\":
            part, place = _escape(text, place)
            parts.append(part)
        elif character in "\"'":
            parts.append(character)
            place += 1
        else:
            end = _end(_PLAIN, text, place)
            if end == place:
                raise invalid(text, place, f"the character {character!a} in text is written as an escape")
            parts.append(text[place:end])
            place = end
    if place >= len(text):
        raise invalid(text, at, f"the text that begins here has no closing {quote}")
    value = "".join(parts)
    if not is_unicode(value):
        raise invalid(text, at, "the text is not valid Unicode")
    return Token("literal", text[at : place + 1], at, "", value), place + 1


def _escape(text: str, at: int) -> tuple[str, int]:
    """The character that the escape at `at` stands for, and the index of its end."""
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES:
        return _ESCAPES[letter], at + 2
    count = _HEX_DIGITS.get(letter)
    if count is None:
        raise invalid(text, at, r"""unknown escape; known: \" \' \\ \n \r \t \uXXXX \UXXXXXXXX""")
    digits = text[at + 2 : at + 2 + count]
    if len(digits) != count or not _HEX.fullmatch(digits) or not _is_scalar(int(digits, 16)):
        raise invalid(text, at, f"\\{letter} and {count} hexadecimal digits name a character")
    return chr(int(digits, 16)), at + 2 + count


def _is_scalar(code: int) -> bool:
    return code < 0xD800 or 0xE000 <= code < 0x110000


def is_unicode(text: str) -> bool:
    """Whether text can be written as UTF-8: no half of a surrogate pair is in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
