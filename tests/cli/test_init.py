"""`linn init`: a configuration that is good as it is, and never somebody's file."""

from pathlib import Path

import pytest

from linn.cli.commands.init import initial_config
from linn.core.config.config import check_config
from linn.core.config.toml_source import TomlSource
from linn.core.plugins.manager import built_in
from linn.testing.process import BrokerProcess

KINDS = [None, "queue", "stream", "both"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_written_file_passes_the_check_without_findings(within, tmp_path: Path, kind: str | None) -> None:
    file = str(tmp_path / "new.toml")
    options = () if kind is None else ("--kind", kind)
    assert within("init", file, *options).returncode == 0
    done = within("check", file, "--strict")
    assert done.returncode == 0
    assert not [line for line in done.stdout.splitlines() if line.startswith(("error", "warning", "hint"))]
    config, _ = check_config(TomlSource(Path(file).read_text(), file), built_in())
    assert config is not None
    assert kind is None or kind in [topic.kind for topic in config.topics.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_starts_with_the_written_file(tmp_path: Path, kind: str | None) -> None:
    with BrokerProcess(tmp_path, initial_config(kind)) as broker:
        assert broker.stop() == 0


def test_keys_that_are_commented_out_are_good_as_well() -> None:
    text = "\n".join(line.removeprefix("# ") if " = " in line else line for line in initial_config(None).splitlines())
    _, problems = check_config(TomlSource(text, "all.toml"), built_in())
    assert [problems.describe(problem) for problem in problems.found] == []


def test_it_does_not_touch_an_existing_file(within, line_of, tmp_path: Path) -> None:
    file = tmp_path / "linn.toml"
    file.write_text("mine")
    done = within("init", str(file))
    assert done.returncode == 3
    assert "[config.exists]" in line_of(done.stderr)
    assert file.read_text() == "mine"


def test_a_folder_without_write_permission(within, line_of, tmp_path: Path) -> None:
    done = within("init", str(tmp_path / "no" / "linn.toml"))
    assert done.returncode == 3
    assert "can't be written" in line_of(done.stderr)


def test_it_prints_to_a_pipe_and_takes_linn_toml_here_otherwise(run, tmp_path: Path) -> None:
    assert run("init", "-", "--kind", "both", cwd=tmp_path).stdout == initial_config("both")
    assert list(tmp_path.iterdir()) == []
    run("init", cwd=tmp_path)
    assert (tmp_path / "linn.toml").read_text() == initial_config(None)
