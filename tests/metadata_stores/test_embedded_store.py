"""The embedded metadata store keeps the promises of all metadata stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from linn.core.env.env import Env
from linn.core.metadata.embedded import EmbeddedMetadata
from linn.core.metadata.store import MetadataStore
from linn.testing.deterministic import run_simulation
from linn.testing.metadata_stores import MetadataStoreConformance, MetadataStoreHarness
from linn.testing.sim_env import SimEnv


class Broker:
    """The one process that has the store: whoever asks gets the same one until it is closed."""

    def __init__(self) -> None:
        self.nursery: trio.Nursery | None = None
        self.store: EmbeddedMetadata | None = None

    def make(self, env: Env) -> MetadataStore:
        if self.store is None:
            nursery = self.nursery
            assert nursery is not None
            self.store = Closing(self, env, nursery)
        return self.store

    def run(self, scenario: Callable[[Env], Awaitable[None]]) -> None:
        async def main(env: SimEnv) -> None:
            async with trio.open_nursery() as self.nursery:
                env.disk.make_dir("data")
                await scenario(env)
                self.nursery.cancel_scope.cancel()

        run_simulation(0, main)


class Closing(EmbeddedMetadata):
    """A store that is read again from its folder after it was closed."""

    def __init__(self, broker: Broker, env: Env, nursery: trio.Nursery) -> None:
        super().__init__(env.disk, "data", env.clock, nursery.start_soon)
        self._broker = broker

    async def aclose(self) -> None:
        self._broker.store = None


class TestEmbedded(MetadataStoreConformance):
    @pytest.fixture
    def harness(self) -> MetadataStoreHarness:
        broker = Broker()
        return MetadataStoreHarness(broker.make, broker.run)
