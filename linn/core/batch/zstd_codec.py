"""zstd for the bodies of batches: a frame must state its size, which is checked before memory is allocated."""

from __future__ import annotations

import threading

import zstandard

from linn.core.batch.flat_message import Buffer
from linn.core.errors.tree import BatchMalformed

_MAGIC = b"\x28\xb5\x2f\xfd"
_WINDOW_BYTES_MAX = 8 << 20
"""zstd's own advice for decoders: a frame that asks for a larger window is refused."""


class _Compressors(threading.local):
    """Compressors, one per thread: a compressor can't be shared by threads, and a new one costs 20 us."""

    def __init__(self) -> None:
        self.default = zstandard.ZstdCompressor(level=3)


_compressors = _Compressors()


def compress(data: Buffer) -> bytes:
    """Compress into one frame that states the size of its content."""
    return _compressors.default.compress(data)


def check_frame(data: Buffer, body_bytes: int) -> None:
    """Refuse a frame whose stated size is missing or not `body_bytes`, or whose window is too large.

    Raises BatchMalformed.
    """
    if data[:4] != _MAGIC:
        raise BatchMalformed("the body is not zstd")  # A skippable frame also states a size.
    try:
        parameters = zstandard.get_frame_parameters(data)
    except zstandard.ZstdError as error:
        raise BatchMalformed(f"the body is not zstd: {error}") from error
    if parameters.content_size != body_bytes:
        raise BatchMalformed("the compressed body does not say the size that the batch says")
    if parameters.window_size > _WINDOW_BYTES_MAX and parameters.window_size > body_bytes:
        raise BatchMalformed(f"the compressed body asks for a window of {parameters.window_size} bytes")


def decompress(data: Buffer, body_bytes: int) -> bytes:
    """Decompress the single frame in `data`, to at most `body_bytes`.

    Raises BatchMalformed.
    """
    check_frame(data, body_bytes)
    try:
        return zstandard.ZstdDecompressor().decompress(data, body_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BatchMalformed(f"the body can't be decompressed: {error}") from error
