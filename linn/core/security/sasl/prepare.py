"""SASLprep (RFC 4013): one form for texts that people can't tell apart, and names that have only one."""

from __future__ import annotations

import stringprep
import unicodedata

NAME_BYTES_MAX = 255
"""Limit of a user's name in UTF-8, which has room for an e-mail address."""
PASSWORD_BYTES_MAX = 1_024
"""Limit of a password in UTF-8. SASLprep takes a microsecond a character."""

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)


def saslprep(text: str) -> str:
    """Return the prepared form of a text. Raises ValueError if it has characters that have none."""
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if any(is_in(character) for character in prepared for is_in in _PROHIBITED):
        raise ValueError("a character that SASLprep prohibits")
    right_to_left = [stringprep.in_table_d1(character) for character in prepared]
    is_mixed = any(right_to_left) and any(map(stringprep.in_table_d2, prepared))
    if is_mixed or (any(right_to_left) and not (right_to_left[0] and right_to_left[-1])):
        raise ValueError("text in both directions, which SASLprep prohibits")
    return prepared


def prepared_password(password: str) -> bytes:
    """Return the bytes of a password that are hashed: prepared, or as they are where that is impossible, as in
    PostgreSQL.
    """
    try:
        return saslprep(password).encode()
    except ValueError:
        return password.encode(errors="surrogatepass")


def check_name(name: str) -> None:
    """Check that a user's name has one form only. Raises ValueError, whose text says why it has not."""
    if not 0 < len(name.encode(errors="surrogatepass")) <= NAME_BYTES_MAX:
        raise ValueError(f"it has 1 to {NAME_BYTES_MAX} bytes of UTF-8")
    if not name.isprintable() or name != name.strip() or saslprep(name) != name:
        raise ValueError("it has no control characters, and none that look like others or like nothing")
