"""The metadata store "etcd" keeps the promises of all metadata stores, with one real member and with three."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count

import pytest
from etcd_process import Etcd, running_etcd

from linn.core.env.env import Env
from linn.core.metadata.store import MetadataStore
from linn.metadata_stores.etcd.plugin import EtcdSettings, linn_register_metadata_store
from linn.testing.metadata_stores import MetadataStoreConformance, MetadataStoreHarness

NAMES = (f"suite-{number}" for number in count())
"""Each test has a cluster of its own in the same etcd."""


def make_store(etcd: Etcd, cluster: str, env: Env) -> MetadataStore:
    return linn_register_metadata_store().make(cluster, EtcdSettings(endpoints=etcd.urls), env)


@pytest.fixture(scope="module", params=[1, 3])
def etcd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd"), request.param) as etcd:
        yield etcd


class TestEtcd(MetadataStoreConformance):
    @pytest.fixture
    def harness(self, etcd: Etcd) -> MetadataStoreHarness:
        return MetadataStoreHarness(partial(make_store, etcd, next(NAMES)), ttl_s=2.0)
