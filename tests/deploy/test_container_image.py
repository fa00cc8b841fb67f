"""The container image, as far as it can be held without a container engine: what its Dockerfile copies, installs, runs,
exposes and checks is there and works."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from linn import __version__

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TIMEOUT_S = 300


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, its continued lines joined."""

    stage: int
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words of its exec form, which is JSON, or of its shell form."""
        begins = self.text.find("[")
        if self.name in ("CMD", "ENTRYPOINT", "HEALTHCHECK") and begins >= 0:
            words: list[str] = json.loads(self.text[begins:])
            return words
        return shlex.split(self.text)


def instructions() -> Iterator[Instruction]:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    stage = -1
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, text = line.partition(" ")
            stage += name == "FROM"
            yield Instruction(stage, name, text.strip())


FILE = list(instructions())
CONFIG = tomllib.loads((DEPLOY / "linn.toml").read_text())


def only(name: str) -> Instruction:
    (found,) = [instruction for instruction in FILE if instruction.name == name]
    return found


def copied_from_the_repository() -> Iterator[tuple[int, list[str], str]]:
    """(stage, sources, target) of each COPY that is not from another stage."""
    for instruction in FILE:
        if instruction.name == "COPY" and not instruction.text.startswith("--from"):
            *sources, target = instruction.words
            yield instruction.stage, sources, target


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    sources = [source for _, several, _ in copied_from_the_repository() for source in several]
    assert "linn" in sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert sorted(line[1:] for line in ignored if line.startswith("!")) == sorted(sources)


def test_the_copied_files_are_all_that_the_package_needs(tmp_path: Path) -> None:
    for stage, sources, target in copied_from_the_repository():
        for source in sources if stage == 0 else ():
            place = tmp_path / "src" / target / (source if target.startswith(".") else "")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
         "--wheel-dir", str(tmp_path), str(tmp_path / "src")],
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "linn").rglob("*.py")}
    assert modules - names == set()
    assert {"linn/schema/batch.capnp", "linn/schema/protocol.capnp"} <= names


def test_the_extra_that_is_installed_exists_and_so_does_the_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (installs,) = [run for run in FILE if run.name == "RUN" and "pip install" in run.text]
    extras = re.findall(r"^\.\[(.*)\]$", installs.words[-1])
    assert extras
    assert set(extras[0].split(",")) <= set(project["optional-dependencies"])
    bases = {instruction.words[0] for instruction in FILE if instruction.name == "FROM"}
    assert len(bases) == 1, "a virtual environment works with the interpreter that made it"
    version = re.fullmatch(r"python:(\d+\.\d+)-slim", bases.pop())
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_it_runs_as_its_own_user_which_owns_the_volume() -> None:
    user, volume = only("USER").text, only("VOLUME").text
    (makes,) = [run.text for run in FILE if run.name == "RUN" and "useradd" in run.text]
    assert user not in ("root", "0")
    assert re.search(rf"useradd [^&]* {user} *&&", makes)
    assert re.search(rf"install --directory --owner={user} [^&]*{volume}$", makes)
    names = [instruction.name for instruction in FILE]
    assert names.index("USER") > max(place for place, name in enumerate(names) if name in ("RUN", "COPY"))
    assert only("CMD").words[-2:] == ["--data-dir", volume]


def test_it_exposes_the_ports_of_its_configuration() -> None:
    ports = {listener["address"].rpartition(":")[2] for listener in CONFIG["listeners"].values()}
    assert ports == set(only("EXPOSE").words)


# --- the commands, against a broker that they start -------------------------------------------------------------------


def here(words: list[str], folder: Path) -> list[str]:
    """A command of the image, with this installation's `linn` and a folder of this test's."""
    target = [place for stage, _, place in copied_from_the_repository() if stage == 1]
    places = {"linn": str(Path(sys.executable).parent / "linn"), only("VOLUME").text: str(folder / "data")}
    places |= {place: str(folder / Path(place).name) for place in target}
    assert places.keys() & set(words), "none of its words is a place of the image"
    return [places.get(word, word) for word in words]


@contextmanager
def started(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The image's process and the URL of its native listener; the configuration's ports are free ones on loopback."""
    config = re.sub(r'"0\.0\.0\.0:\d+"', '"127.0.0.1:0"', (DEPLOY / "linn.toml").read_text())
    assert "0.0.0.0" not in config
    (folder / "linn.toml").write_text(config)
    words = here(only("ENTRYPOINT").words + only("CMD").words, folder)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        urls = []
        for line in process.stdout:
            if not line.startswith("ready "):
                break
            urls.append(line.split()[1])
        assert sorted(url.partition(":")[0] for url in urls) == ["http", "linn"], (folder / "log").read_text()
        yield process, next(url for url in urls if url.startswith("linn://"))
    finally:
        process.kill()
        process.communicate()


def health(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        here(only("HEALTHCHECK").words, folder),
        env={**os.environ, "LINN_URL": url}, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip


def test_its_command_serves_its_health_check_tells_and_its_signal_stops_it(tmp_path: Path) -> None:
    with started(tmp_path) as (process, url):
        assert (tmp_path / "data").is_dir()
        well = health(url, tmp_path)
        assert (well.returncode, json.loads(well.stdout)["version"]) == (0, __version__)
        process.send_signal(signal.Signals[only("STOPSIGNAL").text])
        assert process.wait(TIMEOUT_S) == 0
        ill = health(url, tmp_path)
        assert ill.returncode != 0
        assert "Traceback" not in ill.stderr


@pytest.mark.parametrize("flag", ["--interval", "--timeout", "--start-period", "--retries"])
def test_the_health_check_has_its_bounds(flag: str) -> None:
    assert re.search(rf"{flag}=\d+s? .*CMD \[", only("HEALTHCHECK").text)
