"""The metadata store "etcd" in a configuration: its settings are checked; its extra is needed only where it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from linn.core.config.config import check_config
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import PluginError
from linn.core.plugins.manager import built_in
from linn.metadata_stores.etcd.plugin import EtcdSettings, linn_register_metadata_store

CLUSTER = '[cluster]\nname = "prod"\nnode = 1\nstore = "etcd"\n'


def problems_of(more: str) -> list[str]:
    _, problems = check_config(TomlSource(CLUSTER + more, "linn.toml"), built_in())
    return [problems.describe(problem) for problem in problems.found]


def test_the_settings_of_a_cluster_of_etcds() -> None:
    more = 'endpoints = ["http://a:1", "https://[::1]"]\nuser = "linn"\npassword = { env = "X" }\nca = "ca.pem"\n'
    assert problems_of("") == []
    assert problems_of(more) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('endpoints = ["10.0.0.1:2379"]\n', "is not http://HOST[:PORT]"),
        ("endpoints = []\n", "endpoints"),
        ('endpoints = "http://a"\n', "endpoints"),
        ('endpoints = ["http://ann:opensesame@a:1"]\n', "has no user and no password"),
        ('user = "linn"\n', "without a password"),
        ('user = "linn"\npassword = "opensesame"\n', "password"),
        ('endpoint = ["http://a"]\n', 'did you mean "endpoints"'),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_its_line(more: str, words: str) -> None:
    (problem,) = problems_of(more)
    assert words in problem
    assert "linn.toml:" in problem
    assert "opensesame" not in problem


def test_without_the_extra_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("linn.metadata_stores.etcd.")]:
        if not name.endswith((".plugin", ".endpoint")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(PluginError) as caught:
        linn_register_metadata_store().make("prod", EtcdSettings(), RealEnv())
    assert 'pip install "linn[cluster]"' in caught.value.text
    assert "\n" not in caught.value.text


def test_a_broker_alone_loads_no_http() -> None:
    code = "import sys; from linn.core.plugins.manager import built_in; built_in(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "linn.metadata_stores.etcd.plugin" in loaded
    assert [name for name in loaded if name in ("h11", "linn.metadata_stores.etcd.client")] == []
