"""CRC-32C (Castagnoli) over any buffer, without copying it: see docs/adr/0008-crc-without-a-copy.md.

`crc32c(data, value=0)` is the CRC of `data`, continued from `value`, the CRC of what came before. It is the library's
own function: one more Python call for each sum would cost as much as the sum of a small batch.
"""

from __future__ import annotations

from crc32c import crc32c

__all__ = ["crc32c"]
