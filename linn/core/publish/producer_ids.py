"""Ids for idempotent producers: each connection gets a block of them, with a key that proves whose it is.

An id is made of the number of the broker's start, that of the connection, and that of the producer, so that giving one
out writes nothing. Ids are no secrets: each reader of a batch sees its producer's. A batch under another client's id
would make the owner's next batch look like a duplicate, which is confirmed and not stored; so a session uses a block
only if it was given the block, or shows its key. The key is a MAC of the user and the block under a secret of the
broker: it holds over restarts, and needs no table of blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from hmac import compare_digest

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LimitExceeded, ProducerForeign

PER_CONNECTION = 256
"""Ids of one connection: a client with more producers at a time needs another connection."""
PRODUCER_BITS = 8
"""An id without its lowest bits is the number of its block."""
KEY_BYTES = 8
"""Size of a key, which can be tried only by requests to the broker: one in 2**64 guesses is right. Smaller than the 16
bytes that protect against guesses without the broker, which need the secret."""
BLOCKS_MAX = 4_096
"""Limit of the blocks that one session uses, of about 100 bytes each: several times what 1,000 transactional names, the
client's own connections and its tickets need."""
_CONNECTION_BITS = 24
_PERSON = b"linn producer id"
"""Keeps keys apart from all other uses of a secret."""
_BLOCK = struct.Struct("<q")
assert 1 << PRODUCER_BITS == PER_CONNECTION


class ProducerIds:
    """The ids of one start, and the keys of all blocks."""

    def __init__(self) -> None:
        self.start = 0
        """See `StartCounter`; set before the first connection comes. When connections have used up their
        numbers, the next start's are used: a start is a second, and that one has passed by then.
        """
        self.secret = b""
        """The broker's secret, the same at each start; set before the first connection comes."""
        self._connections = 0

    def take(self) -> int:
        """The first of PER_CONNECTION ids for a new connection."""
        number = (self.start << _CONNECTION_BITS) + self._connections
        self._connections += 1
        return number << PRODUCER_BITS

    def key(self, user: str, producer_id: int) -> int:
        """The key of a user for the block of an id, from 1 to 2**64 - 1.

        Call it only for a block that the user was given.
        """
        assert self.secret, "the secret is read before the first connection"
        # The block has a fixed size and comes first: no other user and block have the same bytes.
        content = _BLOCK.pack(producer_id >> PRODUCER_BITS) + user.encode()
        digest = blake2b(content, digest_size=KEY_BYTES, key=self.secret, person=_PERSON).digest()
        return int.from_bytes(digest, "little") or 1


class OwnedProducers:
    """The blocks of ids that one session uses: it was given them, or has shown their keys."""

    __slots__ = ("_ids", "_user", "blocks")

    def __init__(self, ids: ProducerIds, user: str) -> None:
        self.blocks: set[int] = set()
        """Their numbers."""
        self._ids = ids
        self._user = user

    def take(self) -> int:
        """Take a new block; returns its first id. Raises LimitExceeded."""
        self.check_room()
        producer_id = self._ids.take()
        self.give(producer_id)
        return producer_id

    def give(self, producer_id: int) -> None:
        """Let the session use the block of an id, which the broker has given to its user."""
        self.blocks.add(producer_id >> PRODUCER_BITS)

    def key(self, producer_id: int) -> int:
        """The key of a block that the session uses, for other sessions of its user. Raises ProducerForeign."""
        self.check(producer_id)
        return self._ids.key(self._user, producer_id)

    def keys_of(self, batches: Sequence[RecordBatch]) -> dict[int, int]:
        """The first ids of the blocks that batches use, with the keys of these blocks. Raises ProducerForeign."""
        blocks = dict.fromkeys([batch.producer_id >> PRODUCER_BITS for batch in batches if batch.producer_id])
        return {block << PRODUCER_BITS: self.key(block << PRODUCER_BITS) for block in blocks}

    def claim(self, producer_id: int, key: int) -> None:
        """Let the session use the block of an id, of which it shows the key.

        Raises ProducerForeign: the key is another block's or user's. LimitExceeded.
        """
        if producer_id >> PRODUCER_BITS in self.blocks:
            return
        right = self._ids.key(self._user, producer_id)
        if not compare_digest(right.to_bytes(KEY_BYTES, "little"), key.to_bytes(KEY_BYTES, "little")):
            raise ProducerForeign(f"the key shown for producer {producer_id} is not its own")
        self.check_room()
        self.give(producer_id)

    def check(self, producer_id: int) -> None:
        """Check that the session may use an id. Raises ProducerForeign."""
        if producer_id >> PRODUCER_BITS not in self.blocks:
            raise self.foreign(producer_id)

    def foreign(self, producer_id: int) -> ProducerForeign:
        """The error of a request with an id that the session may not use."""
        return ProducerForeign(
            f"producer {producer_id} was given to another client, and its key was not shown on this connection"
        )

    def check_room(self) -> None:
        """Check that the session may use another block. Raises LimitExceeded."""
        if len(self.blocks) >= BLOCKS_MAX:
            raise LimitExceeded(
                f"a connection uses the producer ids of at most {BLOCKS_MAX:,} connections and transactional names"
            )
