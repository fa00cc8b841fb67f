from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linn.core.config.kinds import kind_named
from linn.core.config.tables import PluginSettings
from linn.core.errors.tree import PluginError, PluginUnknown
from linn.core.plugins.manager import PluginManager, installed

PREAMBLE = """
import msgspec
from linn.core.routing.exchange import ExchangeKind
from linn.core.plugins.hookspecs import hookimpl
from linn.core.log.storage import EngineKind
from linn.core.metadata.store import MetadataStoreKind

class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    speed: int = 1

class Mutable(msgspec.Struct):
    speed: int = 1

class Unset(msgspec.Struct, frozen=True):
    speed: int

class Greedy(msgspec.Struct, frozen=True):
    engine: str = ""

class Node(msgspec.Struct, frozen=True):
    node: int = 1

def make(*args):
    raise AssertionError("made while plugins were loaded")
"""
TAPE = "@hookimpl\ndef linn_register_engine():\n    return EngineKind('tape', Settings, make)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path, for plugins that nobody has seen before."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, module: str, body: str) -> None:
    (folder / f"{module}.py").write_text(PREAMBLE + body)


def install(folder: Path, distribution: str, **plugins: str) -> None:
    """Make what an installer leaves behind: a dist-info folder with metadata and entry points."""
    info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    lines = "".join(f"{name} = {module}\n" for name, module in plugins.items())
    (info / "entry_points.txt").write_text(f"[linn]\n{lines}")


def listed(*modules: str) -> PluginManager:
    return PluginManager(PluginSettings(load=modules), [])


def test_a_module_listed_in_toml_is_a_plugin(folder: Path) -> None:
    write(folder, "paper_tape", TAPE)
    assert list(listed("paper_tape").engines) == ["tape"]


def test_an_installed_distribution_is_found_by_its_entry_point(folder: Path) -> None:
    write(folder, "paper_tape", TAPE)
    install(folder, "linn-paper-tape", tape="paper_tape")
    entries = [entry for entry in installed() if entry.name == "tape"]
    manager = PluginManager(PluginSettings(), entries)
    assert list(manager.engines) == ["tape"]
    assert manager.plugin_names == ["tape"]


def test_a_blocked_plugin_is_not_even_imported(folder: Path) -> None:
    write(folder, "broken", "raise RuntimeError('imported')")
    install(folder, "linn-broken", broken="broken")
    entries = [entry for entry in installed() if entry.name == "broken"]
    manager = PluginManager(PluginSettings(load=("broken_too",), block=("broken", "broken_too")), entries)
    assert manager.plugin_names == ["broken", "broken_too"]
    assert not manager.engines


def test_one_plugin_may_bring_several_kinds_and_several_of_a_kind(folder: Path) -> None:
    body = (
        "@hookimpl\ndef linn_register_engine():\n"
        "    return [EngineKind('a', Settings, make), EngineKind('b', Settings, make)]\n"
        "@hookimpl\ndef linn_register_exchange():\n    return ExchangeKind('c', None, make)\n"
        "@hookimpl\ndef linn_register_observer():\n    return None\n"
    )
    write(folder, "many", body)
    manager = listed("many")
    assert (list(manager.engines), list(manager.exchanges)) == (["a", "b"], ["c"])


def engine(arguments: str) -> str:
    return f"@hookimpl\ndef linn_register_engine():\n    return {arguments}\n"


BROKEN = [
    ("import nothing_of_that_name", "its module broken_plugin can't be imported: ModuleNotFoundError: No module named"),
    ("def f(:", "can't be imported: SyntaxError: "),
    ("raise SystemExit(3)", "can't be imported: SystemExit: 3"),
    ("raise RuntimeError('two\\nlines')", "can't be imported: RuntimeError: two lines"),
    ("x = 1", "has no function marked with linn.core.plugins.hookspecs.hookimpl"),
    ("@hookimpl\ndef linn_register_enigne(): pass", 'did you mean "linn_register_engine"?'),
    ("@hookimpl\ndef linn_register_engine(broker): pass", "does not fit its hooks: "),
    (engine("1 / 0"), "linn_register_engine failed: ZeroDivisionError: division by zero"),
    (engine("'tape'"), "did not return a valid storage engine: a str, not a EngineKind"),
    (engine("ExchangeKind('a', None, make)"), "a ExchangeKind, not a EngineKind"),
    (engine("[EngineKind('a b', Settings, make)]"), "a name is made of"),
    (engine("EngineKind(7, Settings, make)"), "its name is not text"),
    (engine("EngineKind('a', Settings, 7)"), "the factory of \"a\" can't be called"),
    (engine("EngineKind('a', dict, make)"), "its settings are not a msgspec.Struct class"),
    (engine("EngineKind('a', Mutable, make)"), "Mutable is not frozen"),
    (engine("EngineKind('a', Unset, make)"), "Unset.speed has no default"),
    (engine("EngineKind('a', Greedy, make)"), 'Greedy has the key "engine", which linn itself uses'),
    (
        "@hookimpl\ndef linn_register_metadata_store():\n    return MetadataStoreKind('a', Node, make)",
        'Node has the key "node", which linn itself uses',
    ),
    (engine("[EngineKind('a', Settings, make)] * 2"), '"a", which plugin "tape" provides already'),
    ("@hookimpl\ndef linn_register_observer():\n    return object()", "a object without broker_started()"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text"), BROKEN)
def test_a_broken_plugin_is_one_line_with_its_name_and_its_distribution(folder: Path, body: str, text: str) -> None:
    write(folder, "broken_plugin", body)
    install(folder, "linn-broken", tape="broken_plugin")
    entries = [entry for entry in installed() if entry.name == "tape"]
    with pytest.raises(PluginError) as raised:
        PluginManager(PluginSettings(), entries)
    assert raised.value.text.startswith('plugin "tape" (linn-broken 1.2): ')
    assert text in raised.value.text
    assert raised.value.text.isprintable()


def test_a_listed_module_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(PluginError, match=r'^plugin "no.such.module" \(listed in \[plugins\]\): can\'t be imported'):
        listed("no.such.module")


def test_two_plugins_of_one_name_are_both_named(folder: Path) -> None:
    write(folder, "paper_tape", TAPE)
    install(folder, "linn-one", tape="paper_tape")
    install(folder, "linn-two", tape="paper_tape")
    entries = [entry for entry in installed() if entry.name == "tape"]
    with pytest.raises(PluginError, match=r'two plugins have the name "tape": linn-\w+ 1.2, and linn-\w+ 1.2'):
        PluginManager(PluginSettings(), entries)


def test_a_plugin_that_is_installed_and_listed_is_refused(folder: Path) -> None:
    write(folder, "paper_tape", TAPE)
    install(folder, "linn-one", tape="paper_tape")
    entries = [entry for entry in installed() if entry.name == "tape"]
    with pytest.raises(PluginError, match=r'plugin "paper_tape" .*: is the plugin "tape" a second time'):
        PluginManager(PluginSettings(load=("paper_tape",)), entries)


def test_two_plugins_that_bring_one_name_are_both_named(folder: Path) -> None:
    write(folder, "first_tape", TAPE)
    write(folder, "second_tape", TAPE)
    with pytest.raises(PluginError, match=r'plugin "second_tape" .* which plugin "first_tape" provides already'):
        listed("first_tape", "second_tape")


def test_an_unknown_kind_names_the_nearest_one(folder: Path) -> None:
    write(folder, "paper_tape", TAPE)
    engines = listed("paper_tape").engines
    assert kind_named(engines, "tape", "storage engine").name == "tape"
    with pytest.raises(PluginUnknown, match=r'no plugin provides the storage engine "tpae"; did you mean "tape"\?'):
        kind_named(engines, "tpae", "storage engine")


def test_core_reads_a_configuration_without_the_commands_dependencies() -> None:
    program = (
        "import sys, linn.core.config.config, linn.core.plugins.manager; "
        "print({'rich', 'typer', 'hypothesis'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "set()\n"
