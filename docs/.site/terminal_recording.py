"""Record what a command shows on a terminal as one animated SVG: `terminal_recording.py OUT COMMAND...`.

The command runs in a pseudo-terminal; its screen is taken a few times a second (pyte), and equal screens are one
frame. Needs the extra `docs`. The picture uses CSS only, no script, and loads nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

import pyte

INTERVAL_S = 0.4
LAST_FRAME_S = 6.0
"""How long the end stays before the picture begins again."""
CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.2, 17, 14
NO_BREAK_SPACE = "\u00a0"
"""Not every viewer keeps several spaces."""
COLOURS = {
    "default": "#d8dee9",
    "green": "#8fbc6b",
    "red": "#e06c75",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "blue": "#61afef",
    "brown": "#e5c07b",
    "black": "#5c6370",
    "brightblack": "#5c6370",
}


class Size(NamedTuple):
    """Size of a terminal in characters."""

    columns: int
    lines: int


class Frame(NamedTuple):
    """A screen, and how long it was there."""

    lines: tuple[str, ...]
    """SVG text elements."""
    seconds: float


def record(command: Sequence[str], size: Size) -> list[Frame]:
    """Run a command to its end. Raises SystemExit where it fails."""
    screen = pyte.Screen(size.columns, size.lines)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(size.columns), LINES=str(size.lines))
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
    frames: list[Frame] = []
    for seconds in read_through(terminal, stream):
        lines = tuple(svg_lines(screen))
        if frames and frames[-1].lines == lines:
            frames[-1] = Frame(lines, frames[-1].seconds + seconds)
        else:
            frames.append(Frame(lines, seconds))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise SystemExit(f"{command[0]} ended with {status}")
    return frames


def read_through(terminal: int, stream: pyte.ByteStream) -> Iterator[float]:
    """Feed what the command prints, until it ends; the length of each step, in seconds."""
    begun, running = time.monotonic(), True
    while running:
        until = begun + INTERVAL_S
        while running and (left := until - time.monotonic()) > 0:
            if select.select([terminal], [], [], left)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:  # The end, on Linux.
                    data = b""
                running = bool(data)
                stream.feed(data)
        now = time.monotonic()
        yield now - begun
        begun = now


def svg_lines(screen: pyte.Screen) -> Iterator[str]:
    """The text of each line that has any, in pieces of one style."""
    for number in range(screen.lines):
        row = screen.buffer[number]
        cells = [(row[column].data, row[column].fg, row[column].bold) for column in range(screen.columns)]
        column = 0
        for style, group in groupby(cells, key=lambda cell: cell[1:]):
            text = "".join(cell[0] for cell in group)
            if text.strip():
                yield piece(text, column, number, *style)
            column += len(text)


def piece(text: str, column: int, number: int, colour: str, bold: bool) -> str:
    """One text element; its length is fixed, whatever font there is."""
    body = text.rstrip()
    lead = len(body) - len(body.lstrip())
    body, column = body.lstrip(), column + lead
    fill = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else COLOURS["default"])
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{MARGIN + column * CELL_WIDTH:.1f}" y="{MARGIN + (number + 1) * LINE_HEIGHT}"'
    length = f'textLength="{len(body) * CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text {place} fill="{fill}"{weight} {length}>{escape(body).replace(" ", NO_BREAK_SPACE)}</text>'


def animated(frames: Sequence[Frame], title: str, size: Size) -> str:
    """All frames in one picture, one after the other, for ever."""
    frames = [*frames[:-1], Frame(frames[-1].lines, frames[-1].seconds + LAST_FRAME_S)]
    total, at = sum(frame.seconds for frame in frames), 0.0
    width, height = 2 * MARGIN + size.columns * CELL_WIDTH, 2 * MARGIN + (size.lines + 1) * LINE_HEIGHT
    rules, groups = [], []
    for number, frame in enumerate(frames):
        begin, end = 100 * at / total, 100 * (at + frame.seconds) / total
        hidden = f"0%, {begin:.3f}% {{ opacity: 0 }} " if number else ""
        after = f" {end:.3f}%, 100% {{ opacity: 0 }}" if number < len(frames) - 1 else ""
        rules.append(f"@keyframes f{number} {{ {hidden}{begin:.3f}%, {end:.3f}% {{ opacity: 1 }}{after} }}")
        animation = f"animation: f{number} {total:.1f}s step-end infinite"
        groups.append("\n".join([f'<g style="{animation}">', *frame.lines, "</g>"]))
        at += frame.seconds
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            "<style>text { font: 13px ui-monospace, monospace; white-space: pre }",
            *rules,
            "</style>",
            '<rect width="100%" height="100%" rx="8" fill="#22272e"/>',
            *groups,
            "</svg>",
            "",
        ]
    )


def main() -> None:
    """Record, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=96)
    parser.add_argument("--lines", type=int, default=34)
    parser.add_argument("--title", help="title of the picture; by default the command")
    parser.add_argument("--seconds-max", type=float, default=60.0, help="longest time that one screen stays")
    parser.add_argument("out")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    size = Size(options.columns, options.lines)
    frames = [Frame(lines, min(seconds, options.seconds_max)) for lines, seconds in record(options.command, size)]
    picture = animated(frames, options.title or " ".join(options.command), size)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(picture)


if __name__ == "__main__":
    main()
