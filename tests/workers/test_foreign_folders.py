"""A data folder of a node of a cluster is none for a broker alone, and the other way around."""

from __future__ import annotations

from pathlib import Path

import pytest

from linn.core.cluster.folder import Folder, FolderNote
from linn.core.env.real.env import RealEnv
from linn.core.errors.cluster import ClusterForeign
from linn.testing.plugin_broker import plugin_broker


def toml(folder: Path, more: str = "") -> str:
    return f'[broker]\ndata_dir = "{folder}"\n[listeners.native]\naddress = "127.0.0.1:0"\n{more}'


async def test_a_node_s_folder_is_not_served_alone(tmp_path: Path) -> None:
    await Folder(RealEnv().disk, str(tmp_path)).save(FolderNote("f", "c", 3, "boot", "none"))
    with pytest.raises(ClusterForeign, match="belongs to node 3 of a cluster"):
        async with plugin_broker(RealEnv(), toml(tmp_path)):
            pass
    assert not (tmp_path / "metadata.json").exists()


async def test_the_folder_of_a_broker_alone_does_not_become_a_node_s(tmp_path: Path) -> None:
    """Its logs would be deleted, since the cluster does not know their topics."""
    async with plugin_broker(RealEnv(), toml(tmp_path, '[topics.kept]\nkind = "queue"\n')):
        pass
    before = (tmp_path / "metadata.json").read_bytes()
    cluster = '[cluster]\nname = "a"\nnode = 1\nstore = "etcd"\nendpoints = ["http://127.0.0.1:1"]\n'
    with pytest.raises(ClusterForeign, match="has the topics of a broker without a cluster"):
        async with plugin_broker(RealEnv(), toml(tmp_path, cluster)):
            pass
    assert (tmp_path / "metadata.json").read_bytes() == before
    assert not (tmp_path / "node").exists()
    assert (tmp_path / "segmented-log" / "kept").exists()
