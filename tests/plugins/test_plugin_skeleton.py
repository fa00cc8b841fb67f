"""`linn plugins new` writes packages that work, are typed and in order, and never overwrites anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from linn.cli.commands.plugin_new import FACTS, KINDS, PluginSkeleton, name_problem
from linn.core.config.config import check_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.plugins import hookspecs
from linn.core.plugins.manager import PluginManager, installed

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 100


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def linn(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run("linn", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each kind."""
    folder = tmp_path_factory.mktemp("packages")
    for kind in KINDS:
        PluginSkeleton(f"paper-{kind}", kind).write(str(folder))
    return folder


def test_every_kind_of_plugin_has_a_skeleton() -> None:
    hooks = {
        name.removeprefix("linn_register_").replace("_", "-")
        for name in dir(hookspecs)
        if name.startswith("linn_register_")
    }
    assert set(KINDS) == set(FACTS) == hooks


def test_help_and_a_wrong_kind_list_all_kinds_a_line_each(tmp_path: Path) -> None:
    for said in (
        linn("plugins", "new", "--help", cwd=tmp_path).stdout,
        linn("plugins", "new", "tape", "--kind", "queue", cwd=tmp_path).stderr,
    ):
        lines = [re.sub(r"[│`\s]+", " ", line.replace("•", "-")).strip() for line in said.splitlines()]
        expected = [re.sub(r"[`\s]+", " ", f"- {kind}: {does}").strip() for kind, does in KINDS.items()]
        assert [line for line in lines if line.startswith("- ")] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_tests_at_once(packages: Path, kind: str) -> None:
    done = run("pytest", cwd=packages / f"linn-paper-{kind}")
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-1_000:]
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_is_in_order(packages: Path, kind: str) -> None:
    config = str(ROOT / "pyproject.toml")
    for command in (["check", "--extend-ignore", "I001", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = run("ruff", *command, "--config", config, ".", cwd=packages / f"linn-paper-{kind}")
        assert done.returncode == 0, done.stdout + done.stderr


def test_new_plugins_are_typed(packages: Path) -> None:
    modules = [str(path) for path in sorted(packages.glob("linn-*/linn_*"))]
    done = run("mypy", "--strict", "--cache-dir", str(packages / "cache"), *modules, cwd=packages)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_in_its_readme_is_one(packages: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = packages / f"linn-paper-{kind}"
    (block,) = re.findall(r"```toml\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.syspath_prepend(str(folder))
    module = f"linn_paper_{kind}".replace("-", "_")
    source = TomlSource(f'{block}\n[plugins]\nload = ["{module}.plugin"]\n', "README.md")
    ours = [entry for entry in installed() if entry.dist is not None and entry.dist.name == "linn"]
    _, problems = check_config(source, PluginManager(plugin_settings(source), ours))
    assert [problems.describe(problem) for problem in problems.found] == []


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_skeleton_is_left_over(kind: str) -> None:
    for place, text in PluginSkeleton("x", kind).files().items():
        assert not re.search(r"@[A-Z]+@", text), place


def test_the_command_says_what_it_wrote_and_never_overwrites(tmp_path: Path) -> None:
    done = linn("plugins", "new", "tape", "--kind", "engine", "--into", "made/here", "--json", cwd=tmp_path)
    written = json.loads(done.stdout)
    assert written["folder"] == "made/here/linn-tape"
    assert all((tmp_path / written["folder"] / file).is_file() for file in written["files"])
    readme = tmp_path / written["folder"] / "README.md"
    readme.write_text("mine")
    done = linn("plugins", "new", "tape", "--kind", "exchange", "--into", "made/here", cwd=tmp_path)
    assert done.returncode == 3
    assert "[config.exists]" in done.stderr
    assert readme.read_text() == "mine"


@pytest.mark.parametrize("name", ["Tape", "a_b", "a--b", "-a", "a-", "1a", "", "ä", "linn-tape", "linn", "a" * 61])
def test_invalid_names_are_refused(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize("name", ["dram", "topic", "capnp", "sticky", "exchanges"])
def test_a_name_that_linn_itself_uses_is_refused(name: str) -> None:
    assert name_problem(name) == "is taken by what linn brings itself"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["Tape", "--kind", "engine"], "small letters"),
        (["tape", "--kind", "engin"], "did you mean"),
        (["tape"], "kind"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: list[str], text: str) -> None:
    done = linn("plugins", "new", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert text in " ".join(re.sub(r"[^\w\s-]", " ", done.stderr).split())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = linn("plugins", "new", "tape", "--kind", "engine", "--into", "file", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
