"""The simulated store keeps the promises of the port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from sim_store import SimStore

from linn.core.env.env import Env
from linn.core.metadata.store import MetadataStore
from linn.testing.deterministic import run_simulation
from linn.testing.metadata_stores import MetadataStoreConformance, MetadataStoreHarness
from linn.testing.sim_env import SimEnv

SEEDS = range(3)


class TestSimulated(MetadataStoreConformance):
    @pytest.fixture(params=SEEDS)
    def harness(self, request: pytest.FixtureRequest) -> MetadataStoreHarness:
        stores: list[SimStore] = []

        def run(scenario: Callable[[Env], Awaitable[None]]) -> None:
            async def main(env: SimEnv) -> None:
                async with trio.open_nursery() as nursery:
                    stores.append(SimStore(request.param, nursery.start_soon))
                    await scenario(env)
                    nursery.cancel_scope.cancel()

            run_simulation(request.param, main)

        def make(env: Env) -> MetadataStore:
            assert isinstance(env, SimEnv)
            return stores[0].client(env)

        return MetadataStoreHarness(make, run)
