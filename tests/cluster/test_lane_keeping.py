"""Lanes that rest on a link, and pieces of files that are sent over it."""

from __future__ import annotations

import pytest
from peer_world import ANN, peer_world, until
from raw_client import records

from linn.cluster.channel import PIECE_BYTES, REGION_BYTES_MAX, pieces
from linn.cluster.requests import Requests
from linn.cluster.window import Limits
from linn.core.batch.flat_message import Buffer
from linn.core.env.file_region import Sendable
from linn.core.errors.tree import StorageError
from linn.core.gateway.requests import FetchRequest
from linn.core.publish.request import PublishRequest
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

TOPIC = '[topics.t]\nkind = "stream"\n'


class Region:
    """Bytes of a file that may have been cut."""

    def __init__(self, data: bytes, missing: int = 0) -> None:
        self._data, self._missing = data, missing

    def __len__(self) -> int:
        return len(self._data) + self._missing

    def behind(self, count: int) -> Region:
        return Region(self._data[count:], self._missing)

    def read(self, bytes_max: int) -> bytes:
        return self._data[:bytes_max]


def sent(frames: list[Sendable]) -> bytes:
    found = b""
    for piece in pieces(frames):
        for part in piece:
            if isinstance(part, Buffer):
                assert len(part) <= PIECE_BYTES
                found += part
            else:
                assert piece[-1] is part, "a piece of a file ends a piece"
                found += part.read(len(part))
    return found


def test_pieces_of_files_go_as_they_are_unless_they_are_large() -> None:
    small, large = Region(b"s" * 1_000), Region(b"l" * (REGION_BYTES_MAX + 1))
    frames = [b"a" * 10, small, b"b" * (2 * PIECE_BYTES), large, b"c"]
    assert sent(frames) == b"a" * 10 + b"s" * 1_000 + b"b" * (2 * PIECE_BYTES) + b"l" * (REGION_BYTES_MAX + 1) + b"c"
    assert [frames[0], small] in list(pieces(frames))
    assert not any(large in piece for piece in pieces(frames))


def test_a_file_that_was_cut_ends_the_link_and_sends_nothing_else_in_its_place() -> None:
    with pytest.raises(StorageError, match="cut"):
        sent([Region(b"l" * REGION_BYTES_MAX, missing=1), b"next"])


def test_lanes_that_rest_give_way_to_others() -> None:
    async def scenario(env: SimEnv) -> None:
        async with peer_world(env, more=TOPIC) as (one, _):
            link = await one.links._link(2)
            link._requests = Requests(Limits(lanes_max=4))
            readers = [one.links.reading(ANN) for _ in range(6)]
            for reader in readers:
                await reader.fetch(2, FetchRequest("t", 0, 0, 100), 0)
            assert len(link._resting) == 4, "one place was made for each further lane"
            told: list[object] = []
            passing = one.links.passing(ANN)
            await passing.begin(2, PublishRequest("t", [records(["a"])]), {}, told.append)
            await until(lambda: told)
            for reader in readers:
                fetched = await reader.fetch(2, FetchRequest("t", 0, 0, 100), 0)
                assert len(fetched.batches) == 1
                reader.close()
            passing.close()
            await until(lambda: not link._requests.has_lanes)
            assert not link._resting

    run_simulation(0, scenario, virtual_s_max=600)


def test_lanes_that_rest_keep_no_consumer_away() -> None:
    requests = Requests(Limits(lanes_max=10))
    for _ in range(9):
        requests.open_lane()
    assert not requests.has_room_for_leg(0)
    assert requests.has_room_for_leg(1)
