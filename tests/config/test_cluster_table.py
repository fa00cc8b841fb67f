"""The table `[cluster]`, and what it refers to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from linn.core.config.config import Config, check_config
from linn.core.config.toml_source import TomlSource
from linn.core.errors.tree import ConfigError, PluginUnknown
from linn.core.plugins.manager import PluginManager

Load = Callable[[str], Config]

CLUSTER = """
[cluster]
name = "prod"
node = 3
store = "card-index"
drawers = 7
"""
LISTENER = """
[listeners.peers]
protocol = "courier"
address = "0.0.0.0:5467"
plaintext = true
"""


def test_without_the_table_a_broker_is_alone(load: Load) -> None:
    assert load("").cluster is None


def test_the_other_keys_are_the_stores(load: Load) -> None:
    cluster = load(CLUSTER).cluster
    assert cluster is not None
    assert (cluster.name, cluster.node, cluster.store, cluster.store_settings.drawers) == ("prod", 3, "card-index", 7)
    assert (cluster.listener, cluster.secret, cluster.rack, cluster.session_timeout_s) == (None, None, "", 6)


def test_all_keys(load: Load) -> None:
    more = 'listener = "peers"\nsecret = { file = "cluster.secret" }\nrack = "a"\nsession_timeout = "1500ms"\n'
    config = load(CLUSTER + more + LISTENER + 'advertise = "broker3.example:5467"\n')
    assert config.cluster is not None
    assert (config.cluster.listener, config.cluster.rack, config.cluster.session_timeout_s) == ("peers", "a", 1.5)
    assert [place for place, _ in config.secrets()] == [("cluster", "secret")]
    assert config.listeners["peers"].advertise == "broker3.example:5467"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "prod"\n', "", 'the key "name" is missing'),
        ("node = 3\n", "", 'the key "node" is missing'),
        ('store = "card-index"\n', "", 'the key "store" is missing'),
        ('"prod"', '"pro/d"', r"cluster\.name: "),
        ("node = 3", "node = 0", r"cluster\.node: must be a whole number >= 1"),
        ("node = 3", 'node = "3"', r"cluster\.node: must be a whole number"),
        ("node = 3", "node = 1_000_001", r"cluster\.node: "),
        ("drawers = 7", "drawer = 7", r'cluster\.drawer: unknown key; did you mean "drawers"'),
        ("drawers = 7", 'session_timeout = "0s"', r"cluster\.session_timeout: "),
        ("drawers = 7", "session_timeout = 6", r"cluster\.session_timeout: 6 of what"),
        ("drawers = 7", 'listener = "peers"', r'cluster\.listener: there is no listener "peers"'),
        ("drawers = 7", 'secret = "abc"', r"cluster\.secret: is a secret, and stands here in plain text"),
        ("drawers = 7", f'rack = "{"r" * 256}"', r"cluster\.rack: "),
        ("[cluster]", "[[cluster]]", r"cluster: must be a table"),
    ],
)
def test_an_error_in_the_table_names_its_place(load: Load, old: str, new: str, says: str) -> None:
    assert old in CLUSTER
    with pytest.raises(ConfigError, match=says):
        load(CLUSTER.replace(old, new))


def test_an_unknown_store_is_named_with_the_nearest_one(load: Load) -> None:
    with pytest.raises(PluginUnknown, match=r'cluster\.store: no plugin provides the metadata store "card-indx"; did'):
        load(CLUSTER.replace('"card-index"', '"card-indx"'))


@pytest.mark.parametrize("address", ["0.0.0.0:5467", "[::]:5467", "broker:0", "unix:/run/linn.sock", "broker"])
def test_an_address_that_nobody_can_connect_to_is_not_advertised(load: Load, address: str) -> None:
    with pytest.raises(ConfigError, match=r"listeners\.peers\.advertise: "):
        load(LISTENER + f'advertise = "{address}"\n')


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        (CLUSTER + LISTENER, True),
        (CLUSTER + LISTENER + 'advertise = "broker3:5467"\n', False),
        (CLUSTER + LISTENER.replace("0.0.0.0", "127.0.0.1").replace("plaintext = true\n", ""), False),
        (LISTENER, False),
    ],
)
def test_a_listener_at_all_addresses_of_a_node_should_advertise_one(
    kinds: PluginManager, text: str, warned: bool
) -> None:
    _, problems = check_config(TomlSource(text, "linn.toml"), kinds)
    found = [problem for problem in problems.found if "set advertise" in problem.text]
    assert bool(found) == warned
    assert problems.error_count == 0
