"""Kafka's numbers of variable length: zigzag, seven bits a byte, the lowest first."""

from __future__ import annotations

from linn.api import BatchMalformed

BYTES_MAX = 10
"""Length of the longest one, which has 64 bits."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, place behind it). Raises IndexError where the data ends; BatchMalformed: it is over BYTES_MAX."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number, shift, limit = byte & 0x7F, 7, at + BYTES_MAX - 1
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        if at >= limit:
            raise BatchMalformed("a number of a record is longer than 10 bytes")
        shift += 7


def write_varint(out: bytearray, number: int) -> None:
    """Append a number of at most 64 bits, signed."""
    left = (number << 1) ^ (number >> 63)
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)


def read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    """(bytes behind their length, place behind them); None for the length -1.

    Raises IndexError, BatchMalformed.
    """
    size, at = read_varint(data, at)
    if size < 0:
        if size != -1:
            raise BatchMalformed(f"a length of {size} bytes")
        return None, at
    end = at + size
    if end > len(data):
        raise IndexError
    return data[at:end], end


def write_bytes(out: bytearray, content: bytes | None) -> None:
    """Append bytes behind their length."""
    if content is None:
        out.append(1)  # The length -1.
    else:
        write_varint(out, len(content))
        out += content
