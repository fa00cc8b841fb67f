"""New passwords, and the verifiers that the broker gets in their place."""

from __future__ import annotations

import getpass
import os
import sys

import typer

from linn.cli.exit_code import complain
from linn.cli.session import secret_in
from linn.core.errors.tree import ConfigError
from linn.core.security.sasl.scram import SALT_BYTES, make_verifier

_LINE_BYTES_MAX = 4096
"""Limit of a line with a password: more than any password has, so that a wrong pipe is not read whole."""


def new_verifier(file: str | None) -> str:
    """Return the verifier of the password in the first line of a file, or of one that is typed, or piped to stdin.

    Raises BadParameter for a file that others may use, ConfigError for an empty password, KeyboardInterrupt; typer.Exit
    if the second entry differs.
    """
    password = _typed() if file is None else secret_in(file, "--password-file")
    if not password:
        raise ConfigError("the password is empty")
    return make_verifier(password, os.urandom(SALT_BYTES)).text()


def _typed() -> str:
    if not sys.stdin.isatty():
        try:
            return sys.stdin.buffer.readline(_LINE_BYTES_MAX).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConfigError("stdin: a password is UTF-8") from None
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
