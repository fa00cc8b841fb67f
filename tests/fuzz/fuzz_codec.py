"""A peer's bytes as a connection reads them, broker's side and client's side.

Input: a byte of options, a byte that says how the stream is cut into pieces, the stream.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from fuzz_budget import code_of, outcome, within_budget

from linn.core.errors.tree import LinnError
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import Connection, agree, check_welcome
from linn.wire.framing import FrameReader

LARGE, FRAMED = 1, 2
"""Options: hello is through; the stream is the content of one segment, whose table is put before it."""
FRAME_BYTES_MAX = 1 << 20
PIECE_BYTES_MAX = 300

Heard = tuple[int, m.Message, list[bytes]] | str
"""A message with its correlation and batches, or the code of the error that ended the connection."""


def fuzz_one(data: bytes) -> None:
    """Check that any chunking gives the same messages, and that all ways of decoding agree."""
    if len(data) < 2:
        return
    options, seed, stream = data[0], data[1], data[2:]
    if options & FRAMED:
        words = len(stream) // 8
        stream = struct.pack("<II", 0, words) + stream[: 8 * words]
    limit = FRAME_BYTES_MAX if options & LARGE else FrameReader().frame_bytes_max
    with within_budget(len(data)):
        whole = list(hear(stream, limit, random.Random(0), len(stream)))
        assert list(hear(stream, limit, random.Random(seed), PIECE_BYTES_MAX)) == whole
        for heard in whole:
            if not isinstance(heard, str):
                comes_back(*heard)
        for frame in frames(stream, limit):
            read = outcome(lambda frame=frame: codec._decode(frame))  # type: ignore[misc]
            for _ in range(2):  # The second time perhaps from the cache.
                assert outcome(lambda frame=frame: codec.decode(frame)) == read  # type: ignore[misc]


def hear(stream: bytes, limit: int, pieces: random.Random, piece_bytes_max: int) -> Iterator[Heard]:
    """The events of a connection for a stream that arrives in pieces."""
    connection = Connection()
    connection.allow_frames(limit)
    at = 0
    while at < len(stream):
        buffers = connection.buffers()
        count = left = min(pieces.randint(1, piece_bytes_max), sum(map(len, buffers)), len(stream) - at)
        for buffer in buffers:
            part = min(left, len(buffer))
            buffer[:part] = stream[at : at + part]
            at, left = at + part, left - part
        try:
            for event in connection.received(count):
                yield event.correlation, event.message, [bytes(batch.message) for batch in event.batches]
        except LinnError as error:
            yield code_of(error)
            return


def comes_back(correlation: int, message: m.Message, batches: list[bytes]) -> None:
    """Encoded again it is the same message; as a first message it is hello or welcome, or refused."""
    outcome(lambda: agree(message))
    outcome(lambda: check_welcome(message))
    if isinstance(message, m.Unknown):
        return
    # The quick way to encode the answer to a publish has no batches: none has any.
    count = 0 if isinstance(message, m.Published) else len(batches)
    encoded = memoryview(bytes(codec.encode(message, correlation, count)))
    assert codec.decode(encoded) == (correlation, count, message)


def frames(stream: bytes, limit: int) -> Iterator[memoryview]:
    """The frames of a stream, without regard to what they are."""
    reader = FrameReader(limit)
    while stream and reader.failure is None:
        buffer = reader.buffer()
        count = min(len(buffer), len(stream))
        buffer[:count] = stream[:count]
        stream = stream[count:]
        yield from reader.received(count)
