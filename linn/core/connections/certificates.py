"""The certificates of listeners, which follow their files while the broker runs.

Laws: what can't be used replaces nothing. Each connection keeps the certificate that it got.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from linn.core.config.tables import TlsTable
from linn.core.env.env import Clock, Disk, Stream
from linn.core.env.log_fields import log_fields
from linn.core.env.tls import ServerTls, read_files, server_tls
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.tls import TlsInvalid

RELOAD_INTERVAL_S = 10.0
"""Interval in which the files are read again: certificates are renewed days before their end."""
_DAY_MS = 86_400_000

logger = logging.getLogger("linn.tls")


class Certificates:
    """The `[tls.NAME]` tables, with what their files hold."""

    def __init__(self, tables: Mapping[str, TlsTable], disk: Disk, clock: Clock) -> None:
        self._tables = tables
        self._disk = disk
        self._clock = clock
        self._loaded: dict[str, ServerTls] = {}
        self._refused: dict[str, str] = {}
        """The reason that the log has given last, by table."""

    def load(self) -> None:
        """Read all files for the first time. Raises TlsInvalid."""
        for name in self._tables:
            self._loaded[name] = self._read(name)

    def reload(self) -> None:
        """Read all files again. Files that can't be used are logged once, and the certificate in use stays."""
        for name, present in list(self._loaded.items()):
            try:
                found = self._read(name)
            except TlsInvalid as error:
                if self._refused.get(name) != error.text:
                    logger.error("the certificate in use stays: %(error)s", {"tls": name, **log_fields(error)})
                self._refused[name] = error.text
            else:
                self._refused.pop(name, None)
                if found.files != present.files:
                    self._loaded[name] = found
                    about = {"tls": name, "days": round(self.days_left[name], 1)}
                    logger.info("tls.%(tls)s: new connections get a new certificate, for %(days)s days", about)

    def _read(self, name: str) -> ServerTls:
        return read_table(name, self._tables[name], self._disk, self._clock.now_ms())

    @property
    def days_left(self) -> Mapping[str, float]:
        """Days until each certificate in use ends, by table; negative afterwards."""
        now_ms = self._clock.now_ms()
        return {name: (loaded.not_after_ms - now_ms) / _DAY_MS for name, loaded in self._loaded.items()}

    def handshake_timeout_s(self, name: str) -> float:
        """The time that a handshake may take."""
        return self._tables[name].handshake_timeout_s

    def wrap(self, name: str, stream: Stream) -> TlsStream:
        """Put a connection into the TLS of a table; its handshake is to come."""
        loaded = self._loaded[name]
        return TlsStream(stream, loaded.context, is_server=True, server_end_point=loaded.server_end_point)


def read_table(name: str, table: TlsTable, disk: Disk, now_ms: int) -> ServerTls:
    """Read the files of a table. Raises TlsInvalid, with the table's name and the setting."""
    try:
        files = read_files(disk, table.certificate, table.key, table.client_ca)
        return server_tls(files, now_ms, client_certificate=table.client_certificate, lowest=table.versions)
    except TlsInvalid as error:
        path = getattr(table, error.key)
        text = error.text if path in error.text else f"{path}: {error.text}"
        raise TlsInvalid(f"tls.{name}.{error.key}: {text}", error.key) from error
