"""The keys of tokens, which follow their file while the broker runs.

Law: a file that can't be used replaces nothing.
"""

from __future__ import annotations

import logging

from linn.core.config.tables import TokensTable
from linn.core.env.env import Disk
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import ConfigError, LinnError
from linn.core.security.sasl.tokens import KEYS_BYTES_MAX, TokenKeys, TokenRules

logger = logging.getLogger("linn.logins")


class TokenFile:
    """The file of a `[tokens]` table."""

    def __init__(self, table: TokensTable, disk: Disk) -> None:
        self._table = table
        self._disk = disk
        self._content: bytes | None = None
        self._refused = ""
        """The reason that the log has given last."""
        self.keys: TokenKeys | None = None
        """The keys in use; None: there are none."""

    def load(self) -> None:
        """Read the file for the first time. Raises ConfigError; PluginError: `linn[tokens]` is not installed."""
        if self._table.keys is None:
            return
        try:
            self._read(self._table.keys)
        except ConfigError as error:
            raise ConfigError(f"tokens.keys: {self._table.keys}: {error.text}") from error

    def reload(self) -> None:
        """Read the file again. One that can't be used is logged once, and the keys in use stay."""
        if self._table.keys is None:
            return
        present = self.keys
        try:
            self._read(self._table.keys)
            self._refused = ""
            if self.keys is not present:
                logger.info("new logins are checked by the new keys of tokens")
        except LinnError as error:
            if self._refused != error.text:
                logger.error("the keys of tokens in use stay: %(error)s", log_fields(error))
            self._refused = error.text

    def _read(self, path: str) -> None:
        content = self._disk.read_named(path, KEYS_BYTES_MAX)
        if content != self._content:
            table = self._table
            rules = TokenRules(table.issuer, table.audience, table.algorithms, table.user_claim, table.roles_claim)
            self.keys = TokenKeys(content, rules)
            self._content = content
