"""New passwords, and the verifiers that the broker gets in their place."""

from __future__ import annotations

import getpass
import os
import sys

import typer

from linn.cli.exit_code import complain
from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigError, ConfigUnreadable
from linn.core.security.sasl.scram import SALT_BYTES, make_verifier

_LINE_BYTES_MAX = 4096
"""Limit of a line with a password: more than any password has, so that a wrong file is not read whole."""


def new_verifier(file: str | None) -> str:
    """Return the verifier of the password in the first line of a file, or of one that is typed, or piped to stdin.

    Raises ConfigError for an empty password, ConfigUnreadable, KeyboardInterrupt; typer.Exit if the second entry
    differs.
    """
    password = _typed() if file is None else _first_line(file)
    if not password:
        raise ConfigError(f"{'the password' if file is None else one_line(file)}: is empty")
    return make_verifier(password, os.urandom(SALT_BYTES)).text()


def _typed() -> str:
    if not sys.stdin.isatty():
        return _decoded(sys.stdin.buffer.readline(_LINE_BYTES_MAX), "stdin")
    try:
        password = getpass.getpass("Password: ", sys.stderr)
        again = getpass.getpass("Again: ", sys.stderr)
    except EOFError:
        complain("no password was typed")
        raise typer.Exit(1) from None
    if password != again:
        complain("the two passwords differ")
        raise typer.Exit(1)
    return password


def _first_line(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            return _decoded(opened.readline(_LINE_BYTES_MAX), one_line(file))
    except (OSError, ValueError) as error:
        text = f"{one_line(file)}: can't be read: {getattr(error, 'strerror', error)}"
        raise ConfigUnreadable(text) from error


def _decoded(line: bytes, source: str) -> str:
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: a password is UTF-8") from None
