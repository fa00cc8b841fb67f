"""Writes `src/stringprep.ts`: the tables of SASLprep (RFC 4013), which are of Unicode 3.2; Node has none of them.

    python clients/typescript/saslprep.py [--print]

They never change; the tests of linn compare the file with what this writes, and the client with linn's own SASLprep.
"""

from __future__ import annotations

import stringprep
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

TARGET = Path(__file__).resolve().parent / "src" / "stringprep.ts"
SURROGATES = range(0xD800, 0xE000)
"""No well-formed text has one."""
EVERY = [chr(code) for code in range(sys.maxunicode + 1) if code not in SURROGATES]
PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)
TABLES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "NOTHING": ("Left out (B.1).", stringprep.in_table_b1),
    "SPACE": ("Written as a space (C.1.2).", stringprep.in_table_c12),
    "UNASSIGNED": ("Unknown to Unicode 3.2 (A.1).", stringprep.in_table_a1),
    "PROHIBITED": ("Prohibited (C.1.2 to C.9).", lambda character: any(table(character) for table in PROHIBITED)),
    "RIGHT_TO_LEFT": ("Written from right to left (D.1).", stringprep.in_table_d1),
    "LEFT_TO_RIGHT": ("Written from left to right (D.2).", stringprep.in_table_d2),
}
HEAD = """\
// The tables of SASLprep (RFC 3454, appendices A to D), of Unicode 3.2. Written by saslprep.py: don't change this file.

function oneOf(...ranges: string[]): RegExp {
  return new RegExp(`[${ranges.join("")}]`, "u");
}
"""
WIDTH = 110


def escaped(text: str) -> str:
    """A text as JavaScript has it between quotes."""
    return "".join(f"\\u{{{ord(character):x}}}" for character in text)


def ranges(is_in: Callable[[str], bool]) -> Iterator[str]:
    """The characters of a table, as a regular expression's class has them."""
    codes = [ord(character) for character in EVERY if is_in(character)]
    while codes:
        count = next((at for at in range(1, len(codes)) if codes[at] != codes[0] + at), len(codes))
        ends = [codes[0]] if count == 1 else [codes[0], codes[count - 1]]
        yield ("" if count == 2 else "-").join(escaped(chr(code)) for code in ends)
        del codes[:count]


def lines(parts: Iterable[str]) -> Iterator[str]:
    """Text in lines, each as an argument."""
    line = ""
    for part in parts:
        if len(line) + len(part) > WIDTH:
            yield f'  "{line}",'
            line = ""
        line += part
    yield f'  "{line}",'


def tables() -> str:
    """The whole file."""
    written = [HEAD]
    for name, (says, is_in) in TABLES.items():
        written += [f"/** {says} */", f"export const {name} = oneOf(", *lines(ranges(is_in)), ");"]
    written += ["/** Characters whose compatible form has changed since (Corrigendum 4). */"]
    written += ["export const CORRECTED: Readonly<Record<string, string>> = {"]
    for character in EVERY:
        old, new = (form.normalize("NFKC", character) for form in (unicodedata.ucd_3_2_0, unicodedata))
        if old != new and not stringprep.in_table_a1(character):
            written.append(f'  "{escaped(character)}": "{escaped(old)}",')
    return "\n".join([*written, "};", ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(tables())
    else:
        TARGET.write_text(tables(), encoding="utf-8")
