"""The configuration of a worker, from that of all."""

from __future__ import annotations

import pytest

from linn.cli.workers.order import LINKS, WorkerOrder, check, worker_config
from linn.core.batch.steps import run_steps
from linn.core.config.config import Config, load_config
from linn.core.config.toml_source import TomlSource
from linn.core.config.topic_checks import decode_topic
from linn.core.errors.tree import AddressInvalid, ConfigError
from linn.core.plugins.manager import built_in

MACHINE_BYTES = 8 << 30
LISTENERS = """
[listeners.native]
address = "127.0.0.1:5466"
[listeners.local]
address = "unix:linn.sock"
[listeners.metrics]
protocol = "metrics"
address = "127.0.0.1:9466"
[listeners.probes]
protocol = "metrics"
address = "unix:probes.sock"
"""
PLUGINS = built_in()


def config(text: str) -> Config:
    return load_config(TomlSource(text, "test.toml"), PLUGINS)


def ordered(number: int, text: str = LISTENERS, count: int = 4) -> Config:
    order = WorkerOrder(number, count, None, None, (), None, False, {"native": "127.0.0.1:5466"})
    return worker_config(config(text), PLUGINS, order, MACHINE_BYTES)


@pytest.mark.parametrize(
    ("number", "addresses"),
    [
        (
            1,
            {
                "native": "127.0.0.1:5466",
                "local": "unix:linn.sock",
                "metrics": "127.0.0.1:9466",
                "probes": "unix:probes.sock",
            },
        ),
        (3, {"native": "127.0.0.1:5466", "metrics": "127.0.0.1:9468", "probes": "unix:probes.sock.3"}),
    ],
)
def test_workers_share_ports_and_are_monitored_one_by_one(number: int, addresses: dict[str, str]) -> None:
    found = dict(ordered(number).listeners)
    assert found.pop(LINKS).address == f"unix:linn-data/__workers/{number}.socket"
    assert {name: listener.address for name, listener in found.items()} == addresses
    assert [name for name, listener in found.items() if listener.shares_port] == ["native"]


def test_each_worker_is_a_node_with_a_folder_of_its_own() -> None:
    assert [ordered(number).broker.data_dir for number in (1, 2)] == ["linn-data", "linn-data/__workers/2"]
    clusters = [ordered(number).cluster for number in (1, 2)]
    assert [cluster and cluster.node for cluster in clusters] == [1, 2]


def test_workers_share_the_memory_of_one_broker() -> None:
    assert ordered(1).broker.memory_bytes_max == MACHINE_BYTES // 2 // 4
    assert ordered(1, '[broker]\nmemory_bytes_max = "1GiB"\n').broker.memory_bytes_max == (1 << 30) // 4
    assert ordered(1, '[broker]\nmemory_bytes_max = "16MiB"\n').broker.memory_bytes_max == 16 << 20


def test_several_replicas_are_for_topics_that_are_made_live() -> None:
    around = ordered(1).surroundings({}, {}, PLUGINS)
    assert run_steps(decode_topic("t", {"replicas": 2}, around)).replicas == 2
    with pytest.raises(ConfigError, match=r"topics\.t\.replicas: other brokers hold a topic only in a \[cluster\]"):
        config(LISTENERS + "[topics.t]\nreplicas = 2\n")


def test_a_cluster_is_refused() -> None:
    cluster = '[cluster]\nname = "a"\nnode = 1\nstore = "etcd"\nendpoints = ["http://127.0.0.1:1"]\n'
    with pytest.raises(ConfigError, match=r"leave out either them or \[cluster\]"):
        check(config(cluster), PLUGINS, 2)
    with pytest.raises(ConfigError, match=r"broker\.workers: .*leave out either them or \[cluster\]"):
        config(f"[broker]\nworkers = 2\n{cluster}")


def test_services_are_refused() -> None:
    with pytest.raises(ConfigError, match="spark is for a broker alone"):
        check(config("[spark]\n"), PLUGINS, 2)
    sink = '[topics.clicks]\nkind = "stream"\n[topics.clicks.spark_sink]\nformat = "json"\npath = "clicks"\n'
    with pytest.raises(ConfigError, match=r"spark.* is for a broker alone"):
        check(config(sink), PLUGINS, 2)


def test_a_folder_with_a_long_path_is_refused() -> None:
    check(config(f'[broker]\ndata_dir = "{"a" * 70}"\n'), PLUGINS, 128)
    with pytest.raises(AddressInvalid, match="too long for the sockets of its workers"):
        check(config(f'[broker]\ndata_dir = "{"a" * 90}"\n'), PLUGINS, 128)


def test_a_port_for_metrics_beyond_the_last_one_is_refused() -> None:
    text = '[listeners.m]\nprotocol = "metrics"\naddress = "127.0.0.1:65534"\n'
    check(config(text), PLUGINS, 2)
    with pytest.raises(AddressInvalid, match="worker 3 would be monitored at port 65536"):
        check(config(text), PLUGINS, 3)
